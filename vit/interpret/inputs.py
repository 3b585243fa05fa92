"""A model with the images to show it, from files or a data set, prepared as in its training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Literal, Self

import torch
from torch import Tensor

from vit.config import BUILT_IN, DataConfig, named_data
from vit.data import load_data
from vit.data.folder import list_folder, readable
from vit.data.images import evenly_spaced
from vit.device import Compute
from vit.evaluate.reconstruction import Reconstruction, reconstruct
from vit.inputs import to_float
from vit.interpret.capture import Patch, Query
from vit.interpret.geometry import Geometry, geometry_of
from vit.interpret.layers import AttentionError
from vit.mae import Model
from vit.masking import Mask, mask_from_noise, num_keep

# Per batch, and per layer of its attention: more only takes memory.
MAX_TOKENS, MAX_WEIGHTS = 8192, 8 << 20


@dataclass
class ModelWithImages:
    """A model, and images that are read when needed.

    Attributes:
        model: as `load_model` returns it.
        names: of the images: files without suffixes, or classes.
        data: a description of the images, for a caption.
        load: image numbers -> uint8 (B, C, H, W), as the model takes them.
        mask: hides patches from the encoder; None shows it whole images.
        query: the token whose attention is shown.
        paths: the images' files; empty if they come from a data set.
    """

    model: Model
    names: list[str]
    data: str
    load: Callable[[Sequence[int]], Tensor]
    mask: Mask | None = None
    query: Query = "mean"
    paths: Sequence[str | Path] = ()

    @property
    def geometry(self) -> Geometry:
        """The layout of the encoder's tokens."""
        return geometry_of(self.model)

    @cached_property
    def pixels(self) -> Tensor:
        """All images, uint8 (B, C, H, W)."""
        return self.load(range(len(self.names)))

    @cached_property
    def images(self) -> Tensor:
        """All images, float32 (B, C, H, W) from 0 to 1."""
        return to_float(self.pixels, self.model.origin.image_size)

    @cached_property
    def inputs(self) -> Tensor:
        """All images, normalised: the model's input."""
        return self.model.origin.normalize(self.images)

    @property
    def caption(self) -> str:
        """A line on the model and the images."""
        return f"{model_caption(self.model)} · {self.data}"

    @property
    def mask_caption(self) -> str:
        """How many patches the mask hides in each image."""
        hidden = self.hidden[0]
        return f"{int(hidden.sum())} of {hidden.numel()} patches hidden"

    @property
    def batch_size(self) -> int:
        """Images per batch, so that memory stays flat."""
        tokens, heads = self.geometry.num_tokens, self.model.encoder.config.num_heads
        return max(1, min(MAX_TOKENS // tokens, MAX_WEIGHTS // (heads * tokens**2)))

    def batches(self) -> Iterator[Tensor]:
        """Yield the model's input in batches, each read when needed."""
        for numbers in torch.arange(len(self.names)).split(self.batch_size):
            yield self.model.origin.normalize(to_float(self.load(numbers.tolist()), self.model.origin.image_size))

    @property
    def hidden(self) -> Tensor:
        """Which patches the mask hides: bool (B, rows, columns)."""
        shape = (len(self.names), *self.geometry.grid_size)
        return torch.zeros(shape, dtype=torch.bool) if self.mask is None else self.mask.mask.bool().view(shape)

    def reconstruct(self) -> Reconstruction:
        """Return the images with the hidden patches filled in by the model's decoder."""
        compute = Compute(torch.device("cpu"))
        return reconstruct(self.model, self.pixels, self.model.origin.normalize, self.mask, compute)  # type: ignore[arg-type]

    def with_mask(self, ratio: float, seed: int, hidden: Patch | None = None, visible: Patch | None = None) -> Self:
        """Return the same under a random mask.

        Args:
            ratio: share of the patches to hide.
            seed: of the random numbers.
            hidden, visible: a patch to hide or to show in every image.

        Raises:
            AttentionError: there is no such patch, or no patch would be hidden or visible.
        """
        geometry, patches = self.geometry, self.geometry.num_tokens - self.geometry.num_prefix_tokens
        noise = torch.rand(len(self.names), patches, generator=torch.Generator().manual_seed(seed))
        for patch, value in ((hidden, 2.0), (visible, -1.0)):
            if patch is not None:
                noise[:, geometry.token(patch) - geometry.num_prefix_tokens] = value
        try:
            return replace(self, mask=mask_from_noise(noise, num_keep(patches, ratio)))
        except ValueError as error:
            raise AttentionError(str(error)) from error

    def middle_patches(self, allowed: Tensor) -> list[Patch]:
        """Return per image the allowed patch nearest to the middle: bool (B, rows, columns), at least one each."""
        (rows, columns), (row, column) = self.geometry.grid_size, self.geometry.middle
        distance = (torch.arange(rows)[:, None] - row) ** 2 + (torch.arange(columns) - column) ** 2  # (rows, columns)
        nearest = torch.where(allowed, distance, distance.max() + 1).flatten(1).argmin(1)
        return [divmod(number, columns) for number in nearest.tolist()]


def with_files(model: Model, paths: Sequence[str | Path]) -> ModelWithImages:
    """Show a model image files."""
    names = [Path(path).stem for path in paths]
    return ModelWithImages(
        model, names, "image files", lambda numbers: model.origin.read_images([paths[i] for i in numbers]), paths=paths
    )


def with_data(
    model: Model, data: str, root: str, count: int, on_bad_image: Literal["stop", "skip"] = "stop"
) -> ModelWithImages:
    """Show a model up to `count` test images, spread evenly over their classes; of a folder without any, of all its images.

    Args:
        model: as `load_model` returns it.
        data: "cifar10", "cifar100", "scenes", or a folder of images.
        root: folder that holds CIFAR's archive, or gets it.
        count: number of images.
        on_bad_image: at an unreadable one, stop, or show the others.

    Raises:
        DataError: the data is missing or cannot be read.
    """
    origin, folder = model.origin, Path(data).expanduser()

    # A whole data set; of Scenes, which are drawn on the fly, a part is enough
    if data in BUILT_IN:
        limit = 10 * count if data == "scenes" else 0
        config = DataConfig(**named_data(data, root), limit=limit, on_bad_image=on_bad_image)
        found = load_data(config, origin.image_size, prepared=origin.prepared)
        test, chosen = found.test, found.test.showcase(count)
        names, title = [test.label_names[i] for i in chosen.tolist()], f"{found.name}, test images"
        return ModelWithImages(
            model, names, title, lambda numbers: origin.fit(test.images[chosen[list(numbers)]], whole=found.prepared)
        )

    # A folder, of which only the chosen images are read
    if not folder.is_dir():
        raise AttentionError(f"{data!r} is neither {', '.join(BUILT_IN)} nor a folder of images")
    *_, (split, files) = list_folder(folder).items()
    files = [files[i] for i in evenly_spaced(len(files), min(count, len(files))).tolist()]
    if on_bad_image == "skip":
        files = [*compress(files, readable([folder / file.name for file in files]))]
    names = [file.class_name or Path(file.name).stem for file in files]
    title = f"{folder.resolve().name}, {'test images' if split in ('test', 'val') else 'images'}"
    return replace(with_files(model, [folder / file.name for file in files]), names=names, data=title)


def model_caption(model: Model) -> str:
    """Return one line about a loaded model."""
    config, data = model.encoder.config, model.origin.data
    patch = " x ".join(map(str, dict.fromkeys(config.patch_size)))
    shape = f"{config.depth} layers x {config.num_heads} heads, width {config.embed_dim}, patch {patch}"
    return f"{short_name(model.origin.source)}: {shape}{f', trained on {data}' if data else ''}"


def short_name(source: str) -> str:
    """Return a checkpoint's name for a caption: a hub's full name, or the last part of a path; for a snapshot, its run too."""
    if source.startswith(("timm/", "hf/")):
        return source
    path = Path(source).resolve()
    in_run = path.parent.name in ("snapshots", "checkpoints")
    return f"{path.parent.parent.name}, {path.stem}" if in_run else path.name
