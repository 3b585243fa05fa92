"""Pictures from anywhere as images of one size, decoded once into a memory-mapped file.

The file is an .npy: the pixels, uint8 (N, 3, h, w), in the order of the pictures. After them, where NumPy does not look,
comes a JSON record: the pictures' key, the content hash, the names of skipped pictures, the pictures' sizes and, in a large
file, each image's checksum. The images never need to fit in memory: the system reads a batch's rows from disk, and drops them.
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
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from vit.atomic import PARTIAL, lock, replacing
from vit.data.images import ImageSet, Rows, content_hash, evenly_spaced
from vit.errors import DataError, one_line
from vit.inputs import OWN, Preparation
from vit.progress import track

DETAIL = 2
"""Images are kept at up to this many times the model's input size, so that random crops, which enlarge, keep detail."""

MEASURED = 1000
"""Pictures, spread evenly, whose sizes are read for a note and to choose the size at which images are kept."""

HASHED = 2**30
"""Largest cache, in bytes, whose pixels are hashed at every start (half a second). In a larger one, each image has a checksum,
compared when the image is first read. Either way, a single flipped bit is found."""

NAMED_CLASSES = 12
"""Most classes for which a note counts the images of each."""

CACHE_LAYOUT = 3
"""Increase it when the pixels made from a picture, or their place in the cache, change."""

logger = logging.getLogger(__name__)


class PictureTypeError(TypeError):
    """Why an item of a data set is no picture, as all its items may be none: then leaving them out leaves none."""


