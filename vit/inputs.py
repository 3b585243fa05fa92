"""How an image becomes a model's input: decoded, cropped, resized, normalised.

From a file: `decode`. From a data set's tensors: `to_float`. For a loaded model: `ModelInputs`.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import ExifTags, Image, ImageFile, ImageOps, PngImagePlugin, UnidentifiedImageError
from torch import Tensor

from vit.errors import DataError

INTERPOLATIONS = ("bicubic", "bilinear")

Picture = str | Path | Image.Image
"""An image file, or a PIL image."""

# ---- From a file ---------------------------------------------------------------------------------

# Pillow recognises a file by its content, not its name: without this list, it would pass PostScript
# named .png to Ghostscript.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF")

# Pillow refuses an image whose text or colour profile takes more than 1 MB, which some programs
# write; it still refuses those of 64 MB together.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY

# Pillow's switch as each thread within `whole_pictures` found it
_switches: list[bool] = []
_lock = threading.Lock()

PAGES = "files with more than one page, of which the first is read"


@dataclass(frozen=True)
class Preparation:
    """How an image becomes a model's pixels; by default, as for this package's own models.

    Attributes:
        interpolation: "bicubic" or "bilinear", for resizing.
        crop_share: the share to keep of each side of the largest centred part with the input's
            aspect ratio.
        squash: keep that share of the whole image instead, and change its aspect ratio.
    """

    interpolation: str = "bicubic"
    crop_share: float = 1.0
    squash: bool = False


OWN = Preparation()


def decode(
    picture: Picture,
    image_size: tuple[int, int],
    prepared: Preparation = OWN,
    hashed: bool = True,
) -> tuple[bytes, int, str] | str:
    """Return the pixels of an image, its hash and a remark, or in a few words why it has none.

    EXIF orientation is applied; transparency becomes white; 16-bit grey is scaled to 8 bits; an
    animation gives its first frame. The image is cropped to its largest centred part with the
    aspect ratio of `image_size`, then by `crop_share`, and resized with antialiasing; if nothing is
    cropped, an image that already has the size keeps its pixels to the bit.

    Args:
        picture: the image, or its file.
        image_size: (H, W) of the pixels.
        prepared: how the image is cropped and resized.
        hashed: False leaves the hash at 0; of a large image, it takes as long as the rest.

    Returns:
        uint8 (3, H, W) for `image_size` = (H, W); the `image_hash` of the image before it was
        cropped and resized: at every size the same; and `PAGES` if the file is one of those, else
        "".
    """
    try:
        with opened(picture) as image:
            is_stack = image.format == "TIFF" and getattr(image, "is_animated", False)
            upright = as_seen(image)
            pixels = _planes(fit_picture(upright, image_size, prepared))
            whole_hash = image_hash(_planes(upright)) if hashed else 0
            return pixels, whole_hash, PAGES if is_stack else ""
    except UnidentifiedImageError:
        # Pillow's own message repeats the path
        return "its content is not an image"
    except Exception as error:
        # Pillow raises nearly anything on damaged bytes; whatever the type, the image is bad
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def opened(picture: Picture) -> AbstractContextManager[Image.Image]:
    """Open an image file of one of FORMATS, or give an image as it is."""
    # the caller's stays open
    if isinstance(picture, Image.Image):
        return nullcontext(picture)
    # opening a pipe would wait forever
    if not os.path.isfile(picture):
        raise OSError("not a file")
    return Image.open(picture, formats=FORMATS)


def image_hash(pixels: bytes | memoryview) -> int:
    """Return a hash of an image's pixels, uint8 (C, H, W), from -2**63 to 2**63 - 1."""
    return int.from_bytes(hashlib.sha256(pixels).digest()[:8], signed=True)


