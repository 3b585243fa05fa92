"""Pictures from anywhere as images of one size, decoded once into a memory-mapped file.

The file is an .npy: the pixels, uint8 (N, 3, h, w), in the order of the pictures. After them, where
NumPy does not look, comes a JSON record: the pictures' key, labels and sizes, which of them were
skipped, the content hash, and a hash of each image. The images never need to fit in memory: the
system reads a batch's rows from disk, and drops them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.lib import format as npy

from vit.atomic import make_folder, replacing
from vit.data import HASHED, ImageSet, content_hash, image_hash
from vit.data.images import evenly_spaced
from vit.errors import DataError, one_line
from vit.inputs import OWN, Preparation
from vit.isolation import without_warnings
from vit.progress import track

DETAIL = 2
"""Images are kept at up to this many times the model's input size: random crops, which enlarge,
then keep detail."""
MEASURED = 1000
"""Pictures, spread evenly, whose sizes are read to choose the size of the images."""
NAMED_CLASSES = 12
"""Most classes for which a note counts the images of each."""
CACHE_LAYOUT = 6
"""Increase it when the pixels made from a picture, or what a cache holds, change."""
AT_ONCE = 256
"""Decoded images that may wait in memory to be written."""

logger = logging.getLogger(__name__)

Size = tuple[int, int]
"""(width, height) of a picture, or (h, w) of images."""
Decoded = tuple[bytes | str, int]
"""A picture's pixels, uint8 (3, h, w), or the reason why it has none; and its label, or -1."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Pictures(Generic[Item]):
    """The pictures of a split, not decoded yet, and a source's functions that read one of them.

    Attributes:
        split: "train" or "test", for messages.
        items: one for each picture: a file, or a row of a data set.
        key: identifies the items and all else that shapes the images; "" if unknown: then the
            images are decoded into a file without a name, which ends with the process.
        decode: item, (h, w) -> its pixels and label.
        measure: item -> (width, height) of its picture; None if unreadable.
        name_of: item -> its name in messages.
        threads: how many decode at once; 0: the caller's thread alone does.
    """

    split: str
    items: Sequence[Item]
    key: str
    decode: Callable[[Item, Size], Decoded]
    measure: Callable[[Item], Size | None]
    name_of: Callable[[Item], str]
    threads: int = 0


class Cached(NamedTuple):
    """A split's images, without class names, mapped from the cache; and what its pictures are like.

    `sizes` are (width, height) of the smallest, the median and the largest picture.
    """

    images: ImageSet
    sizes: list[list[int]]


def cached(
    path: Path, pictures: Pictures[Any], image_size: Size, size: Size | None, on_bad_image: str
) -> Cached:
    """Return pictures as images, mapped from the file `path`, which is made if missing or outdated.

    Args:
        path: the cache file.
        pictures: what is in it.
        image_size: (H, W) of the model's input.
        size: (h, w) of the images; None: up to `DETAIL` times `image_size`, if half of the pictures
            have that detail.
        on_bad_image: at an unreadable picture, "stop" and name it, or "skip" it.

    Raises:
        DataError: a picture cannot be read, or the cache cannot be written.
    """
    try:
        make_folder(path.parent)
        # nobody would know these again
        if not pictures.key:
            with tempfile.TemporaryFile(dir=path.parent) as out:
                return _make(out, pictures, image_size, size, on_bad_image)

        result = _read(path, pictures)
        if result is None or (result.images.skipped and on_bad_image == "stop"):
            with replacing(path) as unfinished, unfinished.open("wb+") as out:
                result = _make(out, pictures, image_size, size, on_bad_image)
        return result
    except OSError as error:
        reason = error.strerror or error
        problem = f"cannot hold the cache ({reason})"
        raise DataError(f"{path.parent}: {problem}; set data.cache, or HOME") from error


