"""Commands as a shell calls them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import Forks
from PIL import Image
from torch import Tensor, nn

from vit.checkpoints import load_model, save_model
from vit.cli import main
from vit.config import DecoderConfig, ViTConfig
from vit.data.augment import Normalization, to_float
from vit.encoder import VisionTransformer
from vit.interpret import AttentionMaps
from vit.mae import build_autoencoder
from vit.masking import Mask, mask_from_noise, num_keep

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "torchvision", "matplotlib", "timm", "PIL")

Shell = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def shell() -> Shell:
    """`shell(*argv, cwd=ROOT)`: Python called with `argv`."""

    def shell(*argv: object, cwd: Path = ROOT) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *map(str, argv)], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
        )

    return shell


@pytest.fixture(scope="session")
def forks(tmp_path_factory) -> Iterator[Forks]:
    """`forks(cwd, program)`: run beside what every command imports, which is light."""
    with Forks(tmp_path_factory.mktemp("forks"), "import vit.settings, vit.cli.options") as forks:
        yield forks


@pytest.fixture
def weighed(forks) -> Shell:
    """`weighed(code)`: the code run, with the names of the heavy modules that were imported as the last line of stdout."""

    def weighed(code: str) -> subprocess.CompletedProcess:
        imported = f"print('imported:', *[name for name in {HEAVY!r} if name in sys.modules])"
        return forks(ROOT, f"import sys\ntry:\n    {code}\nfinally:\n    {imported}")

    return weighed


# ---- Of `vit attention` and `vit explore`: models, images, and the commands -----------------------------------------

SIZES = dict(image_size=(12, 16), patch_size=(4, 4), embed_dim=16, depth=3, num_heads=2)
NORMALIZE = Normalization([0.4, 0.5, 0.6], [0.2, 0.3, 0.25])
CLASSES = ("cat", "dog", "<b>cow")


def random_model(model: nn.Module, std: float = 0.3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=std)
    return model


def random_images(count: int, height: int, width: int) -> list[Image.Image]:
    pixels = np.random.default_rng(0).integers(0, 255, (count, height, width, 3), dtype=np.uint8)
    return [Image.fromarray(image) for image in pixels]


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """A folder with encoders, autoencoders, a run with snapshots that differ, two images, and a folder of classes."""
    place = tmp_path_factory.mktemp("models")

    def autoencoder(heads: int = 2, norm_pix_loss: bool = True, depth: int = 2, **sizes: object) -> nn.Module:
        return build_autoencoder(ViTConfig(**SIZES | sizes), DecoderConfig(16, depth, heads), norm_pix_loss)

    for name, model in {
        "encoder": VisionTransformer(ViTConfig(**SIZES, num_classes=3, registers=2, global_pool="token")),
        "mae": autoencoder(),
        "mean": VisionTransformer(ViTConfig(**SIZES, num_classes=3, global_pool="avg")),
        "bare": autoencoder(class_token=False),
        "registers": autoencoder(heads=4, norm_pix_loss=False, registers=2),
        "plain": VisionTransformer(ViTConfig(**SIZES, class_token=False)),
        "run": autoencoder(depth=1),
    }.items():
        classes = CLASSES if name in ("encoder", "mae", "mean") else ()
        save_model(place / name, random_model(model), NORMALIZE, classes, "pictures")
    for step in (0, 5, 20):
        model = random_model(autoencoder(depth=1), 0.1 + step / 40, step)
        save_model(place / "run" / "snapshots" / f"step-{step:08d}", model, NORMALIZE, dtype=torch.float16)
    for name, image in zip(("one", "two"), random_images(2, 30, 40), strict=True):
        image.save(place / f"{name}.png")
    for number, image in enumerate(random_images(24, 12, 16)):
        path = place / "data" / ("cat", "dog")[number // 12] / f"{number % 12}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    return place


@pytest.fixture
def vit(models, tmp_path, monkeypatch, capsys):
    """`vit(command, *argv)` within `models`: its exit code, output and error; `vit.out` is the folder for pictures."""
    monkeypatch.chdir(models)

    def run(command: str, *argv: object) -> tuple[int, str, str]:
        out = ["--out", str(tmp_path / "out")] if "--out" not in argv else []
        code = main([command, *map(str, argv), *out])
        said = capsys.readouterr()
        return code, said.out, said.err

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
        noise = torch.rand(2, 12, generator=torch.Generator().manual_seed(seed))
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
