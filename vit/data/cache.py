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
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from vit.atomic import PARTIAL, lock, make_folder, replacing
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
"""Pictures, spread evenly, whose sizes are read for a note and to choose the size of the images."""

NAMED_CLASSES = 12
"""Most classes for which a note counts the images of each."""

CACHE_LAYOUT = 6
"""Increase it when the pixels made from a picture, or what a cache holds, change."""

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
        measure: item -> what `vit.inputs.measure` says of its picture; None if unreadable.
        name_of: item -> its name in messages.
        parallel: applies a function to every item, and yields the results in their order.
    """

    split: str
    items: Sequence[Item]
    key: str
    decode: Callable[[Item, Size], Decoded]
    measure: Callable[[Item], tuple[Size, int] | None]
    name_of: Callable[[Item], str]
    parallel: Callable[[Callable[[Item], Decoded], Sequence[Item]], Generator[Decoded]]


class Cached(NamedTuple):
    """A split's images, without class names, and what its pictures are like.

    Attributes:
        images: mapped from the cache.
        sizes: (width, height) of the smallest, the median and the largest picture.
        brightest_grey: the largest value in pictures of 16-bit grey; 0 if there are none.
    """

    images: ImageSet
    sizes: list[list[int]]
    brightest_grey: int


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
        DataError: a picture cannot be read, `path` is no file, or the cache cannot be written.
    """
    try:
        # Pictures without a key would not be recognised: their file has no name, so that the
        # system removes it when the process ends
        if not pictures.key:
            make_folder(path.parent)
            with tempfile.TemporaryFile(dir=path.parent) as out:
                return _make(out, pictures, image_size, size, on_bad_image)

        # The cache of an earlier run, if there is one. To open a pipe would wait forever, and a
        # link may lead to anything.
        if path.is_symlink() or (path.exists() and not path.is_file()):
            problem = "where the cache belongs, there is something else than a file"
            raise DataError(one_line(f"{path}: {problem}; remove it, or set data.cache"))

        # It is used unless it lacks pictures at which this run is to stop
        result = _read(path, pictures, image_size, size)
        if result is not None and (on_bad_image == "skip" or not result.images.skipped):
            return result

        # Make it; if anything fails, the old file at `path` stays. The new one is locked until it
        # has its name, so that another process does not remove it as abandoned. The space of
        # abandoned ones is freed first.
        _remove_abandoned(path.parent)
        make_folder(path.parent)
        with ExitStack() as files, replacing(path) as unfinished:
            out = files.enter_context(unfinished.open("wb+"))
            lock(out, wait=True)
            result = _make(out, pictures, image_size, size, on_bad_image)
            out.flush()

        # another process that made the same cache at the same time may have been killed
        _remove_abandoned(path.parent)
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
    identity: tuple[Any, ...] = (place, split, image_size)
    if prepared != OWN:
        identity = (*identity, prepared)
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(place).name)[:40]
    return folder / f"{stem}-{split}-{image_size[0]}x{image_size[1]}-{digest}.npy"


# --- the size of the images ----------------------------------------------------------------------