def cache_path(
    folder: Path, origin: str, split: str, image_size: Size, prepared: Preparation
) -> Path:
    """Return a readable file name, unique to origin (folder or name), split, size, preparation."""
    # a folder is the same by any of its names
    place = origin
    if os.path.exists(origin):
        place = os.path.realpath(origin)
    identity = (
        (place, split, image_size) if prepared == OWN else (place, split, image_size, prepared)
    )
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(place).name)[:40]
    return folder / f"{stem}-{split}-{image_size[0]}x{image_size[1]}-{digest}.npy"


def _read(path: Path, pictures: Pictures[Any]) -> Cached | None:
    """Return what a cache holds; None if there is none, or it holds other pictures."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            pixels = _map(file)
            file.seek(pixels.offset + pixels.nbytes)
            record = json.loads(file.read())
        if record["key"] != pictures.key:
            return None
        result = _from_record(pixels, record, pictures)
        # to hash the pixels of a large cache would take too long
        if pixels.nbytes <= HASHED:
            actual = content_hash(result.images.images, result.images.labels)
            if actual != record["content_hash"]:
                raise ValueError("its pixels are not what was written")
        return result
    except Exception as error:
        # NumPy raises nearly anything on damaged bytes
        reason = one_line(str(error))
        logger.warning("%s: this cache is damaged (%s) and is being rebuilt", path, reason)
        return None


def _make(
    out: IO[bytes],
    pictures: Pictures[Any],
    image_size: Size,
    size: Size | None,
    on_bad_image: str,
) -> Cached:
    """Decode pictures into a file, as a stream: a full disk would kill one who writes to a map."""
    sizes = _measure(pictures, image_size)
    if size is None:
        # the median picture decides, and no image is enlarged beyond the input
        detail = max(1.0, min(DETAIL, _detail(sizes[1], image_size)))
        size = round(image_size[0] * detail), round(image_size[1] * detail)
    # NumPy's header has room for the number of images to change
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(pictures.items), 3, *size)}
    npy.write_array_header_1_0(out, header)

    # the pixels, in the order of the items; at an error, whatever decodes ends
    labels: list[int] = []
    hashes: list[int] = []
    skipped: list[int] = []
    problem = ""
    count = len(pictures.items)
    with closing(_decoded(pictures, size)) as decoding:
        progress = track(decoding, f"decoding {pictures.split}", count, " images")
        for number, (pixels, label) in enumerate(progress):
            if isinstance(pixels, bytes):
                out.write(pixels)
                labels.append(label)
                hashes.append(image_hash(pixels))
                continue
            name = pictures.name_of(pictures.items[number])
            problem = one_line(f"{name}: not a readable image ({pixels})")
            if on_bad_image == "stop":
                advice = "remove it, or set data.on_bad_image: skip to leave out all such files"
                raise DataError(f"{problem}; {advice}")
            logger.warning("%s, left out", problem)
            skipped.append(number)
    if not labels:
        unreadable = f"none of the {len(skipped)} {pictures.split} images can be read"
        raise DataError(f"{unreadable}, e.g. {problem}")

    # only now is the number of readable images known
    out.seek(0)
    npy.write_array_header_1_0(out, header | {"shape": (len(labels), 3, *size)})
    out.seek(0)
    mapped = _map(out)
    record = {
        "key": pictures.key,
        "content_hash": content_hash(torch.from_numpy(mapped), torch.tensor(labels)),
        "labels": labels,
        "image_hashes": hashes,
        "skipped": skipped,
        "sizes": sizes,
    }
    out.seek(0, os.SEEK_END)
    out.write(json.dumps(record).encode())
    out.flush()
    return _from_record(mapped, record, pictures)


def _decoded(pictures: Pictures[Any], size: Size) -> Generator[Decoded]:
    """Yield pixels and label of each picture, in order, decoded in threads.

    Pillow works outside of Python's lock: for 3,000 photos, one thread takes 2.7 s, two 1.4 s, and
    two processes also 1.4 s; but processes would import torch and run the main module again.
    """

    def decode(item: Any) -> Decoded:
        return pictures.decode(item, size)

    # Pillow's warnings name no file
    with without_warnings(), ExitStack() as ending:
        apply: Callable[..., Iterable[Decoded]] = map
        if pictures.threads:
            pool = ThreadPoolExecutor(pictures.threads)
            ending.callback(pool.shutdown, cancel_futures=True)
            apply = pool.map
        # a pool starts all its tasks at once, so it gets only some items at a time
        for start in range(0, len(pictures.items), AT_ONCE):
            yield from apply(decode, pictures.items[start : start + AT_ONCE])


def _measure(pictures: Pictures[Any], image_size: Size) -> list[list[int]]:
    """Return the (width, height) of the smallest, the median and the largest of the pictures."""
    sizes = []
    # Pillow's warnings name no file
    with without_warnings():
        for number in evenly_spaced(len(pictures.items), MEASURED).tolist():
            size = pictures.measure(pictures.items[number])
            if size is not None:
                sizes.append(size)
    if not sizes:
        return [[0, 0]] * 3
    sizes.sort(key=lambda size: (_detail(size, image_size), math.prod(size)))
    return [list(sizes[0]), list(sizes[len(sizes) // 2]), list(sizes[-1])]


def _detail(size: Sequence[int], image_size: Size) -> float:
    """Return how many times larger than the model's input a picture is, cropped to its shape."""
    return min(size[0] / image_size[1], size[1] / image_size[0])


