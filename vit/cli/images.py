"""Image files of a command line: which ones, their features, and pictures of them for a page."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vit.data.folder import choose_readable, list_files
from vit.errors import ConfigError, DataError
from vit.inputs import decode, size_of
from vit.look.predict import embed
from vit.mae import Model
from vit.progress import track
from vit.weights import Origin

BATCH = 64
"""Images at a time: read, and shown to the model."""
PHOTO = 512
"""Pixels of a photograph's longer side: all that a screen shows."""


@contextmanager
def naming_the_option() -> Iterator[None]:
    """Add to the message about an unreadable image the option that leaves such files out."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; --on-bad-image skip leaves out all such files") from error


def list_images(names: Sequence[str], on_bad_image: str = "stop") -> list[str]:
    """Return the image files of a command line, those of folders among them, each once.

    Args:
        names: files and folders.
        on_bad_image: "skip" leaves out files that cannot be read, with a warning of each.

    Raises:
        ConfigError: a name is neither a file nor a folder.
        DataError: a folder has no images, or no file can be read.
    """
    # A file may also lie in a folder that is named
    files: dict[str, str] = {}
    for name in names:
        if not os.path.exists(name):
            raise ConfigError(f"images: {name!r} is neither a file nor a folder")
        inside = [name]
        if os.path.isdir(name):
            inside = [str(path) for path in list_files(Path(name))]
        for file in inside:
            folder, base = os.path.split(file)
            files.setdefault(os.path.join(os.path.realpath(folder), base), file)

    chosen = list(files.values())
    if chosen and on_bad_image == "skip":
        chosen = [chosen[number] for number in choose_readable(chosen)]
    return chosen


def pooled_features(model: Model, count: int, read: Callable[[int, int], Any]) -> Tensor:
    """Return the features of images, (N, D); of each batch only the pooled ones stay in memory.

    Args:
        model: on the device to use.
        count: N.
        read: (start, stop) -> what `vit.look.predict.embed` takes.
    """
    batches = []
    for start in track(range(0, count, BATCH), "embedding", unit=" batches"):
        with naming_the_option():
            batches.append(embed(model, read(start, start + BATCH), BATCH).pooled)
    return torch.cat(batches)


# --- For a page ----------------------------------------------------------------------------------


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

    # `decode` returns red, green and blue one after the other
    plane = size[0] * size[1]
    channels = []
    for start in range(0, 3 * plane, plane):
        channels.append(Image.frombytes("L", size[::-1], content[start : start + plane]))
    file = io.BytesIO()
    Image.merge("RGB", channels).save(file, format="jpeg", quality=85)
    return file.getvalue()


def png_of_input(path: str | Path, origin: Origin) -> bytes:
    """Return an image file as the model takes it, pixel by pixel, as a PNG.

    Raises:
        DataError: it cannot be read.
    """
    pixels = origin.read_images([path])[0]  # (C, H, W)
    colours = pixels.expand(3, -1, -1).permute(1, 2, 0)  # grey is three equal channels
    file = io.BytesIO()
    Image.fromarray(colours.numpy()).save(file, format="png")
    return file.getvalue()