@contextmanager
def whole_pictures() -> Iterator[None]:
    """Let Pillow refuse truncated files within the block, in any number of threads at once.

    Other packages make it fill the pixels that a file lacks with grey, in the whole process.
    """
    with _lock:
        _switches.append(ImageFile.LOAD_TRUNCATED_IMAGES)
        ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        yield
    finally:
        # the first thread found the original switch, the others False: the last one out restores it
        with _lock:
            ImageFile.LOAD_TRUNCATED_IMAGES = _switches.pop()


def _planes(image: Image.Image) -> bytes:
    return b"".join(channel.tobytes() for channel in image.split())


def as_seen(image: Image.Image) -> Image.Image:
    """Return an image upright and in RGB, with all its pixels."""
    # Metadata may stand after the pixels; damaged pixels must not pass as damaged metadata
    with whole_pictures():
        image.load()
    picture = _rgb(image)
    # without its other metadata, which may be damaged
    picture.info = {}
    picture.getexif()[ExifTags.Base.Orientation] = _orientation(image)
    ImageOps.exif_transpose(picture, in_place=True)
    return picture


def fit_picture(
    upright: Image.Image, image_size: tuple[int, int], prepared: Preparation
) -> Image.Image:
    """Return an image, from `as_seen`, cropped and resized to (H, W) as `decode` describes."""
    # the share cut from each side, before the crop to the aspect ratio
    border = (1 - prepared.crop_share) / 2
    resampling = Image.Resampling[prepared.interpolation.upper()]
    if prepared.squash:
        width, height = upright.size
        box = (border * width, border * height, width - border * width, height - border * height)
        return upright.resize(image_size[::-1], resampling, box)
    return ImageOps.fit(upright, image_size[::-1], resampling, border)


def size_of(path: str) -> tuple[int, int]:
    """Return the upright (width, height) of an image file from its header."""
    with opened(path) as image:
        return upright_size(image)


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Return the (width, height) of an image after its EXIF orientation."""
    # orientations 5 to 8 exchange the sides; of a TIFF, Pillow has exchanged them itself
    if image.format != "TIFF" and _orientation(image) in (5, 6, 7, 8):
        return image.size[::-1]
    return image.size


def _orientation(image: Image.Image) -> object:
    """Return an image's EXIF orientation, usually from 1 to 8; 1 if its EXIF is damaged."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:
        # Pillow raises nearly anything on damaged metadata; the pixels may still be good
        return 1


def _rgb(image: Image.Image) -> Image.Image:
    """Convert to mode RGB, where Pillow's own conversion would change what is seen."""
    # 16-bit grey, which Pillow would clip at 255
    if image.mode.startswith(("I", "F")):
        grey = image.convert("I")
        darkest, brightest = grey.getextrema()  # for the only band
        if image.mode == "F" or not 0 <= darkest <= brightest <= 65535:  # type: ignore[operator]
            raise ValueError("fractional grey values, or of more than 16 bits: what is white?")
        grey = grey.point(lambda value: value * (1 / 257) + 0.5).convert("L")
        # Pillow turns negatives of up to 8 bits alone
        if getattr(image, "tag_v2", {}).get(ExifTags.Base.PhotometricInterpretation) == 0:
            grey = ImageOps.invert(grey)
        return grey.convert("RGB")
    # transparent pixels also have colours, which Pillow would show
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


# ---- From tensors --------------------------------------------------------------------------------


def to_float(images: Tensor, image_size: tuple[int, int], prepared: Preparation = OWN) -> Tensor:
    """Turn uint8 images into floats of another size: cropped to its shape, then resized.

    This prepares every image of a data set, in training and evaluation, as `decode` prepares files.

    Args:
        images: uint8 (B, C, h, w).
        image_size: (H, W); images of that size are not resized.
        prepared: how; bicubically by default.

    Returns:
        float32 (B, C, H, W) from 0 to 1.
    """
    if not prepared.squash:
        images = cut_to_shape(images, image_size)
    images = images.float() / 255
    # the size before the crop
    height, width = image_size
    size = (round(height / prepared.crop_share), round(width / prepared.crop_share))
    if images.shape[-2:] != size:
        images = F.interpolate(
            images, size, mode=prepared.interpolation, antialias=True, align_corners=False
        )
        # bicubic interpolation overshoots at edges
        images = images.clamp(0, 1)
    return _cut_centre(images, image_size)


