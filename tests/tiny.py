"""What tests of several rooms share: small models, settings and images, full disks, files that would run code."""

import io
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2.functional import to_pil_image

from vit.checkpoints import load_model
from vit.config import (
    AugmentConfig,
    ClassifyConfig,
    Config,
    DecoderConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
    ViTConfig,
    changed,
)
from vit.data import Dataset, ImageSet
from vit.device import Compute
from vit.encoder import VisionTransformer
from vit.figures.style import style
from vit.inputs import Normalization
from vit.interpret import AttentionMaps
from vit.mae import MaskedAutoencoder, Model, build_autoencoder
from vit.training.run import Run, setup
from vit.training.run_folder import find_state
from vit.weights import Origin, save_model

M = TypeVar("M", bound=nn.Module)

TINY = ModelConfig(
    image_size=16,
    patch_size=4,
    embed_dim=16,
    depth=2,
    num_heads=2,
    decoder_dim=16,
    decoder_depth=1,
    decoder_heads=2,
)
CLASSES = ("ape", "bee", "cat")
NORMALIZE = Normalization([0.4, 0.5, 0.6], [0.2, 0.3, 0.25])
CPU = Compute(torch.device("cpu"))
RECONSTRUCT = Config(
    augment=AugmentConfig(crop_scale=(0.5, 1.0)),
    model=TINY,
    optim=OptimConfig(blr=0.02, warmup_epochs=0.5),
    train=TrainConfig(epochs=2, batch_size=8, precision="fp32"),
    run=RunConfig(device="cpu"),
)
CLASSIFY = changed(
    RECONSTRUCT,
    {
        "augment": AugmentConfig(crop_scale=(0.5, 1.0), rand_augment=2),
        "model": changed(TINY, {"drop_path": 0.5}),
        "classify": ClassifyConfig(
            label_smoothing=0.1, mixup=0.8, cutmix=1.0, drop_patches=0.5, whole_epochs=1
        ),
        "optim": OptimConfig(blr=0.02, warmup_epochs=0.5, layer_decay=0.7),
        "train.objective": "classify",
    },
)
SIZES = dict(image_size=(16, 16), patch_size=(4, 4), embed_dim=16, depth=2, num_heads=2)
WIDE = dict(image_size=(8, 12), patch_size=(4, 2), embed_dim=16, depth=3, num_heads=4)


def encoder(**settings: object) -> VisionTransformer:
    return VisionTransformer(ViTConfig(**SIZES | settings))


def autoencoder(
    norm_pix_loss: bool = True, decoder: DecoderConfig | None = None, **settings: object
) -> MaskedAutoencoder:
    decoder = decoder or DecoderConfig(dim=16, depth=1, num_heads=2)
    return build_autoencoder(ViTConfig(**SIZES | settings), decoder, norm_pix_loss)


def randomize(model: M, std: float = 0.2) -> M:
    """Draw whatever learns anew, so that no zero bias or unit norm hides a mistake; a fixed position table stays.

    `std` is that of biases, and the most of matrices, which are drawn so that products keep their size.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            nn.init.normal_(parameter, centre, min(std, parameter.shape[1:].numel() ** -0.5))
    return model


def wide_encoder(**settings: object) -> VisionTransformer:
    """Of 2 x 6 patches, whose attention is far from uniform."""
    return randomize(encoder(**WIDE | settings), 0.4).eval()


@contextmanager
def without_pictures() -> Iterator[None]:
    """Runs that end here leave no pictures and no page: these take longer than all else."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("draw_pictures", "write_report"):
            patch.setattr(f"vit.cli.train.{name}", lambda *_: None)
        yield


