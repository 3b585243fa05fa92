"""What a loaded model carries: where it came from, how to prepare its input, and what became of each tensor."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vit.checkpoints.names import Shape
from vit.checkpoints.reading import Source
from vit.config import ViTConfig
from vit.data.augment import Normalization, cut_to_shape, resize_to_float
from vit.data.decode import Preparation, decode
from vit.data.images import DataError, UnreadableImage
from vit.errors import one_line

if TYPE_CHECKING:
    from torchvision.transforms.v2 import Transform

    from vit.checkpoints.formats import Format, Hints

INTERPOLATIONS = ("bicubic", "bilinear")


@dataclass
class Report:
    """What became of every tensor of a checkpoint, and what was assumed.

    Attributes:
        used: their names -> ours, as they are.
        converted: our name -> (their names, what was done): rearranged, resized, folded.
        dropped: their name -> the reason.
        missing: our name -> its shape: not in the file, so untrained.
        unexpected: their names that are unknown.
        notes: what was assumed or changed, for the user.
        problems: why the checkpoint cannot be loaded; empty if it can.
    """

    used: dict[str, str] = field(default_factory=dict)
    converted: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    missing: dict[str, Shape] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a table: used tensors are counted, all others named (with similar blocks together)."""
        reasons = {why: [name for name in self.dropped if self.dropped[name] == why] for why in self.dropped.values()}
        lines = [f"{'used as they are':<18} {_tensors(len(self.used))}"]
        for title, tensors, details in (
            ("converted", self.converted, [f"{', '.join(a)} -> {b}: {how}" for b, (a, how) in self.converted.items()]),
            ("dropped", self.dropped, [f"{first_few(names)}: {why}" for why, names in reasons.items()]),
            ("missing, untrained", self.missing, [f"{name} ({size_text(s)})" for name, s in self.missing.items()]),
            ("unexpected", self.unexpected, self.unexpected),
        ):
            if tensors:
                lines.append(f"{title:<18} {_tensors(len(tensors))}")
                lines += [f"    {one_line(line)}" for line in _ranges(details)]
        lines += [f"note: {one_line(note)}" for note in self.notes]
        return "\n".join([*lines, *(f"cannot be loaded: {one_line(problem)}" for problem in self.problems)])


