"""Pictures from anywhere as images of one size: decoded once, into a file that is mapped into memory.

The file is an .npy: the pixels, uint8 (N, 3, h, w), in the order of the pictures, and behind them, where NumPy does not look,
a record in JSON: the key of the pictures, the content hash, the names of skipped ones, the pictures' sizes, and of a large file
the checksum of each image. Neither making nor using it needs memory for all images at once: the system reads the rows of a
batch from the disk, and forgets them again.
"""

from __future__ import annotations

import hashlib
import json
import logging
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

from vit.atomic import PARTIAL, replacing
from vit.data.decode import OWN, Preparation
from vit.data.images import DataError, ImageSet, Rows, content_hash, evenly_spaced
from vit.errors import one_line
from vit.progress import track

DETAIL = 2
"""Images are kept at up to this many times the model's input, so that random crops, which enlarge, see detail."""

MEASURED = 1000
"""Pictures whose sizes are read, spread evenly, to say what there is and to choose at which size they are kept."""

HASHED = 2**30
"""Bytes of a cache up to which its pixels are hashed at every start, half a second; of a larger one, each image has a checksum,
which is compared when the image is first read: so one flipped bit is found in either."""

NAMED_CLASSES = 12
"""Classes up to which a note counts the images of each."""

CACHE_LAYOUT = 3
"""To be raised when the pixels made of a picture, or their place in the cache, change."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split(ABC):
    """The pictures of a split, not decoded yet, and the size that is made of them.

    Attributes:
        origin: what messages and the cache's name call the data: its folder or name.
        name: of the split, "train" or "test".
        class_names: of the labels; empty for pictures without labels.
        image_size: (H, W) of the model's input.
        kept: (h, w) that the images are kept at; None: chosen by their own sizes.
        prepared: how they are cut and resized. In another way than this package trains by, they are no images to train on but
            a loaded model's input, and kept at its size: another resizing would blur them.
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
        """Identifies the pictures and all else that shapes the images; "" where that is unknown: they are not cached."""

    @abstractmethod
    def name_of(self, number: int) -> str:
        """Return the name of a picture within `origin`."""

    def located(self, name: str) -> str:
        """Return what messages call the picture of this name."""
        return one_line(f"{self.origin}: {name}")

    @abstractmethod
    def size_of(self, number: int) -> tuple[int, int] | None:
        """Return the (width, height) of a picture, upright; None where it cannot be read."""

    @abstractmethod
    def decoded(self, size: tuple[int, int]) -> Generator[bytes | str]:
        """Yield the pixels of each picture, uint8 (3, h, w) for `size` = (h, w), or why it has none, in their order."""

    @abstractmethod
    def labels(self) -> list[int]:
        """Return the label of each picture, -1 for none; asked for when all are decoded."""

    @property
    def cache_name(self) -> str:
        """One name for each origin, split, size and preparation, that tells a reader which."""
        place = os.path.realpath(self.origin) if os.path.exists(self.origin) else self.origin
        own = (place, self.name, self.image_size)
        key = hashlib.sha256(repr(own if self.prepared == OWN else (*own, self.prepared)).encode()).hexdigest()[:12]
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(place).name)[:40]
        return f"{stem}-{self.name}-{self.image_size[0]}x{self.image_size[1]}-{key}.npy"

    def measured(self) -> list[list[int]]:
        """Return the (width, height) of the smallest, the median and the largest of some images, by `detail`."""
        some = evenly_spaced(len(self), MEASURED).tolist()
        with warnings.catch_warnings(action="ignore"):  # what Pillow warns of names no file
            found = sorted(filter(None, map(self.size_of, some)), key=self.detail)
        return [list(found[i]) for i in (0, len(found) // 2, -1)] if found else [[0, 0]] * 3

    def detail(self, size: Sequence[int]) -> float:
        """Return how many times the model's input an image of this (width, height) is, after it is cut to its shape."""
        return min(size[0] / self.image_size[1], size[1] / self.image_size[0])

    def choose_size(self, median: Sequence[int]) -> tuple[int, int]:
        """Return the (h, w) to keep images at, where the median one has this (width, height)."""
        if self.prepared != OWN:
            return self.image_size
        detail = max(1.0, min(DETAIL, self.detail(median)))
        return round(self.image_size[0] * detail), round(self.image_size[1] * detail)

    def image_set(
        self, pixels: np.ndarray, skipped: list[str], size: tuple[int, int], known_hash: str | None = None
    ) -> ImageSet:
        """Return the images with their labels; the content hash is computed unless it is known."""
        left_out = set(skipped)
        labels = torch.tensor(
            [x for i, x in enumerate(self.labels()) if not left_out or self.name_of(i) not in left_out]
        )
        if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3, *size):
            raise ValueError(f"{pixels.dtype} {pixels.shape}")
        with warnings.catch_warnings(action="ignore"):  # that one must not write to them: nobody does
            images = torch.from_numpy(pixels)
        known_hash = known_hash or content_hash(images, labels)
        return ImageSet(images, labels, self.class_names, known_hash, tuple(map(self.located, skipped)))


class CheckedRows(Rows):
    """The images of a large cache, each compared with its checksum when it is first read.

    Args:
        images: uint8 (N, 3, h, w), mapped from the file.
        checksums: uint32 (N,), the CRC-32 of each image's bytes.
        path: of the file, for the message.

    Raises:
        ValueError: there are more checksums or fewer than images.
        DataError: on reading, an image is not the one that was written.
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
                what = f"image {int(rows[place])} of this cache is not the one that was written: the disk or the file is bad"
                raise DataError(f"{self._path}: {what}; delete the file, and it is made anew")
        self._checked[rows] = True
        return found


def load_splits(
    train: Split, test: Split, on_bad_image: str, cache: Path, notes: Sequence[str]
) -> tuple[ImageSet, ImageSet]:
    """Return two splits as images, mapped from a cache that is made if missing or old.

    The images are kept at the shape of the model's input and up to `DETAIL` times its size, as far as half of the training
    images have that detail: random crops are taken there, and all else is shrunk to the input.

    Args:
        train, test: the pictures.
        on_bad_image: at one that cannot be read, `stop` with its name, or `skip` it and list it in `skipped`.
        cache: folder for the cache files.
        notes: lines on what was done before.

    Returns:
        train, test: uint8 images (N, 3, h, w), int64 labels; the notes of the first say what there is and what is not used.

    Raises:
        DataError: an image that cannot be read, a cache that cannot be written.
    """
    first, sizes = _load(train, on_bad_image, cache)
    kept = (first.images.shape[-2], first.images.shape[-1])
    other, _ = _load(replace(test, kept=kept, class_names=first.class_names), on_bad_image, cache)
    notes = [*notes, *_count_classes(first, other), _describe_sizes(sizes, kept, train.image_size)]
    return replace(first, notes=tuple(map(one_line, notes))), other


def _load(split: Split, on_bad_image: str, cache: Path) -> tuple[ImageSet, list[list[int]]]:
    """Return a split's images from its cache, which is made anew if it will not do, and what `Split.measured` found."""
    try:
        if not split.key:  # a file without a name, which goes when nothing is mapped from it any more
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=cache) as out:
                return _decode(out, split, on_bad_image)
        path = cache / split.cache_name
        cached = _open_cache(path, split)
        if cached is not None and (on_bad_image == "skip" or not cached[0].skipped):
            return cached
        # When anything fails, what was at `path` is still there; what killed processes left takes room.
        _remove_abandoned(cache)
        with ExitStack() as held, replacing(path) as partial, partial.open("wb+") as out:
            _lock(held.enter_context(partial.open("rb")))  # until it has its name
            made = _decode(out, split, on_bad_image)
        _remove_abandoned(cache)  # of one that made the same at the same time
        return made
    except OSError as error:
        raise DataError(f"{cache}: cannot hold the cache ({error.strerror or error}); set data.cache") from error


