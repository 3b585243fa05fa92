"""Read an image file as RGB pixels."""

from __future__ import annotations

import os
from dataclasses import dataclass

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

# Pillow goes by the content, not by the name: without this list it would hand PostScript named .png to Ghostscript.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF")


@dataclass(frozen=True)
class Preparation:
    """How a picture becomes a model's pixels; by default, as this package trains its own.

    Attributes:
        interpolation: of resizing, "bicubic" or "bilinear".
        crop_share: of each side of the largest centred part with the input's shape; the rest is cut off.
    """

    interpolation: str = "bicubic"
    crop_share: float = 1.0


OWN = Preparation()


def decode(path: str, image_size: tuple[int, int], prepared: Preparation = OWN) -> bytes | str:
    """Return the pixels of an image file, uint8 (3, H, W) for `image_size` = (H, W), or a few words on why it has none.

    EXIF orientation is applied; transparency is laid on white; 16-bit grey is scaled to 8 bits; of an animation the
    first frame counts. Of the largest centred part with the shape of `image_size`, what `prepared` keeps is resized to it,
    antialiased; where that is the whole, an image that has the size already is left as it is, to the bit.
    """
    if not os.path.isfile(path):  # opening a pipe would wait for ever
        return "not a file"
    try:
        with Image.open(path, formats=FORMATS) as image:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and image.width * image.height > limit:  # Pillow refuses only twice as many
                return f"{image.width} x {image.height} pixels, more than {limit:,}"
            # A large JPEG is decoded at a half, a quarter or an eighth, never below twice the pixels needed.
            scale = 2 * max(image_size) / (min(image.size) * prepared.crop_share)
            if scale < 1:
                image.draft(None, (int(image.width * scale), int(image.height * scale)))
            return planes(image, image_size, prepared)
    except UnidentifiedImageError:
        return "its content is no image"  # Pillow's own words repeat the path
    except Exception as error:  # on damaged bytes Pillow raises nearly anything; whatever it is, the image is bad
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def planes(image: Image.Image, image_size: tuple[int, int], prepared: Preparation = OWN) -> bytes:
    """Return a picture as the pixels, uint8 (3, H, W), that `fit_picture` makes of it."""
    return b"".join(channel.tobytes() for channel in fit_picture(image, image_size, prepared).split())


def fit_picture(image: Image.Image, image_size: tuple[int, int], prepared: Preparation = OWN) -> Image.Image:
    """Return a picture upright, in mode RGB, cut and resized to `image_size` = (H, W); all of it as `decode` says.

    Raises:
        ValueError: grey values whose white is unknown.
    """
    upright = _rgb(ImageOps.exif_transpose(image))
    border = (1 - prepared.crop_share) / 2  # on each side; what is left is cut to the shape
    return ImageOps.fit(upright, image_size[::-1], Image.Resampling[prepared.interpolation.upper()], border)


def size_of(path: str) -> tuple[int, int] | None:
    """Return the (width, height) of an image file, upright, from its header; None where it cannot be read."""
    if not os.path.isfile(path):
        return None
    try:
        with Image.open(path, formats=FORMATS) as image:
            return upright_size(image)
    except Exception:  # as in `decode`, which says what is wrong with it
        return None


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Return the (width, height) of a picture after its EXIF orientation."""
    return image.size[::-1] if image.getexif().get(ExifTags.Base.Orientation, 1) > 4 else image.size


def _rgb(image: Image.Image) -> Image.Image:
    """Convert to mode RGB. Pillow's own conversion would clip 16 bits and uncover what transparency hides."""
    if image.mode.startswith("I"):
        image = image.convert("I")
        darkest, brightest = image.getextrema()
        if not 0 <= darkest <= brightest <= 65535:  # type: ignore[operator]  # one band: two numbers
            raise ValueError("grey values of more than 16 bits, their white is unknown")
        return image.point(lambda value: value * (1 / 257) + 0.5).convert("RGB")
    if image.mode == "F":
        raise ValueError("fractional grey values, their white is unknown")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
