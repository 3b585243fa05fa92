"""Images from any source, decoded once, at one size, into a memory-mapped file.

The file is an .npy: the pixels, uint8 (N, 3, h, w), in the order of the source. After them, where
NumPy does not read, stands a JSON record: the key of the source images, and the other fields of an
`ImageSet`. The images need not fit in memory: the system reads a batch's rows from disk, and drops
them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, suppress
from pathlib import Path
from statistics import median_high

import numpy as np
import torch
from numpy.lib import format as npy

from vit.atomic import make_folder, replacing
from vit.data import ImageSet, content_hash
from vit.data.images import spread
from vit.errors import DataError, one_line
from vit.inputs import OWN, Preparation, whole_pictures
from vit.progress import track

DETAIL = 2
"""Images are kept at up to this many times the model's input size: random crops, which enlarge,
then keep detail."""
MEASURED = 1000
"""Number of evenly spaced source images whose sizes are read to choose the stored size."""
CACHE_LAYOUT = 11
"""Increase it when the pixels made from an image, or the contents of a cache, change."""

logger = logging.getLogger(__name__)

Size = tuple[int, int]
"""(width, height) of a source image, or (h, w) of stored images."""
Decoded = tuple[str, tuple[bytes, int, str] | str, int]
"""An image's name; its pixels, uint8 (3, h, w), its hash and a remark or "", or why it has none;
its label, or -1."""


def cached(
    path: Path,
    shaping: object,
    count: int,
    size_of: Callable[[int], Size],
    decode: Callable[[Size], Generator[Decoded]],
    image_size: Size,
    size: Size | None,
    on_bad_image: str,
) -> ImageSet:
    """Return images without class names, mapped from a file that is made if necessary.

    Args:
        path: the cache file.
        shaping: what determines the pixels, beside the size: the source images, and how they are
            decoded; None if unknown: then the file has no name, and is gone with its images.
        count: number of source images.
        size_of: number of a source image -> its size, or an error; asked only if `size` is to be
            chosen.
        decode: (h, w) -> all images, in order. Its remarks become notes, with the number of images.
        image_size: (H, W) of the model's input.
        size: (h, w) of the images; None: up to `DETAIL` times the input, if half of the source
            images have that, and no image is enlarged beyond the input.
        on_bad_image: at an unreadable image, "stop" and name it, or "skip" it.
    """
    key = hashlib.sha256(repr((CACHE_LAYOUT, image_size, size, shaping)).encode()).hexdigest()
    make_folder(path.parent)
    if shaping is None:
        # these could not be recognised again
        path = path.with_name(f"{secrets.token_hex(8)}.npy")
    elif path.is_file():
        try:
            known_key, images = _read(path)
            if known_key == key and not (images.skipped and on_bad_image == "stop"):
                return images
        except (ValueError, TypeError, EOFError):
            # NumPy's and JSON's error on damaged bytes; torch's on the record of another version
            logger.warning("%s: this cache cannot be used and is being rebuilt", path)

    if size is None:
        height, width = image_size
        # how many times larger than the input each source image is, cropped to its shape
        details = []
        for number in spread(count, MEASURED).tolist():
            # what is wrong with an image is reported when it is decoded
            with suppress(Exception):
                side = size_of(number)
                details.append(min(side[0] / width, side[1] / height))
        scale = max(1.0, min(DETAIL, median_high(details or [1.0])))
        size = (round(height * scale), round(width * scale))
    # the decoder ends, also at an error; Pillow's warnings name no file
    with (
        replacing(path) as unfinished,
        closing(decode(size)) as decoded,
        warnings.catch_warnings(action="ignore"),
        whole_pictures(),
    ):
        _write(unfinished, key, count, decoded, size, on_bad_image)
    _, images = _read(path)
    if shaping is None:
        # the map keeps the content
        path.unlink()
    return images


def cache_path(
    folder: Path, origin: str, split: str, image_size: Size, prepared: Preparation = OWN
) -> Path:
    """Return a readable file name, unique to origin (folder or name), split, size, preparation."""
    identity = (origin, split, image_size, prepared)
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(origin).name)[:40]
    return folder / f"{stem}-{split}-{image_size[0]}x{image_size[1]}-{digest}.npy"


def times_of(path: str) -> tuple[int, ...]:
    """Return values that change when a file is written, moved or replaced; () if there is none."""
    if not os.path.exists(path):
        return ()
    info = os.stat(path)
    # unlike mtime, nobody can set ctime back
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _write(
    path: Path,
    key: str,
    count: int,
    decoded: Iterable[Decoded],
    size: Size,
    on_bad_image: str,
) -> None:
    """Write pixels as a stream, because a full disk would kill a process that writes to a map."""
    labels: list[int] = []
    hashes: list[int] = []
    skipped: list[str] = []
    remarks: Counter[str] = Counter()
    with path.open("wb") as file:
        # NumPy's header has room for another number of images
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, 3, *size)}
        npy.write_array_header_1_0(file, header)
        for name, content, label in track(decoded, "decoding", count, " images"):
            if isinstance(content, tuple):
                pixels, image_hash, remark = content
                file.write(pixels)
                labels.append(label)
                hashes.append(image_hash)
                remarks[remark] += 1
                continue
            problem = one_line(f"{name}: not a readable image ({content})")
            if on_bad_image == "stop":
                raise DataError(f"{problem}; remove it, or set data.on_bad_image: skip")
            logger.warning("%s, left out", problem)
            skipped.append(name)
        if not labels:
            raise DataError(f"none of the {count} images can be read")
        # only now is the number of readable images known
        file.seek(0)
        npy.write_array_header_1_0(file, header | {"shape": (len(labels), 3, *size)})
    identity = content_hash(torch.from_numpy(np.load(path, "r")), torch.tensor(labels))
    notes = [f"{remark}: {count:,}" for remark, count in remarks.items() if remark]
    with path.open("ab") as file:
        file.write(json.dumps([key, labels, identity, skipped, notes, hashes]).encode())


def _read(path: Path) -> tuple[str, ImageSet]:
    """Return the key and the images of a cache, mapped into memory; writes stay private."""
    try:
        pixels = np.load(path, "c")
    except OSError:
        # Linux refuses a writable copy larger than its memory
        pixels = np.load(path, "r")
    with path.open("rb") as file:
        file.seek(pixels.offset + pixels.nbytes)
        key, labels, identity, skipped, notes, hashes = json.loads(file.read())
    # torch warns of read-only pixels, but nothing writes to them
    with warnings.catch_warnings(action="ignore"):
        images = torch.from_numpy(pixels)
    return key, ImageSet(
        images,
        torch.tensor(labels),
        (),
        identity,
        torch.tensor(hashes),
        tuple(skipped),
        tuple(notes),
    )