@contextmanager
def without_layout() -> Iterator[None]:
    """Figures are made, and nothing in them is moved to where there is room, which takes longer than to make them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "matplotlib.layout_engine.ConstrainedLayoutEngine.execute", lambda engine, figure: None
        )
        yield


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def save(
    folder: Path,
    model: Model,
    normalize: Normalization = NORMALIZE,
    class_names: Iterable[str] = (),
    data: str = "",
    dtype: torch.dtype = torch.float32,
    **facts: Any,
) -> None:
    """Save a model that no run has made."""
    size = model.encoder.config
    origin = Origin(
        normalize=normalize,
        image_size=size.image_size,
        channels=size.channels,
        class_names=tuple(class_names),
        data=data,
        **facts,
    )
    save_model(folder, model, origin, dtype)


def noise(count: int, seed: int = 0, size: tuple[int, int] = (16, 16)) -> Tensor:
    """uint8 (count, 3, H, W)"""
    return torch.randint(0, 256, (count, 3, *size), dtype=torch.uint8, generator=seeded(seed))


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    """The content of an image file."""
    image.save(content := io.BytesIO(), kind, **options)
    return content.getvalue()


def save_images(folder: Path, images: Iterable[Tensor | np.ndarray]) -> None:
    """Write images, uint8 tensors (3, H, W) or arrays (H, W, 3), as 0.png, 1.png, ... into a new folder."""
    folder.mkdir(parents=True)
    for number, pixels in enumerate(images):
        to_pil_image(pixels).save(folder / f"{number}.png")


def image_set(
    images: Tensor, class_names: tuple[str, ...] = CLASSES, labels: list[int] | None = None
) -> ImageSet:
    """Images whose classes take turns unless `labels` says otherwise; without names they have no labels."""
    if labels is None:
        labels = [number % len(class_names) if class_names else -1 for number in range(len(images))]
    return ImageSet.in_memory(images, torch.tensor(labels), class_names)


def dataset(
    train: int = 20, test: int = 4, seed: int = 0, class_names: tuple[str, ...] = CLASSES
) -> Dataset:
    """Images of noise."""
    sets = (
        image_set(noise(count, part), class_names)
        for count, part in ((train, seed), (test, 1000 + seed))
    )
    return Dataset("Noise", "folder", *sets)


def begin(config: Config, states: Path | None = None, data: Dataset | None = None) -> Run:
    """A run at its first step, or where a state in `states` left it."""
    data = data or dataset()
    state = None if states is None else find_state(states, config, data)
    init = load_model(config.model.init) if config.model.init and state is None else None
    return setup(config, data, state=state, init=init)


@torch.no_grad()
def captured(
    model: nn.Module, *inputs: object, run: Callable[..., object] | None = None
) -> AttentionMaps:
    """All attention of a model in one call, of itself or of `run` around it."""
    with AttentionMaps(model) as maps:
        (run or model)(*inputs)
    return maps


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Let no file be longer than `room` bytes within a block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.marker), "w")


def assert_same(one: object, other: object) -> None:
    """Equal to the bit, tensors included."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


def same(one: nn.Module, other: nn.Module) -> None:
    """The same tensors to the bit, under the same names."""
    assert_same(one.state_dict(), other.state_dict())


def rendered(figure: Figure) -> np.ndarray:
    """A figure's pixels at its own resolution: uint8 (H, W, 3)."""
    canvas = FigureCanvasAgg(figure)
    with style():
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def weights_of(codes: Tensor) -> Tensor:
    """uint8 codes (..., N) of `vit explore` -> float64 weights (..., N), as its page reads them: rows sum to 1, a zero stays zero."""
    exact = codes.to(torch.float64)
    # One shift for all nonzero codes of a row: the root of a quadratic equation
    nonzero = exact > 0
    count = nonzero.sum(-1, keepdim=True)
    total = exact.sum(-1, keepdim=True)
    squares = (exact**2).sum(-1, keepdim=True)
    shift = ((total**2 - count * (squares - 255**2)).sqrt() - total) / count
    return torch.where(nonzero, ((exact + shift) / 255) ** 2, 0.0)
