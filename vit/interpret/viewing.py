"""What the commands look at: a loaded model, and images from files or a data set, prepared as the model was trained."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from vit.atomic import replacing
from vit.checkpoints import Origin, load_trained
from vit.config import DataConfig, Source
from vit.data import SOURCES, load_data
from vit.data.augment import to_float
from vit.data.folder import list_splits
from vit.data.images import evenly_spaced
from vit.device import Compute
from vit.encoder import VisionTransformer
from vit.interpret.capture import Query
from vit.interpret.geometry import Geometry, geometry_of
from vit.interpret.layers import AttentionError
from vit.mae import Model
from vit.masking import Mask, num_keep

CPU = Compute(torch.device("cpu"))
MOST_TOKENS, MOST_WEIGHTS = 8192, 8 << 20  # of a batch, and of a layer's attention to it: more only takes memory
DATA_SETS = tuple(name for name in get_args(Source) if name != "folder")


@dataclass(frozen=True)
class Pictures:
    """Images to be looked at, read when they are needed.

    Attributes:
        names: of the files without their endings, or of the classes.
        data: what they are, for a caption.
        load: numbers of images -> uint8 (B, C, H, W), as the model takes them.
    """

    names: list[str]
    data: str
    load: Callable[[Sequence[int]], Tensor]

    def __len__(self) -> int:
        return len(self.names)

    def all(self) -> Tensor:
        """All at once, uint8 (B, C, H, W)."""
        return self.load(range(len(self)))


def pictures_of_files(origin: Origin, paths: Sequence[str]) -> Pictures:
    """Image files."""
    if "" in paths:
        raise AttentionError("'' is no image file")
    names = [Path(path).stem for path in paths]
    return Pictures(names, "image files", lambda numbers: origin.read_images([paths[i] for i in numbers]))


def pictures_of_data(origin: Origin, data: str, root: str, count: int) -> Pictures:
    """Test images of a data set, spread evenly over its classes.

    Args:
        origin: of the model that will look at them.
        data: "cifar10", "cifar100", "scenes", or a folder of images.
        root: where CIFAR's archive lies, or is downloaded to.
        count: at most how many.

    Raises:
        DataError: it is not there or cannot be read.
    """
    if data in DATA_SETS:
        limit = 10 * count if data == "scenes" else 0  # these are drawn, which takes its time
        test = load_data(DataConfig(source=data, root=root, limit=limit), origin.image_size).test  # type: ignore[arg-type]
        chosen = test.showcase(count)
        names = [test.label_names[i] for i in chosen.tolist()]
        return Pictures(
            names, f"{SOURCES[data].title}, test images", lambda numbers: origin.fit(test.images[chosen[list(numbers)]])
        )
    if not os.path.isdir(os.path.expanduser(data)):
        raise AttentionError(f"--data: {data!r} is neither {', '.join(DATA_SETS)} nor a folder of images")
    _, files = list_splits(Path(data).expanduser())
    some = [files[i] for i in evenly_spaced(len(files), min(count, len(files))).tolist()]
    paths = [Path(data).expanduser() / file.name for file in some]
    return Pictures(
        [file.class_name or Path(file.name).stem for file in some],
        f"{Path(data).resolve().name}, test images",
        lambda numbers: origin.read_images([paths[i] for i in numbers]),
    )


def about(model: Model) -> str:
    """A loaded model in a line, for a caption."""
    encoder, origin = model.encoder.config, model.origin
    height, width = encoder.patch_size
    patch = f"{height}" if height == width else f"{height} x {width}"
    parts = [
        f"{encoder.depth} layers x {encoder.num_heads} heads, width {encoder.embed_dim}, patch {patch}",
        f"trained on {origin.data}" if origin.data else "",
    ]
    return f"{short_name(origin.source)}: {', '.join(part for part in parts if part)}"


def short_name(source: str) -> str:
    """A checkpoint's name for a caption: a hub's name whole, of a path the end that says most."""
    if source.startswith(("timm/", "hf/")):
        return source
    path = Path(source).resolve()
    within = path.parent.name in ("snapshots", "checkpoints")
    return f"{path.parent.parent.name}, {path.stem}" if within else path.name


def moments_of(checkpoint: str) -> list[tuple[str, Path]]:
    """The weights that a run kept along its way: what to call each, and where it is.

    Raises:
        AttentionError: it is no run folder, or the run kept none.
    """
    kept = sorted((Path(checkpoint) / "snapshots").glob("step-*/model.safetensors"))
    if not kept:
        raise AttentionError(
            f"{checkpoint} holds no snapshots; a run with --run.snapshots 8 keeps its weights along the way"
        )
    steps = [int(re.sub(r"\D", "", path.parent.name) or 0) for path in kept]
    return [(f"step {step:,}", path.parent) for step, path in zip(steps, kept, strict=True)]


def in_grid_order(weights: Tensor, ids_keep: Tensor, num_prefix_tokens: int) -> Tensor:
    """An encoder's weights under a mask with its patches from left to right and top to bottom.

    Args:
        weights: (B, h, N, N), patches in the order of the mask.
        ids_keep: (B, K), of the mask.
        num_prefix_tokens: tokens ahead of the patches, which stay.
    """
    order = ids_keep.argsort(dim=1) + num_prefix_tokens  # (B, K)
    prefix = torch.arange(num_prefix_tokens, device=order.device).expand(len(order), -1)
    order = torch.cat([prefix, order], dim=1)[:, None]  # (B, 1, N)
    rows = weights.gather(2, order[..., None].expand_as(weights))
    return rows.gather(3, order[..., None, :].expand_as(weights))


@dataclass
class Subject:
    """A model and the images that it is shown.

    Attributes:
        model: as loaded.
        pictures: what is shown.
    """

    model: Model
    pictures: Pictures
    encoder: VisionTransformer = field(init=False)
    origin: Origin = field(init=False)
    geometry: Geometry = field(init=False)

    def __post_init__(self) -> None:
        self.encoder, self.origin = self.model.encoder, self.model.origin
        self.geometry = geometry_of(self.encoder)

    @cached_property
    def pixels(self) -> Tensor:
        """uint8 (B, C, H, W)."""
        return self.pictures.all()

    @cached_property
    def images(self) -> Tensor:
        """float32 (B, C, H, W) from 0 to 1."""
        return to_float(self.pixels, self.origin.image_size)

    @cached_property
    def inputs(self) -> Tensor:
        """As the model takes them."""
        return self.origin.normalize(self.images)

    @cached_property
    def caption(self) -> str:
        """Model and data, for under a title."""
        return f"{about(self.model)} · {self.pictures.data}"

    def query(self, asked: str | tuple[int, int], mask: Mask | None = None) -> Query:
        """The token that asks: of "auto", the class token; where there is none, the patch in the middle.

        Args:
            asked: "auto", or what `AttentionMaps.to_grid` takes.
            mask: under which the encoder runs: then the visible patch nearest to the middle, another one in each image.

        Raises:
            AttentionError: there is no such token.
        """
        if asked == "auto" and self.geometry.class_token:
            return "cls"
        if asked == "auto" and mask is not None:
            return nearest_to_middle(self.geometry.grid_size, mask.mask == 0)
        if asked == "auto":
            asked = middle(self.geometry.grid_size)
        if asked != "mean":
            self.geometry.token(asked)
        return asked

    def batches(self) -> Iterator[Tensor]:
        """The inputs in batches, read one by one, so that memory stays flat over any number."""
        tokens, heads = self.geometry.num_tokens, self.encoder.config.num_heads
        size = max(1, min(MOST_TOKENS // tokens, MOST_WEIGHTS // (heads * tokens**2)))
        for start in range(0, len(self.pictures), size):
            pixels = self.pictures.load(range(start, min(start + size, len(self.pictures))))
            yield self.origin.normalize(to_float(pixels, self.origin.image_size))


def subject_of(
    checkpoint: str, files: Sequence[str], data: str | None, root: str, count: int, asked: dict[str, Any]
) -> Subject:
    """Load a model and what it is to be shown.

    Raises:
        AttentionError: neither files nor data were named, or both.
    """
    if bool(files) == (data is not None):
        raise AttentionError("name image files, or a data set by --data" + (", not both" if files else ""))
    model = load_trained(checkpoint, **asked)
    origin = model.origin
    pictures = pictures_of_files(origin, files) if data is None else pictures_of_data(origin, data, root, count)
    return Subject(model, pictures)


def mask_noise(subject: Subject, seed: int) -> Tensor:
    """What a random mask is drawn from: (B, L), the patches with the smallest noise stay visible."""
    rows, columns = subject.geometry.grid_size
    return torch.rand(len(subject.pictures), rows * columns, generator=torch.Generator().manual_seed(seed))


def kept_patches(subject: Subject, ratio: float) -> int:
    """How many patches stay visible when this share is hidden.

    Raises:
        AttentionError: none would, or none would be hidden.
    """
    rows, columns = subject.geometry.grid_size
    try:
        return num_keep(rows * columns, ratio)
    except ValueError as error:
        raise AttentionError(f"--mask: {error}") from error


def middle(grid_size: tuple[int, int]) -> tuple[int, int]:
    """The patch in the middle; of two, the later one."""
    return grid_size[0] // 2, grid_size[1] // 2


def nearest_to_middle(grid_size: tuple[int, int], among: Tensor) -> list[tuple[int, int]]:
    """In each image the patch nearest to the middle, of some: bool (B, L), at least one in each."""
    columns, (row, column) = grid_size[1], middle(grid_size)
    number = torch.arange(among.shape[1])
    apart = (number // columns - row) ** 2 + (number % columns - column) ** 2
    nearest = torch.where(among, apart, apart.max() + 1).argmin(1).tolist()
    return [(place // columns, place % columns) for place in nearest]


def write_numbers(path: Path, numbers: dict[str, Any]) -> None:
    """Arrays by name, for `numpy.load`; equal ones give equal files."""
    arrays = {key: value.numpy() if isinstance(value, Tensor) else np.array(value) for key, value in numbers.items()}
    with replacing(path) as temporary:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
