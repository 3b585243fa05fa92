"""A model with the images to show it, prepared as in its training, and the mask and the token to ask about.

A data set's images come from `vit.look.datasets`; image files need nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from vit.errors import AttentionError
from vit.inputs import to_float
from vit.interpret.capture import Patch, Query
from vit.interpret.geometry import Geometry, geometry_of
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
            yield self.model.origin.normalize(
                to_float(self.load(numbers.tolist()), self.model.origin.image_size)
            )

    @property
    def hidden(self) -> Tensor:
        """Which patches the mask hides: bool (B, rows, columns)."""
        shape = (len(self.names), *self.geometry.grid_size)
        return (
            torch.zeros(shape, dtype=torch.bool)
            if self.mask is None
            else self.mask.mask.bool().view(shape)
        )

    def with_mask(
        self, ratio: float, seed: int, hidden: Patch | None = None, visible: Patch | None = None
    ) -> Self:
        """Return the same under a random mask.

        Args:
            ratio: share of the patches to hide.
            seed: of the random numbers.
            hidden, visible: a patch to hide or to show in every image.

        Raises:
            AttentionError: there is no such patch, or no patch would be hidden or visible.
        """
        geometry, patches = (
            self.geometry,
            self.geometry.num_tokens - self.geometry.num_prefix_tokens,
        )
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
        distance = (torch.arange(rows)[:, None] - row) ** 2 + (
            torch.arange(columns) - column
        ) ** 2  # (rows, columns)
        nearest = torch.where(allowed, distance, distance.max() + 1).flatten(1).argmin(1)
        return [divmod(number, columns) for number in nearest.tolist()]


def with_files(model: Model, paths: Sequence[str | Path]) -> ModelWithImages:
    """Show a model image files."""
    names = [Path(path).stem for path in paths]
    return ModelWithImages(
        model,
        names,
        "image files",
        lambda numbers: model.origin.read_images([paths[i] for i in numbers]),
        paths=paths,
    )


def model_caption(model: Model) -> str:
    """Return one line about a loaded model."""
    config, data = model.encoder.config, model.origin.data
    patch = " x ".join(map(str, dict.fromkeys(config.patch_size)))
    shape = (
        f"{config.depth} layers x {config.num_heads} heads, width {config.embed_dim}, patch {patch}"
    )
    return f"{short_name(model.origin.source)}: {shape}{f', trained on {data}' if data else ''}"


def short_name(source: str) -> str:
    """Return a checkpoint's name for a caption: a hub's full name, or the last part of a path; for a snapshot, its run too."""
    if source.startswith(("timm/", "hf/")):
        return source
    path = Path(source).resolve()
    in_run = path.parent.name in ("snapshots", "checkpoints")
    return f"{path.parent.parent.name}, {path.stem}" if in_run else path.name
