"""How a picture becomes a model's input: decoded, cropped, resized, normalised; for training, loading and looking.

From a file: `decode`. From a data set's tensors: `to_float`. Both are what `ModelInputs` does for a loaded model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from vit.errors import DataError, UnreadableImage

INTERPOLATIONS = ("bicubic", "bilinear")

# ---- From a file -----------------------------------------------------------------------------------------------------

# Pillow goes by content, not by name: without this list, it would pass PostScript named .png to Ghostscript.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF")


@dataclass(frozen=True)
class Preparation:
    """How a picture becomes a model's pixels; by default, as for this package's own models.

    Attributes:
        interpolation: "bicubic" or "bilinear", for resizing.
        crop_share: the share to keep of each side of the largest centred part with the input's aspect ratio.
    """

    interpolation: str = "bicubic"
    crop_share: float = 1.0


OWN = Preparation()


def decode(path: str, image_size: tuple[int, int], prepared: Preparation = OWN) -> bytes | str:
    """Return the pixels of an image file, uint8 (3, H, W) for `image_size` = (H, W), or a few words on why it has none.

    EXIF orientation is applied; transparency becomes white; 16-bit grey is scaled to 8 bits; an animation gives its first
    frame. The image is cropped to its largest centred part with the aspect ratio of `image_size`, then by `crop_share`, and
    resized with antialiasing; if nothing is cropped, an image that already has the size keeps its pixels to the bit.
    """
    if not os.path.isfile(path):  # opening a pipe would wait forever
        return "not a file"
    try:
        with Image.open(path, formats=FORMATS) as image:
            limit = Image.MAX_IMAGE_PIXELS
            if (
                limit is not None and image.width * image.height > limit
            ):  # Pillow refuses only twice as many
                return f"{image.width} x {image.height} pixels, more than {limit:,}"
            # decode a large JPEG at a half, a quarter or an eighth, but at no less than twice the size needed
            scale = 2 * max(image_size) / (min(image.size) * prepared.crop_share)
            if scale < 1:
                image.draft(None, (int(image.width * scale), int(image.height * scale)))
            return planes(image, image_size, prepared)
    except UnidentifiedImageError:
        return "its content is not an image"  # Pillow's own words repeat the path
    except (
        Exception
    ) as error:  # Pillow raises nearly anything on damaged bytes; whatever it is, the image is bad
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def planes(image: Image.Image, image_size: tuple[int, int], prepared: Preparation = OWN) -> bytes:
    """Return a picture's pixels after `fit_picture`: uint8 (3, H, W)."""
    return b"".join(
        channel.tobytes() for channel in fit_picture(image, image_size, prepared).split()
    )


def fit_picture(
    image: Image.Image, image_size: tuple[int, int], prepared: Preparation = OWN
) -> Image.Image:
    """Return a picture upright, in mode RGB, cropped and resized to `image_size` = (H, W) as `decode` describes.

    Raises:
        ValueError: its grey values have no known white.
    """
    upright = _rgb(ImageOps.exif_transpose(image))
    border = (
        1 - prepared.crop_share
    ) / 2  # cut from each side, before the crop to the aspect ratio
    return ImageOps.fit(
        upright, image_size[::-1], Image.Resampling[prepared.interpolation.upper()], border
    )


def size_of(path: str) -> tuple[int, int] | None:
    """Return the upright (width, height) of an image file from its header; None if it cannot be read."""
    if not os.path.isfile(path):
        return None
    try:
        with Image.open(path, formats=FORMATS) as image:
            return upright_size(image)
    except Exception:  # `decode` will say what is wrong
        return None


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Return the (width, height) of a picture after its EXIF orientation."""
    return image.size[::-1] if image.getexif().get(ExifTags.Base.Orientation, 1) > 4 else image.size


def _rgb(image: Image.Image) -> Image.Image:
    """Convert to mode RGB; Pillow's own conversion would clip 16 bits and reveal what transparency hides."""
    if image.mode.startswith("I"):
        image = image.convert("I")
        darkest, brightest = image.getextrema()
        if not 0 <= darkest <= brightest <= 65535:  # type: ignore[operator]  # one band: two numbers
            raise ValueError("grey values of more than 16 bits, whose white level is unknown")
        return image.point(lambda value: value * (1 / 257) + 0.5).convert("RGB")
    if image.mode == "F":
        raise ValueError("fractional grey values, whose white level is unknown")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


