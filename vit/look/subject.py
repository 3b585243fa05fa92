"""Images for a model, prepared as in its training, and the model with them.

Letters: B batch, C channels, H x W pixels.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor

from vit.errors import plural
from vit.inputs import Picture, as_seen, fit_picture, opened
from vit.interpret.capture import Patch, Query
from vit.interpret.geometry import Geometry, geometry_of
from vit.mae import Model
from vit.masking import Mask, mask_from_noise, num_keep
from vit.patches import grid_distances
from vit.progress import track
from vit.weights import Origin

# The most tokens in a batch, and attention weights of one layer; more would only take memory
MAX_TOKENS = 8192
MAX_WEIGHTS = 8 << 20
# Pixels of a photograph's longer side on a page: all that a screen shows
PHOTO = 512


@dataclass(frozen=True)
class Collection:
    """Images, of which files are read when they are needed.

    Attributes:
        images: files, or uint8 (B, 3, h, w) of any size: what `vit.embed` takes.
        files: each one's name: its path as given, or within a folder; in a data set its split and
            number, "test/00007".
        title: what they are, for a caption.
        splits: of each image "train" or "test"; "" if it has none.
        labels: of each image an index into `class_names`; -1 if it has none.
        class_names: of all of them, in order.
    """

    images: Sequence[str | Path] | Tensor
    files: list[str]
    title: str
    splits: list[str]
    labels: list[int]
    class_names: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """What to write beside each image: its class, or else its file without the suffix."""
        return [
            self.class_names[label] if label >= 0 else Path(file).stem
            for file, label in zip(self.files, self.labels, strict=True)
        ]


@dataclass
class ModelWithImages:
    """A model, and images that are read when needed.

    Attributes:
        model: as `load_model` returns it.
        collection: the images.
        mask: the patches that the encoder does not see, moved to the model's device; None for whole
            images.
        query: the token whose attention is shown.
        to_fill: the masked patch of each image that the decoder is to reconstruct; None without
            one.
    """

    model: Model
    collection: Collection
    mask: Mask | None = None
    query: Query = "mean"
    to_fill: list[Patch] | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is, and with it its inputs and its maps."""
        return next(self.model.parameters()).device

    @property
    def names(self) -> list[str]:
        """What to write beside each image."""
        return self.collection.names

    # --- The images, at each step of their preparation ---

    @cached_property
    def pixels(self) -> Tensor:
        """All images, uint8 (B, C, H, W)."""
        images = self.collection.images
        if isinstance(images, Tensor):
            return self.model.origin.fit(images)
        return self.model.origin.read_images(images)

    @cached_property
    def images(self) -> Tensor:
        """All images, float32 (B, C, H, W) from 0 to 1."""
        return self.pixels / 255

    @cached_property
    def inputs(self) -> Tensor:
        """All images, normalised: the model's input, on its device."""
        return self.model.origin.normalize(self.pixels.to(self.device))

    @property
    def batch_size(self) -> int:
        """Images per batch, so that memory stays flat."""
        tokens = self.geometry.num_tokens
        weights = self.model.encoder.config.num_heads * tokens**2
        return max(1, min(MAX_TOKENS // tokens, MAX_WEIGHTS // weights))

    def batches(self) -> Iterator[Tensor]:
        """Yield the model's input in batches (b, C, H, W) on its device, each read when needed."""
        return inputs_of(self.model, self.collection.images, self.batch_size)

    # --- The patches ---

    @property
    def geometry(self) -> Geometry:
        """The layout of the encoder's tokens."""
        return geometry_of(self.model)

    @property
    def masked(self) -> Tensor:
        """Which patches are masked: bool (B, rows, columns), on the CPU."""
        assert self.mask is not None
        return self.mask.mask.bool().unflatten(1, self.geometry.grid_size).cpu()

    def with_mask(
        self, ratio: float, seed: int, patch: Patch | None = None, masked: bool = False
    ) -> Self:
        """Return the same model and images under a random mask.

        Args:
            ratio: fraction of the patches to mask.
            seed: of the random numbers.
            patch: one that is visible in every image.
            masked: whether it is masked in every image instead.
        """
        geometry = self.geometry
        count = geometry.num_patches
        generator = torch.Generator().manual_seed(seed)
        noise = torch.rand(len(self.names), count, generator=generator)

        # The patches with the least noise stay visible; noise is from 0 to 1
        if patch is not None:
            number = geometry.token(patch) - geometry.num_prefix_tokens
            noise[:, number] = 2.0 if masked else -1.0
        mask = mask_from_noise(noise, num_keep(count, ratio))
        return replace(self, mask=mask.to(self.device))

    def middle_patches(self, allowed: Tensor) -> list[Patch]:
        """Return per image the allowed patch nearest to the middle of the grid.

        Args:
            allowed: bool (B, rows, columns), True for at least one patch of each image.
        """
        grid_size = self.geometry.grid_size
        distances = grid_distances(grid_size, allowed.device).unflatten(0, grid_size)

        # Others are further away than any; of patches at the same distance, the first is taken
        candidates = torch.where(allowed.flatten(1), distances[self.geometry.middle], math.inf)
        _, columns = grid_size
        return [divmod(number, columns) for number in candidates.argmin(1).tolist()]

    def fill_in(self) -> Tensor:
        """Return the images with their masked patches reconstructed: float32 (B, C, H, W)."""
        # reconstruction imports modules that a map does not need
        from vit.evaluation.reconstruction import reconstruct

        assert self.mask is not None
        model: Any = self.model  # one with a decoder
        return reconstruct(model, self.pixels, self.mask)

    # --- The query, and words for captions ---

    @property
    def query_patch(self) -> Patch | list[Patch] | None:
        """The query patch to outline; None if the query is no patch."""
        # Class token, registers and the mean over patches have no place in the image
        if isinstance(self.query, str):
            return None
        return self.query

    @property
    def query_name(self) -> str:
        """The query token in words."""
        query = self.query
        if isinstance(query, list):
            return "the outlined patch"
        if isinstance(query, tuple):
            return f"the patch in row {query[0]}, column {query[1]}"
        words = {"cls": "the class token", "mean": "the average patch"}
        return words.get(query, query)

    @property
    def caption(self) -> str:
        """A line on the model and the images."""
        return f"{model_caption(self.model)} · {self.collection.title}"

    @property
    def mask_caption(self) -> str:
        """How many patches of each image are masked."""
        masked = self.masked[0]
        return f"{int(masked.sum())} of {masked.numel()} patches masked"


def inputs_of(
    model: Model, images: Tensor | Picture | Sequence[Picture], batch_size: int
) -> Iterator[Tensor]:
    """Yield images as a model's input (b, C, H, W), batch by batch, each read when needed."""
    # How images are prepared is part of what `load_model` returns
    origin = model.origin
    assert origin is not None, "load the model with vit.load_model"
    if isinstance(images, Picture):
        images = [images]

    # The input follows the model's device and precision
    parameter = next(model.encoder.parameters())
    starts: Iterable[int] = range(0, len(images), batch_size)
    if len(images) > batch_size:
        starts = track(starts, "images", unit=" batches")
    for start in starts:
        batch = images[start : start + batch_size]
        if isinstance(batch, Tensor):
            inputs = origin.inputs(batch.to(parameter.device))
        else:
            inputs = origin.normalize(origin.read_images(batch))
        yield inputs.to(parameter.device, parameter.dtype)


# --- Image files, as a page shows them ---


def photo_of(path: str | Path, origin: Origin, longest: int = PHOTO) -> bytes:
    """Return the crop of an image file that the model takes, with more pixels, as a JPEG.

    Args:
        path: of the file.
        origin: of the model.
        longest: the most pixels of its longer side.

    Returns:
        the JPEG; empty if the crop has no more pixels than the model's input.
    """
    with opened(path) as image:
        upright = as_seen(image)
    width, height = upright.size
    rows, columns = origin.image_size

    # How many times more pixels the crop has than the input, as far as a screen shows them
    share = origin.prepared.crop_share
    scale = min(longest / max(rows, columns), share * width / columns, share * height / rows)
    if scale <= 1:
        return b""
    size = (round(scale * rows), round(scale * columns))
    file = io.BytesIO()
    fit_picture(upright, size, origin.prepared).save(file, format="jpeg", quality=85)
    return file.getvalue()


def png_of_input(path: str | Path, origin: Origin) -> bytes:
    """Return an image file as the model takes it, pixel by pixel, as a PNG."""
    pixels = origin.read_images([path])[0]  # (C, H, W)
    colours = pixels.expand(3, -1, -1).permute(1, 2, 0)  # grey is three equal channels
    file = io.BytesIO()
    Image.fromarray(colours.numpy()).save(file, format="png")
    return file.getvalue()


# --- Words ---


def class_names_of(model: Model) -> Sequence[str]:
    """Return the names of a classifier's classes, or "class 0", ...: a checkpoint may lack them."""
    count = model.encoder.config.num_classes
    return model.origin.class_names or [f"class {number}" for number in range(count)]


def model_caption(model: Model) -> str:
    """Return one line about a loaded model: its source, its size, its training data."""
    config = model.encoder.config
    patch = " x ".join(map(str, dict.fromkeys(config.patch_size)))  # 4, or 4 x 2
    # The sizes in which models commonly differ
    size = f"{plural(config.depth, 'layer')} x {plural(config.num_heads, 'head')}"
    caption = f"{short_name(model.origin.source)}: {size}"
    caption += f", width {config.embed_dim}, patch {patch}"
    if model.origin.data:
        caption += f", trained on {model.origin.data}"
    return caption


def short_name(source: str) -> str:
    """Return a checkpoint's name for a caption.

    It is a hub's full name, or the last part of a path; for a run's snapshot, "run, snapshot".
    """
    if source.startswith(("timm/", "hf/")):
        return source
    # A snapshot is only called "step-20", so its run is named too
    path = Path(source).resolve()
    if path.parent.name in ("snapshots", "checkpoints"):
        return f"{path.parent.parent.name}, {path.stem}"
    return path.name