def _measure(pictures: Pictures[Any], image_size: Size) -> tuple[list[list[int]], int]:
    """Return the (width, height) of the smallest, the median and the largest of the pictures, and
    the largest value of those of 16-bit grey, or 0."""
    sizes = []
    brightest = 0
    # Pillow's warnings name no file
    with without_warnings():
        for number in evenly_spaced(len(pictures.items), MEASURED).tolist():
            measured = pictures.measure(pictures.items[number])
            if measured is not None:
                size, value = measured
                sizes.append(size)
                brightest = max(brightest, value)
    if not sizes:
        return [[0, 0]] * 3, 0
    sizes.sort(key=lambda size: (_detail(size, image_size), math.prod(size)))
    return [list(sizes[0]), list(sizes[len(sizes) // 2]), list(sizes[-1])], brightest


def _detail(size: Sequence[int], image_size: Size) -> float:
    """Return how many times larger than the model's input a picture is, cropped to its shape."""
    return min(size[0] / image_size[1], size[1] / image_size[0])


def _size_to_keep(median: Sequence[int], image_size: Size) -> Size:
    """Return the (h, w) of the images, given the (width, height) of the median picture."""
    detail = max(1.0, min(DETAIL, _detail(median, image_size)))
    return round(image_size[0] * detail), round(image_size[1] * detail)


# --- the file ------------------------------------------------------------------------------------


def _read(
    path: Path, pictures: Pictures[Any], image_size: Size, size: Size | None
) -> Cached | None:
    """Return what a cache holds; None if there is none, or it holds other pictures."""
    try:
        with path.open("rb") as file:
            pixels = _map(file)
            file.seek(pixels.offset + pixels.nbytes)
            record = json.loads(file.read())
        if record.get("key") != pictures.key:
            return None

        # The record and the pixels must agree, because either may be damaged
        labels = record["labels"]
        skipped = record["skipped"]
        sizes = record["sizes"]
        brightest_grey = int(record["brightest_grey"])
        hashes = torch.tensor(record["image_hashes"], dtype=torch.int64)
        shape = (len(labels), 3, *(size or _size_to_keep(sizes[1], image_size)))
        complete = len(labels) + len(skipped) == len(pictures.items)
        complete = complete and len(hashes) == len(labels)
        if pixels.dtype != np.uint8 or pixels.shape != shape or not complete:
            raise ValueError(f"{pixels.dtype} {pixels.shape}, {len(labels)} labels")

        # To hash the pixels of a large cache would take too long
        images_hash = ""
        if pixels.nbytes > HASHED:
            images_hash = record["content_hash"]
        images = _image_set(pixels, labels, hashes, _names(pictures, skipped), images_hash)
        if images.content_hash != record["content_hash"]:
            raise ValueError("its pixels are not what was written")
        return Cached(images, sizes, brightest_grey)
    except FileNotFoundError:
        return None
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
    """Decode pictures into a file, as a stream.

    A full disk would kill a process that writes to a memory map.
    """
    count = len(pictures.items)
    sizes, brightest_grey = _measure(pictures, image_size)
    height, width = size or _size_to_keep(sizes[1], image_size)
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, 3, height, width)}
    npy.write_array_header_1_0(out, header)
    # _remove_abandoned spares an empty file, which may be about to be locked; this one is locked
    out.flush()

    # The pixels, in the order of the items; at an error, whatever decodes ends
    decoding = pictures.parallel(
        lambda item: pictures.decode(item, (height, width)), pictures.items
    )
    with closing(decoding):
        progress = track(decoding, f"decoding {pictures.split}", count, " images")
        labels, hashes, skipped = _write_pixels(out, progress, pictures, on_bad_image)

    # Only now is the number of readable images known; NumPy's header has room for it to change
    header["shape"] = (len(labels), 3, height, width)
    out.seek(0)
    npy.write_array_header_1_0(out, header)
    out.seek(0)
    image_hashes = torch.tensor(hashes, dtype=torch.int64)
    images = _image_set(_map(out), labels, image_hashes, _names(pictures, skipped))

    # The record, after the pixels
    record = {
        "key": pictures.key,
        "content_hash": images.content_hash,
        "labels": labels,
        "image_hashes": hashes,
        "skipped": skipped,
        "sizes": sizes,
        "brightest_grey": brightest_grey,
    }
    out.seek(0, os.SEEK_END)
    out.write(json.dumps(record).encode())
    return Cached(images, sizes, brightest_grey)


def _write_pixels(
    out: IO[bytes], decoded: Iterable[Decoded], pictures: Pictures[Any], on_bad_image: str
) -> tuple[list[int], list[int], list[int]]:
    """Write the pixels of decoded pictures.

    Returns:
        The labels and the image hashes of those that could be read, and the numbers of the others.
    """
    labels: list[int] = []
    hashes: list[int] = []
    skipped: list[int] = []
    problem = ""
    for number, (pixels, label) in enumerate(decoded):
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
    return labels, hashes, skipped


def _names(pictures: Pictures[Any], numbers: Sequence[int]) -> list[str]:
    """Return the names of some of the pictures."""
    return [pictures.name_of(pictures.items[number]) for number in numbers]


def _image_set(
    pixels: np.ndarray,
    labels: list[int],
    hashes: Tensor,
    skipped: list[str],
    images_hash: str = "",
) -> ImageSet:
    """Return pixels and labels as an ImageSet.

    Args:
        pixels: uint8 (N, 3, h, w).
        labels: N integers.
        hashes: int64 (N,), of each image.
        skipped: names of the pictures left out.
        images_hash: the content hash; "": to be computed.
    """
    # torch warns of read-only pixels, but nobody writes to them
    with without_warnings():
        images = torch.from_numpy(pixels)
    numbers = torch.tensor(labels, dtype=torch.int64)
    if not images_hash:
        images_hash = content_hash(images, numbers)
    return ImageSet(images, numbers, (), images_hash, tuple(skipped), known_hashes=hashes)


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


def _remove_abandoned(folder: Path) -> None:
    """Remove the unfinished files of killed processes, whose locks nobody holds any more."""
    # there are no such locks
    if sys.platform == "win32":
        return
    for path in folder.glob(f"{PARTIAL}*.npy"):
        # OSError: the file is locked, has its final name by now, or is not ours to remove
        with suppress(OSError), path.open("rb+") as file:
            # an empty file may be about to be locked
            if lock(file) and os.fstat(file.fileno()).st_size:
                path.unlink()


# --- notes for the user --------------------------------------------------------------------------


def describe(train: ImageSet, test: ImageSet, pictures: Cached, image_size: Size) -> list[str]:
    """Return a line on the images of each class, one on the sizes of the training images, and one
    on their greys if few of these are used.

    Args:
        train, test: with class names.
        pictures: of the training images.
        image_size: (H, W) of the model's input.
    """
    notes = [*_count_classes(train, test), _describe_sizes(train, pictures.sizes, image_size)]
    brightest = pictures.brightest_grey
    if 0 < brightest < 2**15:
        bits = brightest.bit_length()
        levels = round(brightest / 257) + 1
        notes.append(
            f"16-bit grey pictures of at most {brightest:,}, where white is 65,535: they are dark, "
            f"in {levels} of 256 greys; if they have {bits} bits, multiply them by "
            f"{2 ** (16 - bits)}"
        )
    return notes


def _count_classes(train: ImageSet, test: ImageSet) -> list[str]:
    """Return a note on the number of images per class; none if there are no classes."""
    names = train.class_names
    if not names:
        return []
    train_counts = torch.bincount(train.labels, minlength=len(names)).tolist()
    test_counts = torch.bincount(test.labels, minlength=len(names)).tolist()
    if len(names) > NAMED_CLASSES:
        smallest = f"{min(train_counts):,}, {min(test_counts):,}"
        largest = f"{max(train_counts):,}, {max(test_counts):,}"
        counts = f"{smallest} and {largest} training, test images"
        return [f"{len(names)} classes; the smallest and the largest have {counts}"]
    counts = ", ".join(
        f"{name} {train_count:,} + {test_count:,}"
        for name, train_count, test_count in zip(names, train_counts, test_counts, strict=True)
    )
    return [f"training + test images of each class: {counts}"]


def _describe_sizes(train: ImageSet, sizes: list[list[int]], image_size: Size) -> str:
    """Return a note on the sizes of the pictures, and the (h, w) at which the images are kept."""
    smallest, median, largest = (f"{width} x {height}" for width, height in sizes)
    measured = f"smallest {smallest}, median {median}, largest {largest} pixels"
    height, width = train.images.shape[-2:]
    crops = ""
    if (height, width) != image_size:
        crops = ", where random crops are taken"
    return (
        f"training images of {measured}, kept at {width} x {height}{crops}; "
        f"the model's input is {image_size[1]} x {image_size[0]}"
    )