# ---- From tensors ----------------------------------------------------------------------------------------------------


def to_float(images: Tensor, image_size: tuple[int, int], interpolation: str = "bicubic") -> Tensor:
    """Turn uint8 (B, C, h, w) into float32 (B, C, H, W) from 0 to 1, cropped to that shape and resized if the size differs.

    This prepares every image of a data set, in training and evaluation. `interpolation` is "bicubic" or "bilinear", with
    antialiasing.
    """
    return resize_to_float(cut_to_shape(images, image_size), image_size, interpolation)


def resize_to_float(images: Tensor, image_size: tuple[int, int], interpolation: str) -> Tensor:
    """Turn uint8 (B, C, h, w) of the shape of `image_size` into float32 (B, C, H, W) from 0 to 1, resized."""
    images = images.float() / 255
    if images.shape[-2:] != image_size:
        images = F.interpolate(
            images, image_size, mode=interpolation, antialias=True, align_corners=False
        ).clamp(0, 1)
    return images


def cut_to_shape(images: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Return the largest centred part of images (..., h, w) with the aspect ratio of `image_size`."""
    (height, width), (h, w) = image_size, images.shape[-2:]
    part = min(h / height, w / width)
    cut = max(1, round(height * part)), max(1, round(width * part))
    top, left = round((h - cut[0]) / 2), round((w - cut[1]) / 2)
    return images[..., top : top + cut[0], left : left + cut[1]]


class Images(Protocol):
    """Images uint8 (N, C, H, W) that need not fit in memory: a tensor, or `vit.data.Rows`."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def device(self) -> torch.device: ...

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: int | slice | Tensor, /) -> Tensor: ...


class Normalization:
    """The model's input is (image - mean) / std, with images from 0 to 1.

    Args:
        mean: one number per channel.
        std: one positive number per channel.
    """

    def __init__(self, mean: list[float], std: list[float]):
        self.mean = mean
        self.std = std
        self._columns: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    @classmethod
    def of(cls, images: Images, most: int = 10_000) -> Normalization:
        """Measure it on uint8 images (N, C, H, W), using at most `most` of them, spread evenly."""
        counts = torch.zeros(
            images.shape[1], 256, dtype=torch.float64
        )  # how often each channel has each value
        few = max(
            2**22 // (images.shape[-2] * images.shape[-1]), 1
        )  # images at a time: each pixel takes 8 bytes
        most = min(len(images), most)
        chosen = torch.arange(most) * len(images) // most
        for part in chosen.split(few):
            for channel, values in enumerate(images[part].unbind(1)):
                counts[channel] += torch.bincount(values.flatten(), minlength=256)
        values = torch.arange(256, dtype=torch.float64) / 255
        total = counts.sum(1, keepdim=True)
        mean = (counts * values).sum(1, keepdim=True) / total
        variance = (counts * (values - mean).square()).sum(1, keepdim=True) / (total - 1)
        # avoid dividing a constant channel by 0
        return cls(mean.flatten().tolist(), variance.sqrt().clamp(min=1e-3).flatten().tolist())

    def __call__(self, images: Tensor) -> Tensor:
        """Turn images (B, C, H, W) into the model's input: uint8 from 0 to 255, or floats from 0 to 1.

        Raises:
            ValueError: other numbers; on the CPU, also floats far outside 0 to 1 (on a GPU, checking would have to wait).
        """
        if images.dtype == torch.uint8:
            images = images.float() / 255
        elif not images.is_floating_point():
            raise ValueError(
                f"images are uint8 from 0 to 255, or floats from 0 to 1; got {images.dtype}"
            )
        elif images.device.type == "cpu" and images.numel():
            low, high = (value.item() for value in images.aminmax())
            if (
                low < -0.5 or high > 1.5
            ):  # resizing overshoots less than that at edges; nan is left to the model
                raise ValueError(
                    f"float images must be from 0 to 1, got {low:.3g} to {high:.3g}; divide by 255?"
                )
        mean, std = self._statistics(images)
        return images.sub(mean).div_(std)

    def invert(self, inputs: Tensor) -> Tensor:
        """Turn the model's input (B, C, H, W) back into images."""
        mean, std = self._statistics(inputs)
        return inputs * std + mean

    def _statistics(self, like: Tensor) -> Tensor:
        key = (like.device, like.dtype)
        if (
            key not in self._columns
        ):  # kept, because sending them at each step would make a GPU wait
            self._columns[key] = torch.tensor(
                [self.mean, self.std], dtype=like.dtype, device=like.device
            )
        return self._columns[key][:, :, None, None]  # (2, C, 1, 1)