def cut_to_shape(images: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Return the largest centred part of images (..., h, w) with the aspect ratio of (H, W)."""
    height, width = image_size
    h, w = images.shape[-2:]
    scale = min(h / height, w / width)
    cut_height = max(1, round(height * scale))
    cut_width = max(1, round(width * scale))
    return _cut_centre(images, (cut_height, cut_width))


def _cut_centre(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the centred part of images (..., h, w) with `size` pixels."""
    height, width = size
    h, w = images.shape[-2:]
    row = round((h - height) / 2)
    column = round((w - width) / 2)
    return images[..., row : row + height, column : column + width]


class Rows:
    """A subset of images that may not fit in memory: rows are copied only when they are read.

    Args:
        images: uint8 (N, C, H, W).
        rows: int64 (M,), which of them.
    """

    def __init__(self, images: Images, rows: Tensor):
        self._images = images
        self._rows = rows
        self.shape: torch.Size = torch.Size((len(rows), *images.shape[1:]))
        self.device: torch.device = images.device

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, numbers: int | slice | Tensor) -> Tensor:
        """Return a copy of some rows."""
        return self._images[self._rows[numbers]]


Images = Tensor | Rows
"""Images uint8 (N, C, H, W) that need not fit in memory."""


def evenly_spaced(count: int, most: int) -> Tensor:
    """Return int64 (M,), M = min(count, most) of `count` indices; all of them if `most` is 0."""
    most = min(count, most or count)
    return torch.arange(most) * count // most


