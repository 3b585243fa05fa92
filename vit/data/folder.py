"""A folder of images: decoded once, in parallel, into a cache that later starts only map into memory.

The cache is one .npy file per split: the pixels, uint8 (N, 3, h, w), in the order of the files, and behind them, where
NumPy does not look, a record in JSON: a hash of the files, the content hash, the names of skipped files and the files' sizes.
Neither making nor using it needs memory for all images at once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import IO, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy

from vit.atomic import replacing
from vit.data import decode
from vit.data.images import DataError, ImageSet, content_hash, evenly_spaced
from vit.errors import one_line
from vit.progress import track

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
"""Which files are images: torchvision's IMG_EXTENSIONS and GIF, in upper or lower case."""

DETAIL = 2
"""Images are kept at up to this many times the model's input, so that random crops, which enlarge, see detail."""

MEASURED = 1000
"""Files whose sizes are read, spread evenly, to say what there is and to choose at which size it is kept."""

NAMED_CLASSES = 12
"""Classes up to which a note counts the images of each."""

CACHE_LAYOUT = 3
"""To be raised when the pixels made of a file, or their place in the cache, change."""

SMALL_FILE = 4096
"""Mean bytes per file below which one thread decodes: at such images Pillow works mostly within Python's lock."""

logger = logging.getLogger(__name__)


def load_folder(root: Path, image_size: tuple[int, int], on_bad_image: str, cache: Path) -> tuple[ImageSet, ImageSet]:
    """Return the training and test images of a folder, resized, mapped from a cache that is made if missing or old.

    Layouts:
        root/train/<class>/..., root/test/<class>/...    `val` is taken where there is no `test`
        root/<class>/...                                 no train folder: the folders are the classes
        root/*.png, root/train/*.png                     no folders: images without labels

    Classes are the folders with an image somewhere in them, in sorted order; the files of a class are in the order of
    torchvision's ImageFolder. Without a test split, M = min(1000, max(1, N // 10)) of the N files, evenly spaced in the
    list (numbers i * N // M), are held out of the training images. What becomes of the pixels: `decode.decode`.

    The images are kept at the shape of the model's input and up to `DETAIL` times its size, as far as half of the training
    images have that detail: random crops are taken there, and all else is shrunk to the input.

    Args:
        root: the folder with the images.
        image_size: (H, W) of the model's input in pixels.
        on_bad_image: at a file that cannot be read, `stop` with its path, or `skip` it and list it in `skipped`.
        cache: folder for the cache files.

    Returns:
        train, test: uint8 images (N, 3, h, w), int64 labels, both with the class names of the training images; the notes of
            the first say what there is and what is not used.

    Raises:
        DataError: no images, fewer than two, a class of the test images that the training images lack, an image that
            cannot be read, a cache that cannot be written.
    """
    notes: list[str] = []
    files = list_splits(root, notes)
    class_names = tuple(sorted({file.class_name for split in files for file in split} - {""}))
    train, sizes = _load(_Split(root, "train", files[0], class_names, image_size), on_bad_image, cache)
    kept = (train.images.shape[-2], train.images.shape[-1])
    test, _ = _load(_Split(root, "test", files[1], class_names, image_size, kept), on_bad_image, cache)
    notes += [*_count_classes(train, test), _describe_sizes(sizes, kept, image_size)]
    return replace(train, notes=tuple(map(one_line, notes))), test


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
    """Return a note on the sizes that `_Split.measured` found, and on the (h, w) that the images are kept at."""
    found = ", ".join(
        f"{name} {width} x {height}"
        for name, (width, height) in zip(("smallest", "median", "largest"), sizes, strict=True)
    )
    (height, width), size = kept, f"{image_size[1]} x {image_size[0]}"
    crops = ", where random crops are taken" if kept != image_size else ""
    return f"training images of {found} pixels, kept at {width} x {height}{crops}; the model's input is {size}"


# --- which files -----------------------------------------------------------------------------------------------------


