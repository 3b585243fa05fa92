"""Image files as a page shows them: with the pixels that a screen has room for, or the model's."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from vit.inputs import decode, size_of
from vit.weights import Origin

PHOTO = 512
"""Pixels of a photograph's longer side: all that a screen shows."""


def photo_of(path: str | Path, origin: Origin, longest: int = PHOTO) -> bytes:
    """Return the crop of an image file that the model takes, with more pixels, as a JPEG.

    Args:
        path: of the file.
        origin: of the model.
        longest: the most pixels of its longer side.

    Returns:
        the JPEG; empty if the crop has no more pixels than the model's input, or is unreadable.
    """
    width, height = size_of(str(path)) or (0, 0)
    rows, columns = origin.image_size

    # How many times more pixels the crop has than the input, as far as a screen shows them
    share = origin.prepared.crop_share
    scale = min(longest / max(rows, columns), share * width / columns, share * height / rows)
    if scale <= 1:
        return b""
    size = (round(scale * rows), round(scale * columns))
    content = decode(str(path), size, origin.prepared)
    if isinstance(content, str):
        return b""

    pixels = np.frombuffer(content, np.uint8).reshape(3, *size).transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, format="jpeg", quality=85)
    return file.getvalue()


def png_of_input(path: str | Path, origin: Origin) -> bytes:
    """Return an image file as the model takes it, pixel by pixel, as a PNG."""
    pixels = origin.read_images([path])[0]  # (C, H, W)
    colours = pixels.expand(3, -1, -1).permute(1, 2, 0)  # grey is three equal channels
    file = io.BytesIO()
    Image.fromarray(colours.numpy()).save(file, format="png")
    return file.getvalue()