@cache
def constant(
    values: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return a tensor of constants, made once per device and type: making one waits for a GPU."""
    # kept for later calls, which may need gradients
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


@dataclass(frozen=True)
class Normalization:
    """The model's input is (image - mean) / std, with images from 0 to 1.

    Attributes:
        mean: one number per channel.
        std: one positive number per channel.
    """

    mean: list[float]
    std: list[float]

    @classmethod
    def measured_on(cls, images: Images) -> Normalization:
        """Measure it on uint8 images (N, C, H, W), on at most 10,000 of them, evenly spaced."""
        # how often each channel has each of the 256 values; counting makes the result exact
        counts = torch.zeros(images.shape[1], 256, dtype=torch.float64)
        chosen = evenly_spaced(len(images), 10_000)
        # a few images at a time, because each pixel takes 8 bytes here
        at_once = max(2**22 // (images.shape[-2] * images.shape[-1]), 1)
        for part in chosen.split(at_once):
            for channel, pixels in enumerate(images[part].unbind(1)):
                counts[channel] += torch.bincount(pixels.flatten(), minlength=256)

        # mean and unbiased variance of the counted values, all (C, 1)
        values = torch.arange(256, dtype=torch.float64) / 255
        total = counts.sum(1, keepdim=True)
        mean = (counts * values).sum(1, keepdim=True) / total
        variance = (counts * (values - mean).square()).sum(1, keepdim=True) / (total - 1)
        # a constant channel must not be divided by 0
        std = variance.sqrt().clamp(min=1e-3)
        return cls(mean.flatten().tolist(), std.flatten().tolist())

    def __call__(self, images: Tensor) -> Tensor:
        """Turn images into the model's input.

        Args:
            images: (B, C, H, W), uint8 from 0 to 255, or floats from 0 to 1.
        """
        if images.dtype == torch.uint8:
            images = images.float() / 255
        # not on a GPU, which the check would have to wait for
        elif images.device.type == "cpu" and images.numel():
            low, high = (value.item() for value in images.aminmax())
            # resizing overshoots less than that at edges; nan is left for the model to find
            if low < -0.5 or high > 1.5:
                values = f"got {images.dtype} from {low:.3g} to {high:.3g}"
                raise ValueError(
                    f"images are uint8 or floats from 0 to 1, {values}; divide by 255?"
                )
        mean, std = self._statistics(images)
        return images.sub(mean).div_(std)

    def invert(self, inputs: Tensor) -> Tensor:
        """Turn the model's input (B, C, H, W) back into images."""
        mean, std = self._statistics(inputs)
        return inputs * std + mean

    def _statistics(self, images: Tensor) -> Tensor:
        """Return mean and std (2, C, 1, 1), of the images' type and on their device."""
        statistics = constant((*self.mean, *self.std), images.device, images.dtype)
        return statistics.view(2, -1, 1, 1)


# ---- For one model -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ModelInputs(Preparation):
    """How one model's input is made.

    Attributes:
        normalize: normalises the input: uint8 images from 0 to 255, or floats from 0 to 1.
        interpolation: how images are resized: "bicubic" or "bilinear".
        crop_share: the share that the model takes of each side of an image's centred part: the part
            is resized so that the model's size is this share of it, rounded down to whole pixels as
            in timm.
        image_size: (H, W) of the input.
        channels: C of the input.
        squash: the whole image is resized to the model's aspect ratio, not cropped to it.
    """

    normalize: Normalization
    image_size: tuple[int, int]
    channels: int

    @property
    def prepared(self) -> Preparation:
        """How images become the model's pixels."""
        height = self.image_size[0]
        resized = math.floor(height / self.crop_share + 1e-6)
        return Preparation(self.interpolation, height / resized, self.squash)

    def read_images(self, pictures: Sequence[Picture]) -> Tensor:
        """Read images as the model's input before `normalize`, in its size and channels.

        Args:
            pictures: images, or files of JPEG, PNG and other common formats; see `decode`.

        Returns:
            uint8 (B, C, H, W).
        """
        images = []
        for picture in pictures:
            content = decode(picture, self.image_size, self.prepared, hashed=False)
            if isinstance(content, str):
                if isinstance(picture, Image.Image):
                    raise DataError(content)
                advice = "save it again as JPEG or PNG, or leave it out"
                option = "on the command line, with --on-bad-image skip"
                raise DataError(f"{picture}: {content}; {advice} ({option})")
            pixels = torch.frombuffer(bytearray(content[0]), dtype=torch.uint8)
            images.append(pixels.view(3, *self.image_size))
        return self._in_channels(torch.stack(images))

    def fit(self, images: Tensor) -> Tensor:
        """Crop and resize a data set's images for the model; see `inputs`.

        Returns:
            uint8 (B, C, H, W).
        """
        return (255 * self._resize(images)).round().byte()

    def inputs(self, images: Tensor) -> Tensor:
        """Turn a data set's images into the model's input, as in training.

        Unlike `fit`, it does not round pixels to whole numbers.

        Args:
            images: uint8 (B, 3, h, w).

        Returns:
            float32 (B, C, H, W).
        """
        return self.normalize(self._resize(images))

    def _resize(self, images: Tensor) -> Tensor:
        """Crop and resize uint8 (B, 3, h, w) as `inputs` says: float32 (B, C, H, W) from 0 to 1."""
        return to_float(self._in_channels(images), self.image_size, self.prepared)

    def _in_channels(self, images: Tensor) -> Tensor:
        """Turn colour or grey images uint8 (B, 3 or 1, h, w) into the model's (B, C, h, w)."""
        # floats would become black
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            shape = f"{images.dtype}, {tuple(images.shape)}"
            raise DataError(f"images are uint8 (B, 3, H, W) or (B, 1, H, W), got {shape}")
        if self.channels != 1:
            return images.expand(-1, self.channels, -1, -1)
        # torchvision takes seconds to import
        from torchvision.transforms.v2.functional import rgb_to_grayscale

        return rgb_to_grayscale(images)