def _lock(file: IO[bytes]) -> None:
    """Lock a file until it is closed, or its process ends; a BlockingIOError if another has locked it."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_abandoned(cache: Path) -> None:
    """Remove the unfinished files of processes that were killed: nobody holds their locks any more."""
    for left in cache.glob(f"{PARTIAL}*.npy") if sys.platform != "win32" else ():
        # An OSError: it is locked, or has its name by now, or is not ours to remove.
        with suppress(OSError), left.open("rb") as file:
            _lock(file)
            if os.fstat(file.fileno()).st_size:  # an empty one may be about to be locked
                left.unlink()


def _open_cache(path: Path, split: Split) -> tuple[ImageSet, list[list[int]]] | None:
    """Return the images of a cache, mapped into memory; None where there is none, or one of other pictures."""
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
                raise ValueError("a version before made it, without checksums")
            images = split.image_set(pixels, record["skipped"], size, known)
            checksums = np.frombuffer(bytes.fromhex(record["checksums"]), np.uint32)
            return replace(images, images=cast(Tensor, CheckedRows(images.images, checksums, path))), sizes
        images = split.image_set(pixels, record["skipped"], size)
        if images.content_hash != known:
            raise ValueError("its pixels are not those that were written")
        return images, sizes
    except FileNotFoundError:
        return None
    except Exception as error:  # on damaged bytes NumPy raises nearly anything; the cache is not the only copy
        logger.warning("%s: this cache is damaged (%s) and is made anew", path, one_line(str(error)))
        return None


def _map(file: IO[bytes]) -> np.memmap:
    """Map the array of an .npy file into memory: it is read where it is touched, and writes stay in this process."""
    npy.read_magic(file)
    shape, _, dtype = npy.read_array_header_1_0(file)
    start = file.tell()
    try:
        return np.memmap(file, dtype, "c", start, shape)
    except OSError:  # Linux refuses writable copies that are larger than its memory
        return np.memmap(file, dtype, "r", start, shape)


def _decode(out: IO[bytes], split: Split, on_bad_image: str) -> tuple[ImageSet, list[list[int]]]:
    """Decode a split into a file, written as a stream: a full disk kills a process that writes to a memory map."""
    sizes = split.measured()
    size = split.kept or split.choose_size(sizes[1])
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(split), 3, *size)}
    skipped: list[str] = []
    checksums: list[int] = []
    npy.write_array_header_1_0(out, header)
    out.flush()  # no empty file any more: see _remove_abandoned
    with closing(split.decoded(size)) as decoded:
        for number, pixels in enumerate(track(decoded, f"decoding {split.name}", len(split), " images")):
            if isinstance(pixels, bytes):
                out.write(pixels)
                checksums.append(zlib.crc32(pixels))
                continue
            name = split.name_of(number)
            bad = one_line(f"{split.located(name)}: not a readable image ({pixels})")
            if on_bad_image == "stop":
                raise DataError(f"{bad}; remove it, or leave out all such files: data.on_bad_image: skip")
            logger.warning("%s, left out", bad)
            skipped.append(name)
    if len(skipped) == len(split):
        raise DataError(f"none of the {len(skipped)} {split.name} images can be read, neither {bad}")

    # How many images can be read shows only now; NumPy's header has room for this number to change.
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


# --- what a person should know ----------------------------------------------------------------------------------------


def _count_classes(train: ImageSet, test: ImageSet) -> list[str]:
    """Return a note on how many images each class has, none where there are no classes."""
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
    """Return a note on the sizes that `Split.measured` found, and on the (h, w) that the images are kept at."""
    found = ", ".join(
        f"{name} {width} x {height}"
        for name, (width, height) in zip(("smallest", "median", "largest"), sizes, strict=True)
    )
    (height, width), size = kept, f"{image_size[1]} x {image_size[0]}"
    crops = ", where random crops are taken" if kept != image_size else ""
    return f"training images of {found} pixels, kept at {width} x {height}{crops}; the model's input is {size}"