def _from_record(pixels: np.ndarray, record: dict[str, Any], pictures: Pictures[Any]) -> Cached:
    """Return the pixels, uint8 (N, 3, h, w), with what the record says of them."""
    skipped = tuple(pictures.name_of(pictures.items[number]) for number in record["skipped"])
    hashes = torch.tensor(record["image_hashes"], dtype=torch.int64)
    labels = torch.tensor(record["labels"], dtype=torch.int64)
    # torch warns of read-only pixels, but nobody writes to them
    with without_warnings():
        images = torch.from_numpy(pixels)
    identity = record["content_hash"]
    return Cached(
        ImageSet(images, labels, (), identity, skipped, known_hashes=hashes), record["sizes"]
    )


def _map(file: IO[bytes]) -> np.memmap:
    """Map the array of an .npy file into memory; writes to it stay in this process."""
    npy.read_magic(file)
    shape, _, dtype = npy.read_array_header_1_0(file)
    start = file.tell()
    try:
        return np.memmap(file, dtype, "c", start, shape)
    except OSError:
        # Linux refuses a writable copy larger than its memory
        return np.memmap(file, dtype, "r", start, shape)


def describe(
    train: ImageSet, test: ImageSet, sizes: list[list[int]], image_size: Size
) -> list[str]:
    """Return a line on the images of each class, and one on the sizes of the training images.

    Args:
        train, test: with class names.
        sizes: of `Cached`, of the training images.
        image_size: (H, W) of the model's input.
    """
    notes = []
    names = train.class_names
    if names:
        counts = []
        for split in (train, test):
            counts.append(torch.bincount(split.labels, minlength=len(names)).tolist())
        if len(names) > NAMED_CLASSES:
            ranges = " + ".join(f"{min(values):,} to {max(values):,}" for values in counts)
            notes.append(f"{len(names)} classes, each of {ranges} training + test images")
        else:
            rows = [f"{name} {a:,} + {b:,}" for name, a, b in zip(names, *counts, strict=True)]
            notes.append(f"training + test images of each class: {', '.join(rows)}")

    # where random crops are taken from images that are larger than the input
    smallest, median, largest = (f"{width} x {height}" for width, height in sizes)
    height, width = train.images.shape[-2:]
    notes.append(
        f"training images of smallest {smallest}, median {median}, largest {largest} pixels, kept "
        f"at {width} x {height}; the model's input is {image_size[1]} x {image_size[0]}"
    )
    return notes
