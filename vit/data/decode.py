"""Read an image file as RGB pixels."""

from __future__ import annotations

import os
from dataclasses import dataclass

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

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
            if limit is not None and image.width * image.height > limit:  # Pillow refuses only twice as many
                return f"{image.width} x {image.height} pixels, more than {limit:,}"
            # decode a large JPEG at a half, a quarter or an eighth, but at no less than twice the size needed
            scale = 2 * max(image_size) / (min(image.size) * prepared.crop_share)
            if scale < 1:
                image.draft(None, (int(image.width * scale), int(image.height * scale)))
            return planes(image, image_size, prepared)
    except UnidentifiedImageError:
        return "its content is not an image"  # Pillow's own words repeat the path
    except Exception as error:  # Pillow raises nearly anything on damaged bytes; whatever it is, the image is bad
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def planes(image: Image.Image, image_size: tuple[int, int], prepared: Preparation = OWN) -> bytes:
    """Return a picture's pixels after `fit_picture`: uint8 (3, H, W)."""
    return b"".join(channel.tobytes() for channel in fit_picture(image, image_size, prepared).split())


def fit_picture(image: Image.Image, image_size: tuple[int, int], prepared: Preparation = OWN) -> Image.Image:
    """Return a picture upright, in mode RGB, cropped and resized to `image_size` = (H, W) as `decode` describes.

    Raises:
        ValueError: its grey values have no known white.
    """
    upright = _rgb(ImageOps.exif_transpose(image))
    border = (1 - prepared.crop_share) / 2  # cut from each side, before the crop to the aspect ratio
    return ImageOps.fit(upright, image_size[::-1], Image.Resampling[prepared.interpolation.upper()], border)


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