@dataclass(frozen=True)
class Origin:
    """Where a model came from and how to prepare its input: the `origin` of every model from `load_model`.

    Attributes:
        source: the requested name or path.
        format: the file's format.
        normalize: normalises the input: uint8 images from 0 to 255, or floats from 0 to 1.
        interpolation: how images are resized: "bicubic" or "bilinear".
        crop_share: the share that the model takes of each side of an image's centred part: the part is resized so that the
            model's size is this share of it, rounded down to whole pixels as in timm.
        image_size: (H, W) of the input.
        channels: C of the input.
        class_names: of the head, or of the training data; empty if unknown.
        data: name of the training data; "" if unknown.
        data_content_hash: `vit.data.Dataset.content_hash` of the training and test images; "" if unknown.
        report: what became of each tensor.
        details: the checkpoint's whole config.json.
    """

    source: str
    format: str
    normalize: Normalization
    interpolation: str
    crop_share: float
    image_size: tuple[int, int]
    channels: int
    class_names: tuple[str, ...]
    data: str
    data_content_hash: str
    report: Report
    details: dict[str, Any]

    @classmethod
    def of(cls, source: Source, format: Format, hints: Hints, encoder: ViTConfig, report: Report) -> Origin:
        """Return what the options or settings say, else what is usual for the format."""
        # how the input was normalised
        mean, std = hints.mean or format.mean, hints.std or format.std
        if len(mean) != encoder.channels:
            what = f"are for {len(mean)} channels, converted to {encoder.channels}"
            report.notes.append(f"mean and deviation of its input {what}")

        # how it was resized
        interpolation = hints.interpolation or format.interpolation
        if interpolation not in INTERPOLATIONS:
            taken = f"which is not supported; assuming {format.interpolation}"
            report.notes.append(f"its settings resize images by {interpolation!r}, {taken}")
            interpolation = format.interpolation
        hashed = source.other | source.config  # data_stamp: in saved states, and in config.json before
        return cls(
            source=str(source.path),
            format=format.name,
            normalize=Normalization(_per_channel(mean, encoder.channels), _per_channel(std, encoder.channels)),
            interpolation=interpolation,
            crop_share=hints.crop_share or format.crop_share,
            image_size=encoder.image_size,
            channels=encoder.channels,
            class_names=hints.class_names if encoder.num_classes in (0, len(hints.class_names)) else (),
            data=str(source.config.get("data") or source.other.get("data", "")),
            data_content_hash=str(hashed.get("data_content_hash") or hashed.get("data_stamp", "")),
            report=report,
            details=source.config,
        )

    @property
    def problem_type(self) -> str:
        """What the head tells, as transformers calls it, if not one of several classes: e.g. multi_label_classification."""
        kind = str(self.details.get("problem_type") or "")
        return "" if kind == "single_label_classification" else kind

    def was_tested_on(self, content_hash: str) -> bool:
        """Return whether the images with this hash (of `vit.data.ImageSet`) are those that its training held out."""
        return self.data_content_hash.rpartition("-")[2] == content_hash

    @property
    def prepared(self) -> Preparation:
        """How pictures become the model's pixels."""
        height = self.image_size[0]
        return Preparation(self.interpolation, height / math.floor(height / self.crop_share + 1e-6))

    def read_images(self, paths: Sequence[str | Path]) -> Tensor:
        """Read image files as the model's input before `normalize`: cropped, resized, and in its channels.

        Args:
            paths: of JPEG, PNG and other common formats; see `vit.data.decode`.

        Returns:
            uint8 (B, C, H, W).

        Raises:
            UnreadableImage: a file is not an image, damaged or too large.
            DataError: the model takes neither colour nor grey images.
        """
        pictures = []
        for path in paths:
            content = decode(str(path), self.image_size, self.prepared)
            if isinstance(content, str):
                raise UnreadableImage(f"{path}: {content}; remove it, or save it again as JPEG or PNG")
            pictures.append(torch.frombuffer(bytearray(content), dtype=torch.uint8).view(3, *self.image_size))
        return self._in_channels(torch.stack(pictures))

    def fit(self, images: Tensor, whole: bool = False) -> Tensor:
        """Crop and resize a data set's images for the model.

        Args:
            images: uint8 (B, 3, h, w).
            whole: ignore `crop_share`, for images that are cropped already.

        Returns:
            uint8 (B, C, H, W).

        Raises:
            DataError: the model takes neither colour nor grey images.
        """
        images, size = cut_to_shape(self._in_channels(images), self.image_size), self._resized(whole)
        if images.shape[-2:] != size:
            from torchvision.transforms import InterpolationMode  # takes seconds to import
            from torchvision.transforms.v2.functional import resize

            images = resize(images, list(size), InterpolationMode(self.interpolation), antialias=True)
        return self._crop(images)

    def inputs(self, images: Tensor, whole: bool = False) -> Tensor:
        """Turn a data set's images into the model's input, as in training, without the additional rounding of `fit`.

        Args:
            images, whole: as for `fit`.

        Returns:
            float32 (B, C, H, W).

        Raises:
            DataError: as for `fit`.
        """
        images = cut_to_shape(self._in_channels(images), self.image_size)
        return self.normalize(self._crop(resize_to_float(images, self._resized(whole), self.interpolation)))

    @property
    def transform(self) -> Transform:
        """A torchvision v2 transform that does all of this, for a Dataset or a v2.Compose.

        PIL images of any mode and orientation become the model's input float32 (C, H, W), just as their files do by
        `read_images` and `normalize` (a large JPEG within rounding, because fewer pixels of its file are decoded); uint8
        tensors (..., 3, h, w) or (..., 1, h, w) become (..., C, H, W), just as by `inputs`.

        Raises:
            DataError: (when called) other tensors, or the model takes neither colour nor grey images.
        """
        from vit.checkpoints.transform import ModelTransform  # torchvision's transforms take seconds to import

        return ModelTransform(self)

    def _resized(self, whole: bool) -> tuple[int, int]:
        """Return the size before cropping."""
        height, width = (round(size / (1 if whole else self.prepared.crop_share)) for size in self.image_size)
        return height, width

    def _crop(self, images: Tensor) -> Tensor:
        """Crop the centre of images (B, C, h, w) to the model's size."""
        (height, width), (h, w) = self.image_size, images.shape[-2:]
        top, left = round((h - height) / 2), round((w - width) / 2)
        return images[..., top : top + height, left : left + width]

    def _in_channels(self, images: Tensor) -> Tensor:
        if self.channels not in (1, 3):
            raise DataError(f"this model takes {self.channels} channels; image files have three, or one")
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            shape = " x ".join(map(str, images.shape))
            raise DataError(f"images are uint8, B x 3 x height x width or B x 1 x ..., got {images.dtype}, {shape}")
        if self.channels == 3:
            return images.expand(-1, 3, -1, -1)
        from torchvision.transforms.v2.functional import rgb_to_grayscale  # takes seconds to import

        return rgb_to_grayscale(images)


def _per_channel(values: Sequence[float], channels: int) -> list[float]:
    """Adapt a mean or standard deviation to the number of channels: averaged for one, repeated for more."""
    if channels == 1 and len(values) > 1:
        return [sum(values) / len(values)]
    return [values[i % len(values)] for i in range(channels)]


def _ranges(lines: list[str]) -> list[str]:
    """Join lines that differ only in the numbers within their names: blocks.0-11.attn.qkv.weight."""
    number = re.compile(r"(?<=\.)\d+(?=\.)")
    groups: dict[str, list[list[int]]] = {}
    for line in lines:
        groups.setdefault(number.sub("#", line), []).append([int(found) for found in number.findall(line)])
    result = []
    for text, found in groups.items():
        for column in zip(*found, strict=True):
            low, high = min(column), max(column)
            text = text.replace("#", str(low) if low == high else f"{low}-{high}", 1)
        result.append(text)
    return result


def first_few(names: list[str]) -> str:
    """Return at most four names as a part of a sentence."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _tensors(count: int) -> str:
    return f"{count} tensor{'' if count == 1 else 's'}"


def size_text(value: Any) -> str:
    """Return a size as 16 x 16, anything else as it is."""
    if isinstance(value, tuple | list):
        return " x ".join(map(str, value)) or "of a single number"
    return str(value)