class ImageFile(NamedTuple):
    """An image file, of whose content nothing is known yet."""

    class_name: str  # "" where there are no class folders
    name: str  # relative to the root, "/" between the parts
    size: int
    mtime_ns: int


def list_splits(root: Path, notes: list[str] | None = None) -> tuple[list[ImageFile], list[ImageFile]]:
    """Return the files for training and for testing, each in its order; `notes` gets a line on what was done by itself.

    Raises:
        DataError: as `load_folder`, as far as it can be seen without reading an image.
    """
    notes = [] if notes is None else notes
    train, *tests = list_folder(root, notes).values()
    # No test folder: hold out every tenth image or so.
    if not tests:
        if len(train) < 2:
            raise DataError(f"{root}: has only one image; one to train on and one to test on are the least")
        held_out = evenly_spaced(len(train), min(1000, max(1, len(train) // 10))).tolist()
        kept = sorted(set(range(len(train))).difference(held_out))
        aside = f"{len(held_out):,} of the {len(train):,} images, evenly spaced, are the test images"
        notes.append(f"there is no folder test: {aside}, and are not trained on")
        return [train[i] for i in kept], [train[i] for i in held_out]
    return train, tests[0]


def list_folder(root: Path, notes: list[str] | None = None) -> dict[str, list[ImageFile]]:
    """Return the files by the folder that splits them, "train" and "test" or "val"; of a folder without these, by "".

    `notes` gets a line on files that are left out.

    Raises:
        DataError: as `load_folder`, as far as it can be seen without reading an image.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; set data.root to your folder of images")
    present = [name for name in ("train", "test", "val") if (root / name).is_dir()]
    if present and present[0] != "train":
        raise DataError(f"{root}: has a folder {present[0]} but no folder train; add it, or rename {present[0]}")
    notes = [] if notes is None else notes
    train = _list_images(root, "train" if present else "", notes)
    if len(present) < 2:
        return {present[0] if present else "": train}
    test = _list_images(root, present[1], notes)
    unknown = sorted({file.class_name for file in test} - {file.class_name for file in train})
    if unknown:
        what = f"a class folder {one_line(unknown[0])}" if unknown[0] else "no class folders"
        raise DataError(f"{root / present[1]}: has {what}, unlike {root / 'train'}; both need the same classes")
    return {"train": train, present[1]: test}


def list_files(folder: Path) -> list[Path]:
    """Return all image files in a folder, however deep, by name.

    Raises:
        DataError: there are none, or a folder cannot be read.
    """
    try:
        found = sorted(Path(entry.path) for entry in _walk(str(folder)) if entry.name.lower().endswith(EXTENSIONS))
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}; make the folder readable") from error
    if not found:
        raise DataError(f"{folder}: no images; looked in it and in the folders in it for {' '.join(EXTENSIONS)}")
    return found


def _list_images(root: Path, split: str, notes: list[str]) -> list[ImageFile]:
    """Return all image files in the folder `split` of `root`, in the order of torchvision's ImageFolder.

    `notes` gets a line on the other files, hidden ones aside.
    """
    start = root / split
    found: list[ImageFile] = []
    others: Counter[str] = Counter()
    try:
        for entry in _walk(str(start)):
            if not entry.name.lower().endswith(EXTENSIONS):
                others[PurePath(entry.name).suffix.lower() or "without a suffix"] += not entry.name.startswith(".")
                continue
            # A link to nowhere is listed too, so that it counts as an image that cannot be read.
            info = entry.stat(follow_symlinks=os.path.exists(entry))
            path = Path(entry.path)
            *folders, _ = path.relative_to(start).parts
            class_name, name = folders[0] if folders else "", path.relative_to(root).as_posix()
            found.append(ImageFile(class_name, name, info.st_size, info.st_mtime_ns))
    except OSError as error:
        where = one_line(str(error.filename or start))
        raise DataError(f"{where}: {error.strerror or error}; make the folder readable") from error
    if not found:
        raise DataError(f"{start}: no images; looked in it and in the folders in it for {' '.join(EXTENSIONS)}")
    if kinds := ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common() if count):
        notes.append(f"{start}: not used, as no images that can be read: {kinds}")
    in_classes = [file for file in found if file.class_name]
    if in_classes and len(in_classes) < len(found):
        logger.warning("%s: %d images beside the class folders are not used", start, len(found) - len(in_classes))
    return sorted(in_classes or found, key=lambda file: (file.class_name, *file.name.rpartition("/")))


def _walk(folder: str, above: frozenset[str] = frozenset()) -> Iterator[os.DirEntry[str]]:
    """Yield the files in `folder`, however deep; links are followed, but not back to a folder that they are in."""
    place = os.path.realpath(folder)
    if place in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if os.path.isdir(entry):
                yield from _walk(entry.path, above | {place})
            else:
                yield entry


@dataclass(frozen=True)
class _Split:
    """A split: its files, and what they become."""

    root: Path
    name: str
    files: list[ImageFile]
    class_names: tuple[str, ...]
    image_size: tuple[int, int]
    kept: tuple[int, int] | None = None  # (h, w) that the images are kept at; None: chosen by their own sizes

    @cached_property
    def files_hash(self) -> str:
        """Changes with every file added, removed, renamed or written to, and with whatever else shapes the images."""
        # The class names count, as a new class in train renumbers those in test, whose files are as they were.
        shaping = [(CACHE_LAYOUT, self.image_size, self.class_names, self.kept), *self.files]
        return hashlib.sha256("".join(map(repr, shaping)).encode()).hexdigest()

    @property
    def cache_name(self) -> str:
        """One name for each folder, split and size, that tells a reader which."""
        root = self.root.resolve()
        key = hashlib.sha256(repr((str(root), self.name, self.image_size)).encode()).hexdigest()[:12]
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", root.name)[:40]
        return f"{stem}-{self.name}-{self.image_size[0]}x{self.image_size[1]}-{key}.npy"

    def measured(self) -> list[list[int]]:
        """Return the (width, height) of the smallest, the median and the largest of some images, by `detail`."""
        some = (self.files[i].name for i in evenly_spaced(len(self.files), MEASURED).tolist())
        with warnings.catch_warnings(action="ignore"):
            found = sorted(filter(None, (decode.size_of(str(self.root / name)) for name in some)), key=self.detail)
        return [list(found[i]) for i in (0, len(found) // 2, -1)] if found else [[0, 0]] * 3

    def detail(self, size: Sequence[int]) -> float:
        """Return how many times the model's input an image of this (width, height) is, after it is cut to its shape."""
        return min(size[0] / self.image_size[1], size[1] / self.image_size[0])

    def choose_size(self, median: Sequence[int]) -> tuple[int, int]:
        """Return the (h, w) to keep images at, where the median one has this (width, height)."""
        detail = max(1.0, min(DETAIL, self.detail(median)))
        return round(self.image_size[0] * detail), round(self.image_size[1] * detail)

    def image_set(
        self, pixels: np.ndarray, skipped: list[str], size: tuple[int, int], known_hash: str | None = None
    ) -> ImageSet:
        """Return the images with their labels; the content hash is computed unless it is known."""
        label_of = {name: label for label, name in enumerate(self.class_names)}
        left_out = set(skipped)
        labels = torch.tensor([label_of.get(file.class_name, -1) for file in self.files if file.name not in left_out])
        if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3, *size):
            raise ValueError(f"{pixels.dtype} {pixels.shape}")
        images = torch.from_numpy(pixels)
        paths = tuple(one_line(str(self.root / name)) for name in skipped)
        return ImageSet(images, labels, self.class_names, known_hash or content_hash(images, labels), paths)


# --- the cache -------------------------------------------------------------------------------------------------------


def _load(split: _Split, on_bad_image: str, cache: Path) -> tuple[ImageSet, list[list[int]]]:
    """Return a split's images from its cache, which is made anew if it will not do, and what `_Split.measured` found."""
    path = cache / split.cache_name
    cached = _open_cache(path, split)
    if cached is not None and (on_bad_image == "skip" or not cached[0].skipped):
        return cached
    try:
        return _make_cache(path, split, on_bad_image)
    except OSError as error:
        raise DataError(f"{cache}: cannot hold the cache ({error.strerror or error}); set data.cache") from error


def _open_cache(path: Path, split: _Split) -> tuple[ImageSet, list[list[int]]] | None:
    """Return the images of a cache, mapped into memory; None where there is none, or one of other files."""
    try:
        with path.open("rb") as file:
            pixels = _map(file)
            file.seek(pixels.offset + pixels.nbytes)
            record = json.loads(file.read())
        if record.get("files_hash") != split.files_hash:
            return None
        sizes = record["sizes"]
        size = split.kept or split.choose_size(sizes[1])
        return split.image_set(pixels, record["skipped"], size, record["content_hash"]), sizes
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
    except OSError:  # Linux lets nobody write to copies of more than its memory, but read
        return np.memmap(file, dtype, "r", start, shape)


def _make_cache(path: Path, split: _Split, on_bad_image: str) -> tuple[ImageSet, list[list[int]]]:
    """Decode the files into a new cache; when anything fails, what was at `path` is still there."""
    sizes = split.measured()
    size = split.kept or split.choose_size(sizes[1])
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(split.files), 3, *size)}
    skipped: list[str] = []
    # Written as a stream, as a full disk would end a process that writes to a map without a word.
    with replacing(path) as partial, partial.open("wb+") as out:
        npy.write_array_header_1_0(out, header)
        with closing(_decoded(split, size)) as decoded:
            progress = track(decoded, f"decoding {split.name}", len(split.files), " images")
            for file, pixels in zip(split.files, progress, strict=True):
                if isinstance(pixels, bytes):
                    out.write(pixels)
                    continue
                bad = one_line(f"{split.root / file.name}: not a readable image ({pixels})")
                if on_bad_image == "stop":
                    raise DataError(f"{bad}; remove it, or leave out all such files: data.on_bad_image: skip")
                logger.warning("%s, left out", bad)
                skipped.append(file.name)
        if len(skipped) == len(split.files):
            raise DataError(f"none of the {len(skipped)} {split.name} images can be read, neither {bad}")

        # How many images can be read shows only now; NumPy's header has room for this number to change.
        out.seek(0)
        header["shape"] = (len(split.files) - len(skipped), 3, *size)
        npy.write_array_header_1_0(out, header)
        out.seek(0)
        made = split.image_set(_map(out), skipped, size)
        out.seek(0, os.SEEK_END)
        record = {"files_hash": split.files_hash, "content_hash": made.content_hash, "skipped": skipped, "sizes": sizes}
        out.write(json.dumps(record).encode())
    return made, sizes


# --- decoding in parallel --------------------------------------------------------------------------------------------


def _decoded(split: _Split, size: tuple[int, int]) -> Generator[bytes | str]:
    """Yield the pixels of each file, uint8 (3, h, w) for `size` = (h, w), or why it cannot be read, in the order of the files.

    Threads, as Pillow decodes and resizes outside of Python's lock: two take 1.4 s for 3,000 photos that one takes 2.7 s
    for, and two processes 1.4 s. Processes would import torch and run the main module again, whether or not it is guarded.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    small = sum(file.size for file in split.files) < SMALL_FILE * len(split.files)
    paths = [os.path.join(split.root, file.name) for file in split.files]
    pool = ThreadPoolExecutor(1 if small else min(cores, 16))
    try:
        with warnings.catch_warnings(action="ignore"):  # what Pillow warns of names no file
            for start in range(0, len(paths), 256):  # the next images wait in memory, but not all of them
                yield from pool.map(lambda path: decode.decode(path, size), paths[start : start + 256])
    finally:
        pool.shutdown(cancel_futures=True)
