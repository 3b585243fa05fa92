"""Commands as a shell calls them."""

from __future__ import annotations

import math
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import Forks
from PIL import Image
from tiny import NORMALIZE, autoencoder, encoder, randomize, save_images, seeded, without_layout
from torch import Tensor, nn

from vit.atomic import write_text
from vit.checkpoints import load_model, save_model
from vit.cli import main
from vit.config import DecoderConfig, changed
from vit.inputs import to_float
from vit.interpret import AttentionMaps
from vit.masking import Mask, mask_from_noise, num_keep

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "torchvision", "matplotlib", "timm", "PIL")

Shell = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def shell() -> Shell:
    """`shell(*argv, cwd=ROOT)`: Python called with `argv`."""

    def shell(*argv: object, cwd: Path = ROOT) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *map(str, argv)],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return shell


@pytest.fixture(scope="session")
def forks(tmp_path_factory) -> Iterator[Forks]:
    """`forks(cwd, program)`: run beside what every command imports, which is light."""
    with Forks(tmp_path_factory.mktemp("forks"), "import vit.cli") as forks:
        yield forks


@pytest.fixture
def weighed(forks, tmp_path) -> Shell:
    """`weighed(code)`: the code run in an empty folder; stdout ends with the names of the heavy modules that were imported."""

    def weighed(code: str) -> subprocess.CompletedProcess:
        imported = f"print('imported:', *[name for name in {HEAVY!r} if name in sys.modules])"
        return forks(tmp_path, f"import sys\ntry:\n    {code}\nfinally:\n    {imported}")

    return weighed


# ---- Of `vit attention` and `vit explore`: models, images, and the commands -----------------------------------------

SIZES = dict(image_size=(12, 16), depth=3)
CLASSES = ("cat", "dog", "<b>cow")


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """A folder with encoders, autoencoders, a run with snapshots that differ and the same unfinished, images, and classes."""
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)

    two_blocks = DecoderConfig(dim=16, depth=2, num_heads=2)
    for name, model in {
        "encoder": encoder(**SIZES, num_classes=3, registers=2, global_pool="token"),
        "mae": autoencoder(decoder=two_blocks, **SIZES),
        "mean": encoder(**SIZES, num_classes=3, global_pool="avg"),
        "bare": autoencoder(decoder=two_blocks, **SIZES, class_token=False),
        "registers": autoencoder(
            False, changed(two_blocks, {"num_heads": 4}), **SIZES, registers=2
        ),
        "plain": encoder(**SIZES, class_token=False),
        "run": autoencoder(**SIZES),
    }.items():
        classes = CLASSES if name in ("encoder", "mae", "mean") else ()
        save_model(place / name, randomize(model, 0.3), NORMALIZE, classes, "pictures")
    for step in (0, 5, 20):
        model = randomize(autoencoder(**SIZES), 0.1 + step / 40)
        save_model(
            place / "run" / "snapshots" / f"step-{step:08d}", model, NORMALIZE, dtype=torch.float16
        )
    shutil.copytree(place / "run", place / "training")
    (place / "training" / "model.safetensors").unlink()
    pixels = np.random.default_rng(0)
    for name in ("one", "two"):
        Image.fromarray(pixels.integers(0, 255, (30, 40, 3), dtype=np.uint8)).save(
            place / f"{name}.png"
        )
    for name in ("cat", "dog"):
        save_images(place / "data" / name, pixels.integers(0, 255, (12, 12, 16, 3), dtype=np.uint8))
    return place


@pytest.fixture
def called(capsys, monkeypatch):
    """`called(*argv)`: exit code, output and error of `vit argv`, whose parts may be several words.

    Without the lines of progress that a slow machine adds.
    """
    monkeypatch.setattr("vit.progress.SECONDS_BETWEEN_LINES", math.inf)

    def called(*argv: object) -> tuple[int, str, str]:
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
    """`shown(name, files)`: a model, its input, uint8 images."""

    def shown(name: str, files: Sequence[str] = ("one", "two")) -> tuple[nn.Module, Tensor, Tensor]:
        model = load_model(models / name)
        pixels = model.origin.read_images([models / f"{file}.png" for file in files])
        return model, model.origin.normalize(to_float(pixels, (12, 16))), pixels

    return shown


@pytest.fixture(scope="session")
def masked(shown):
    """`masked(name, ratio)`: likewise, and the mask that the commands draw, some patches hidden or visible everywhere."""

    def masked(
        name: str, ratio: float, hide: Sequence[int] = (), show: Sequence[int] = (), seed: int = 0
    ) -> tuple[nn.Module, Tensor, Tensor, Mask]:
        noise = torch.rand(2, 12, generator=seeded(seed))
        noise[:, list(hide)], noise[:, list(show)] = 2.0, -1.0
        return *shown(name), mask_from_noise(noise, num_keep(12, ratio))

    return masked


@pytest.fixture(scope="session")
def weights_of():
    """`weights_of(model, inputs, *mask)`: all that `AttentionMaps` keeps."""

    def weights_of(model: nn.Module, inputs: Tensor, *mask: Mask) -> AttentionMaps:
        with torch.no_grad(), AttentionMaps(model) as maps:
            model(inputs, *mask)
        return maps

    return weights_of
