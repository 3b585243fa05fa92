"""Image files of a command line: which ones, their features, and pictures of them for a page."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vit.checkpoints import Origin
from vit.data.folder import list_files, readable
from vit.data.images import evenly_spaced
from vit.errors import ConfigError, DataError, one_line
from vit.inputs import decode, size_of
from vit.look.predict import embed
from vit.look.subject import short_name
from vit.mae import Model
from vit.progress import track

BATCH = 64
"""Images at a time: read, and shown to the model."""
PHOTO = 512
"""Pixels of a photograph's longer side: all that a screen shows."""
PHOTO_SIDE = 128
"""From this side in pixels on, an image shows what a photograph does."""
MUCH_LARGER = 3
"""From this many times the input's sides on, an image loses most of what it shows."""
LARGE_MODEL = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
"""A small classifier of photographs."""
MEASURED = 16
"""Images whose sizes are read, of many."""
NAMED = 10
"""Most classes that a note names."""


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
        chosen = list(compress(chosen, readable(chosen)))
    return chosen


def note_small_input(model: Model, paths: Sequence[str | Path]) -> None:
    """Say on stderr that a model shrinks photographs to a few pixels, and which models do not.

    Args:
        model: from `load_model`.
        paths: the images that it is shown; some of them are measured.
    """
    rows, columns = model.origin.image_size
    if max(rows, columns) >= PHOTO_SIDE:
        return

    # Whether an image is much larger, by the sizes of some of them
    for number in evenly_spaced(len(paths), MEASURED).tolist():
        width, height = size_of(str(paths[number])) or (0, 0)
        is_photo = min(width, height) >= PHOTO_SIDE
        if is_photo and min(width / columns, height / rows) >= MUCH_LARGER:
            break
    else:
        return

    # A classifier also names one of its classes whatever an image shows
    image = os.path.basename(paths[number])
    note = f"{short_name(model.origin.source)} sees {columns} x {rows} pixels ({image} has"
    note += f" {width} x {height})"
    classes = model.encoder.config.num_classes
    if classes:
        note += f" and chooses among {classes} classes, whatever an image shows"
        if 0 < len(model.origin.class_names) <= NAMED:
            note += f": {', '.join(model.origin.class_names)}"
    advice = f"for photographs, name a model of 224 x 224, as {LARGE_MODEL}, or train one with"
    advice += " --model.image_size 224 --model.patch_size 16"
    print(f"note: {one_line(note)}; {advice}", file=sys.stderr)


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