@dataclass(frozen=True)
class Split(ABC):
    """The pictures of a split, not decoded yet, and the size that they will have.

    Attributes:
        origin: the data's folder or name, for messages and the cache's file name.
        name: "train" or "test".
        class_names: the labels' names; empty for pictures without labels.
        image_size: (H, W) of the model's input.
        kept: (h, w) at which the images are kept; None: chosen from their own sizes.
        prepared: how they are cropped and resized. Anything but this package's own way makes a loaded model's input, not
            images to train on; it is kept at the model's size, because resizing it again would blur it.
    """

    origin: str
    name: str
    class_names: tuple[str, ...]
    image_size: tuple[int, int]
    kept: tuple[int, int] | None
    prepared: Preparation

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def key(self) -> str:
        """Identifies the pictures and all else that shapes the images; "" if unknown, which rules out a cache."""

    @abstractmethod
    def name_of(self, number: int) -> str:
        """Return the name of a picture within `origin`."""

    def located(self, name: str) -> str:
        """Return how messages refer to the picture of this name."""
        return one_line(f"{self.origin}: {name}")

    @abstractmethod
    def size_of(self, number: int) -> tuple[int, int] | None:
        """Return the upright (width, height) of a picture; None if it cannot be read."""

    @abstractmethod
    def decoded(self, size: tuple[int, int]) -> Generator[bytes | str | PictureTypeError]:
        """Yield each picture's pixels in order, uint8 (3, h, w) for `size` = (h, w), or the reason why it has none."""

    @abstractmethod
    def labels(self) -> list[int]:
        """Return the label of each picture, -1 for none; called after all are decoded."""

    @property
    def cache_name(self) -> str:
        """A readable file name, unique to origin, split, size and preparation."""
        place = os.path.realpath(self.origin) if os.path.exists(self.origin) else self.origin
        own = (place, self.name, self.image_size)
        key = hashlib.sha256(repr(own if self.prepared == OWN else (*own, self.prepared)).encode()).hexdigest()[:12]
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(place).name)[:40]
        return f"{stem}-{self.name}-{self.image_size[0]}x{self.image_size[1]}-{key}.npy"

    def measured(self) -> list[list[int]]:
        """Return the (width, height) of the smallest, the median and the largest of some pictures, by `detail`, then area."""
        some = evenly_spaced(len(self), MEASURED).tolist()
        with warnings.catch_warnings(action="ignore"):  # Pillow's warnings name no file
            found = sorted(filter(None, map(self.size_of, some)), key=lambda size: (self.detail(size), math.prod(size)))
        return [list(found[i]) for i in (0, len(found) // 2, -1)] if found else [[0, 0]] * 3

    def detail(self, size: Sequence[int]) -> float:
        """Return how many times larger than the model's input a picture of this (width, height) is, cropped to its shape."""
        return min(size[0] / self.image_size[1], size[1] / self.image_size[0])

    def choose_size(self, median: Sequence[int]) -> tuple[int, int]:
        """Return the (h, w) at which to keep images, given the (width, height) of the median one."""
        if self.prepared != OWN:
            return self.image_size
        detail = max(1.0, min(DETAIL, self.detail(median)))
        return round(self.image_size[0] * detail), round(self.image_size[1] * detail)

    def image_set(
        self, pixels: np.ndarray, skipped: list[str], size: tuple[int, int], known_hash: str | None = None
    ) -> ImageSet:
        """Return the images with their labels; the content hash is computed unless known."""
        left_out = set(skipped)
        labels = torch.tensor(
            [x for i, x in enumerate(self.labels()) if not left_out or self.name_of(i) not in left_out]
        )
        if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3, *size):
            raise ValueError(f"{pixels.dtype} {pixels.shape}")
        with warnings.catch_warnings(action="ignore"):  # about read-only pixels: nobody writes to them
            images = torch.from_numpy(pixels)
        known_hash = known_hash or content_hash(images, labels)
        return ImageSet(images, labels, self.class_names, known_hash, tuple(map(self.located, skipped)))


class CheckedRows(Rows):
    """The images of a large cache, each compared with its checksum when it is first read.

    Args:
        images: uint8 (N, 3, h, w), mapped from the file.
        checksums: uint32 (N,), the CRC-32 of each image's bytes.
        path: the file's, for messages.

    Raises:
        ValueError: the numbers of checksums and images differ.
        DataError: on reading, an image does not match its checksum.
    """

    def __init__(self, images: Tensor, checksums: np.ndarray, path: Path):
        if len(checksums) != len(images):
            raise ValueError(f"{len(checksums)} checksums of {len(images)} images")
        super().__init__(images, torch.arange(len(images)))
        self._checksums, self._path = checksums, path
        self._checked = torch.zeros(len(images), dtype=torch.bool)

    def __getitem__(self, numbers: int | slice | Tensor) -> Tensor:
        """Return some of the images, copied."""
        found = super().__getitem__(numbers)
        rows = self._rows[numbers].reshape(-1)
        pixels = found.reshape(-1, *self.shape[1:]).numpy()
        for place in (~self._checked[rows]).nonzero()[:, 0].tolist():
            if zlib.crc32(pixels[place]) != self._checksums[rows[place]]:
                what = (
                    f"image {int(rows[place])} of this cache is not what was written: the disk or the file is damaged"
                )
                raise DataError(f"{self._path}: {what}; delete the file to rebuild it")
        self._checked[rows] = True
        return found


def load_splits(
    train: Split, test: Split, on_bad_image: str, cache: Path, notes: Sequence[str]
) -> tuple[ImageSet, ImageSet]:
    """Return two splits as images, mapped from a cache that is made if missing or outdated.

    Images have the shape of the model's input, and up to `DETAIL` times its size if half of the training pictures have that
    detail: random crops use it, and everything else shrinks the images to the input.

    Args:
        train, test: the pictures.
        on_bad_image: at an unreadable picture, `stop` and name it, or `skip` it and list it in `skipped`.
        cache: folder for the cache files.
        notes: lines to put before the training split's own notes.

    Returns:
        train, test: uint8 images (N, 3, h, w), int64 labels; the notes of `train` say what was found and what is not used.

    Raises:
        DataError: an image cannot be read, or the cache cannot be written.
    """
    first, sizes = _load(train, on_bad_image, cache)
    kept = (first.images.shape[-2], first.images.shape[-1])
    other, _ = _load(replace(test, kept=kept, class_names=first.class_names), on_bad_image, cache)
    notes = [*notes, *_count_classes(first, other), _describe_sizes(sizes, kept, train.image_size)]
    return replace(first, notes=tuple(map(one_line, notes))), other


def _load(split: Split, on_bad_image: str, cache: Path) -> tuple[ImageSet, list[list[int]]]:
    """Return a split's images from its cache, made again if it does not fit, and the sizes from `Split.measured`."""
    try:
        if not split.key:  # use a file without a name, which disappears once nothing maps it
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=cache) as out:
                return _decode(out, split, on_bad_image)
        path = cache / split.cache_name
        cached = _open_cache(path, split)
        if cached is not None and (on_bad_image == "skip" or not cached[0].skipped):
            return cached
        # if anything fails, the old file at `path` stays
        _remove_abandoned(cache)  # first, to free their space
        with ExitStack() as held, replacing(path) as partial, partial.open("wb+") as out:
            lock(held.enter_context(os.fdopen(os.dup(out.fileno()), "rb")), wait=True)  # until it has its name
            made = _decode(out, split, on_bad_image)
        _remove_abandoned(cache)  # of a process that made the same cache at the same time
        return made
    except OSError as error:
        why = error.strerror or error
        raise DataError(f"{cache}: cannot hold the cache ({why}); set data.cache, or HOME") from error


def _remove_abandoned(cache: Path) -> None:
    """Remove the unfinished files of killed processes, whose locks nobody holds any more."""
    for left in cache.glob(f"{PARTIAL}*.npy") if sys.platform != "win32" else ():
        # OSError means that the file is locked, has its final name by now, or is not ours to remove
        with suppress(OSError), left.open("rb+") as file:
            if lock(file) and os.fstat(file.fileno()).st_size:  # an empty file may be about to be locked
                left.unlink()