# ---- For one model ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """How one model's input is made.

    Attributes:
        normalize: normalises the input: uint8 images from 0 to 255, or floats from 0 to 1.
        interpolation: how images are resized: "bicubic" or "bilinear".
        crop_share: the share that the model takes of each side of an image's centred part: the part is resized so that the
            model's size is this share of it, rounded down to whole pixels as in timm.
        image_size: (H, W) of the input.
        channels: C of the input.
    """

    normalize: Normalization
    interpolation: str
    crop_share: float
    image_size: tuple[int, int]
    channels: int

    @property
    def prepared(self) -> Preparation:
        """How pictures become the model's pixels."""
        height = self.image_size[0]
        return Preparation(self.interpolation, height / math.floor(height / self.crop_share + 1e-6))

    def read_images(self, paths: Sequence[str | Path]) -> Tensor:
        """Read image files as the model's input before `normalize`: cropped, resized, and in its channels.

        Args:
            paths: of JPEG, PNG and other common formats; see `decode`.

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
                raise UnreadableImage(
                    f"{path}: {content}; remove it, or save it again as JPEG or PNG"
                )
            pictures.append(
                torch.frombuffer(bytearray(content), dtype=torch.uint8).view(3, *self.image_size)
            )
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
        images, size = (
            cut_to_shape(self._in_channels(images), self.image_size),
            self._resized(whole),
        )
        if images.shape[-2:] != size:
            from torchvision.transforms import InterpolationMode  # takes seconds to import
            from torchvision.transforms.v2.functional import resize

            images = resize(
                images, list(size), InterpolationMode(self.interpolation), antialias=True
            )
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
        return self.normalize(
            self._crop(resize_to_float(images, self._resized(whole), self.interpolation))
        )

    def _resized(self, whole: bool) -> tuple[int, int]:
        """Return the size before cropping."""
        height, width = (
            round(size / (1 if whole else self.prepared.crop_share)) for size in self.image_size
        )
        return height, width

    def _crop(self, images: Tensor) -> Tensor:
        """Crop the centre of images (B, C, h, w) to the model's size."""
        (height, width), (h, w) = self.image_size, images.shape[-2:]
        top, left = round((h - height) / 2), round((w - width) / 2)
        return images[..., top : top + height, left : left + width]

    def _in_channels(self, images: Tensor) -> Tensor:
        if self.channels not in (1, 3):
            raise DataError(
                f"this model takes {self.channels} channels; image files have three, or one"
            )
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            shape = " x ".join(map(str, images.shape))
            raise DataError(
                f"images are uint8, B x 3 x height x width or B x 1 x ..., got {images.dtype}, {shape}"
            )
        if self.channels == 3:
            return images.expand(-1, 3, -1, -1)
        from torchvision.transforms.v2.functional import rgb_to_grayscale  # takes seconds to import

        return rgb_to_grayscale(images)
