"""Commands as a shell calls them."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tiny import (
    NORMALIZE,
    autoencoder,
    encoder,
    noise,
    randomize,
    save,
    save_images,
    seeded,
    without_layout,
)
from torch import Tensor, nn
from torchvision.transforms.v2.functional import to_pil_image

from vit.atomic import write_text
from vit.checkpoints import load_model
from vit.cli import main
from vit.config import DecoderConfig
from vit.inputs import to_float
from vit.masking import Mask, mask_from_noise, num_keep

SIZES = dict(image_size=(12, 16), depth=3)
CLASSES = ("cat", "dog", "<b>cow")
DECODER = DecoderConfig(dim=16, depth=2, num_heads=4)


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """A folder with encoders, autoencoders, images, and classes."""
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)

    for name, classes, model in (
        ("encoder", CLASSES, encoder(**SIZES, num_classes=3, registers=2, global_pool="token")),
        ("mae", CLASSES, autoencoder(True, DECODER, **SIZES)),
        ("mean", CLASSES, encoder(**SIZES, num_classes=3, global_pool="avg")),
        ("bare", (), autoencoder(True, DECODER, **SIZES, class_token=False)),
        ("registers", (), autoencoder(False, DECODER, **SIZES, registers=2)),
        ("plain", (), encoder(**SIZES, class_token=False)),
    ):
        save(place / name, randomize(model, 0.3), NORMALIZE, classes, "pictures")
    for number, name in enumerate(("one", "two")):
        to_pil_image(noise(1, number, (30, 40))[0]).save(place / f"{name}.png")
    for number, name in enumerate(("cat", "dog")):
        save_images(place / "data" / name, noise(12, number, (12, 16)))
    return place


@pytest.fixture
def called(capsys, monkeypatch):
    """`called(*argv)`: exit code, output and error of `vit argv`, whose parts may be several words.

    Without the lines of progress that a slow machine adds.
    """
    monkeypatch.setattr("vit.progress.SECONDS_BETWEEN_LINES", math.inf)

    def called(*argv: object) -> tuple[int, str, str]:
        capsys.readouterr()  # what was said before
        code = main(shlex.split(" ".join(map(str, argv))))
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


@pytest.fixture
def unpainted(monkeypatch):
    """Pictures are made, not laid out, and their files stay empty: to paint them takes longer than all else."""
    monkeypatch.setattr("vit.figures.style.save_figure", lambda figure, path: write_text(path, ""))
    with without_layout():
        yield


@pytest.fixture
def vit(models, tmp_path, monkeypatch, called):
    """`vit(command, *argv)` within `models`, whose pictures go into the folder `vit.out` unless `argv` says otherwise."""
    monkeypatch.chdir(models)

    def run(command: str, *argv: object) -> tuple[int, str, str]:
        out = [] if any("--out" in str(part) for part in argv) else ["--out", tmp_path / "out"]
        return called(command, *argv, *out)

    run.out = tmp_path / "out"
    return run


@pytest.fixture(scope="session")
def shown(models):
    """`shown(name, files, ratio)`: a model, its input, uint8 images, and the mask that the commands draw.

    Some patches are hidden or visible everywhere.
    """

    def shown(
        name: str,
        files: str = "one two",
        ratio: float | None = None,
        hide: Sequence[int] = (),
        seed: int = 0,
    ) -> tuple[nn.Module, Tensor, Tensor, Mask | None]:
        model = load_model(models / name)
        pixels = model.origin.read_images([models / f"{file}.png" for file in files.split()])
        mask = None
        if ratio is not None:
            noise = torch.rand(2, 12, generator=seeded(seed))
            noise[:, list(hide)] = 2.0
            mask = mask_from_noise(noise, num_keep(12, ratio))
        return model, model.origin.normalize(to_float(pixels, (12, 16))), pixels, mask

    return shown