def _open_cache(path: Path, split: Split) -> tuple[ImageSet, list[list[int]]] | None:
    """Return the images of a cache, memory-mapped; None if there is none, or it holds other pictures."""
    try:
        with path.open("rb") as file:
            pixels = _map(file)
            file.seek(pixels.offset + pixels.nbytes)
            record = json.loads(file.read())
        if record.get("files_hash") != split.key:
            return None
        sizes = record["sizes"]
        size, known = split.kept or split.choose_size(sizes[1]), record["content_hash"]
        if pixels.nbytes > HASHED:
            if "checksums" not in record:
                raise ValueError("an earlier version wrote it, without checksums")
            images = split.image_set(pixels, record["skipped"], size, known)
            checksums = np.frombuffer(bytes.fromhex(record["checksums"]), np.uint32)
            return replace(images, images=cast(Tensor, CheckedRows(images.images, checksums, path))), sizes
        images = split.image_set(pixels, record["skipped"], size)
        if images.content_hash != known:
            raise ValueError("its pixels are not what was written")
        return images, sizes
    except FileNotFoundError:
        return None
    except Exception as error:  # NumPy raises nearly anything on damaged bytes; the cache can be made again
        logger.warning("%s: this cache is damaged (%s) and is being rebuilt", path, one_line(str(error)))
        return None


def _map(file: IO[bytes]) -> np.memmap:
    """Map the array of an .npy file into memory; writes to it stay in this process."""
    npy.read_magic(file)
    shape, _, dtype = npy.read_array_header_1_0(file)
    start = file.tell()
    try:
        return np.memmap(file, dtype, "c", start, shape)
    except OSError:  # Linux refuses a writable copy larger than its memory
        return np.memmap(file, dtype, "r", start, shape)


def _decode(out: IO[bytes], split: Split, on_bad_image: str) -> tuple[ImageSet, list[list[int]]]:
    """Decode a split into a file, as a stream, because a full disk kills a process that writes to a memory map."""
    sizes = split.measured()
    size = split.kept or split.choose_size(sizes[1])
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(split), 3, *size)}
    skipped: list[str] = []
    checksums: list[int] = []
    npy.write_array_header_1_0(out, header)
    out.flush()  # so that the file is no longer empty: see _remove_abandoned
    with closing(split.decoded(size)) as decoded:
        for number, pixels in enumerate(track(decoded, f"decoding {split.name}", len(split), " images")):
            if isinstance(pixels, bytes):
                out.write(pixels)
                checksums.append(zlib.crc32(pixels))
                continue
            name = split.name_of(number)
            bad = one_line(f"{split.located(name)}: not a readable image ({pixels})")
            if on_bad_image == "stop":
                ways = "; remove it, or set data.on_bad_image: skip to leave out all such files"
                raise DataError(bad if isinstance(pixels, PictureTypeError) else bad + ways)
            logger.warning("%s, left out", bad)
            skipped.append(name)
    if len(skipped) == len(split):
        raise DataError(f"none of the {len(skipped)} {split.name} images can be read, e.g. {bad}")

    # only now is the number of readable images known; NumPy's header has room for it to change
    out.seek(0)
    header["shape"] = (len(split) - len(skipped), 3, *size)
    npy.write_array_header_1_0(out, header)
    out.seek(0)
    made = split.image_set(_map(out), skipped, size)
    out.seek(0, os.SEEK_END)
    record = {"files_hash": split.key, "content_hash": made.content_hash, "skipped": skipped, "sizes": sizes}
    if made.images.nbytes > HASHED:
        record["checksums"] = np.array(checksums, np.uint32).tobytes().hex()
    out.write(json.dumps(record).encode())
    return made, sizes


# --- notes for the user -----------------------------------------------------------------------------------------------


def _count_classes(train: ImageSet, test: ImageSet) -> list[str]:
    """Return a note on the number of images per class; none if there are no classes."""
    if not (names := train.class_names):
        return []
    counts = [torch.bincount(split.labels.clamp(min=0), minlength=len(names)).tolist() for split in (train, test)]
    pairs = list(zip(*counts, strict=True))
    if len(names) <= NAMED_CLASSES:
        each = [f"{name} {first:,} + {other:,}" for name, (first, other) in zip(names, pairs, strict=True)]
        return [f"training + test images of each class: {', '.join(each)}"]
    few, many = (", ".join(f"{edge(of):,}" for of in counts) for edge in (min, max))
    return [f"{len(names)} classes; the smallest and the largest have {few} and {many} training, test images"]


def _describe_sizes(sizes: list[list[int]], kept: tuple[int, int], image_size: tuple[int, int]) -> str:
    """Return a note on the sizes from `Split.measured`, and the (h, w) at which the images are kept."""
    found = ", ".join(
        f"{name} {width} x {height}"
        for name, (width, height) in zip(("smallest", "median", "largest"), sizes, strict=True)
    )
    (height, width), size = kept, f"{image_size[1]} x {image_size[0]}"
    crops = ", where random crops are taken" if kept != image_size else ""
    return f"training images of {found} pixels, kept at {width} x {height}{crops}; the model's input is {size}"
