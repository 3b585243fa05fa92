"""A folder of images: which files, in which order, and their pixels."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import torch

from vit import inputs
from vit.data import ImageSet, image_hash
from vit.data.cache import MEASURED, Decoded, Size, cache_path, cached, times_of
from vit.data.images import (
    choose_test_images,
    class_key,
    evenly_spaced,
    hold_out_test_images,
    notes_on,
)
from vit.device import usable_cores
from vit.errors import DataError, one_line
from vit.inputs import OWN, Preparation
from vit.progress import track
from vit.runs import RunFiles

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
"""Which files are images: torchvision's IMG_EXTENSIONS and GIF, in upper or lower case."""
SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
"""Names of splits elsewhere, in any case: two such folders, and no `train`, are not classes."""
AT_ONCE = 256
"""Decoded images that may wait in memory to be written."""

logger = logging.getLogger(__name__)


class ImageFile(NamedTuple):
    """An image file, not opened yet."""

    # "" outside the class folders, or if there are none
    class_name: str
    # relative to the root, "/" between the parts
    name: str


def load_folder(
    root: Path, image_size: Size, on_bad_image: str, cache: Path, prepared: Preparation = OWN
) -> tuple[ImageSet, ImageSet]:
    """Return the training and test images of a folder, resized and mapped from a cache file.

    The cache is made if it is missing or outdated. Layouts of the folder:
        root/train/<class>/..., root/test/<class>/...    `val` is used if there is no `test`
        root/<class>/...                                 no train folder: the folders are classes
        root/*.png, root/train/*.png                     no folders: images without labels

    Classes are the folders with an image anywhere in them, sorted; the files of a class are in the
    order of torchvision's ImageFolder; hidden files and folders of runs are left out. Without a
    test split, some images are held out; see `hold_out_test_images`. `inputs.decode` says how the
    pixels are made.

    Args:
        root: the folder with the images.
        image_size: (H, W) of the model's input in pixels.
        on_bad_image: at an unreadable file, `stop` with its path, or `skip` it and list it in
            `skipped`.
        cache: folder for the cache files.
        prepared: as a model expects its images.

    Returns:
        train, test: uint8 images (N, 3, h, w), int64 labels, both with the training images' class
            names; the notes of `train` say which files are used and which are not.

    Raises:
        DataError: there are fewer than two images, the training images lack a class of the test
            images, or an image cannot be read.
        OSError: the cache cannot be written.
    """
    ignored: Counter[str] = Counter()
    train_files, *test_files = list_folder(root, ignored).values()
    class_names = tuple(sorted({file.class_name for file in train_files} - {""}))
    label_of = {name: label for label, name in enumerate(class_names)}

    def load(split: str, files: list[ImageFile], size: Size | None) -> ImageSet:
        paths = [os.path.join(root, file.name) for file in files]
        labels = [label_of.get(file.class_name, -1) for file in files]
        # another key for every file that is added, removed, renamed, replaced or written to, and
        # for a new class among the training images, which renumbers the others
        images = cached(
            cache_path(cache, os.path.realpath(root), split, image_size, prepared),
            (class_names, prepared, files, list(map(times_of, paths))),
            len(files),
            (inputs.size_of(paths[number]) for number in evenly_spaced(len(files), MEASURED)),
            lambda size: _decoded(paths, labels, size, prepared),
            image_size,
            size,
            on_bad_image,
        )
        skipped = set(images.skipped)
        names = [
            file.name for file in files if one_line(os.path.join(root, file.name)) not in skipped
        ]
        return replace(images, class_names=class_names, files=tuple(names))

    # The training images decide the size of both splits. Images prepared for a model have its input
    # size at once, because resizing them again would blur them.
    train = load("train", train_files, None if prepared == OWN else image_size)
    if test_files:
        height, width = train.images.shape[-2:]
        test = load("test", test_files[0], (height, width))
    else:
        train, test = hold_out_test_images(train, str(root), "folder")
    notes = [*train.notes, *notes_on(train, test, image_size)]
    if ignored:
        counts = ", ".join(f"{count:,} {what}" for what, count in ignored.most_common())
        notes.append(f"{root}: files that are not used: {counts}")
    return replace(train, notes=tuple(map(one_line, notes))), test


def _decoded(
    paths: list[str], labels: list[int], size: Size, prepared: Preparation
) -> Generator[Decoded]:
    """Yield the pixels of files, in order, decoded in threads.

    Pillow works outside of Python's lock: for 3,000 photos, one thread takes 2.7 s, two 1.4 s, and
    two processes also 1.4 s; but processes would import torch and run the main module again.
    """

    def decode(path: str) -> bytes | str:
        return inputs.decode(path, size, prepared)

    pool = ThreadPoolExecutor(min(usable_cores(), 16))
    try:
        # a pool starts all its tasks at once, so it gets only some files at a time
        for start in range(0, len(paths), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            yield from zip(paths[part], pool.map(decode, paths[part]), labels[part], strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


# ---- Which files ---------------------------------------------------------------------------------


def list_folder(root: Path, ignored: Counter[str] | None = None) -> dict[str, list[ImageFile]]:
    """Return the files by split folder, "train" and "test" or "val"; without split folders, by "".

    Args:
        root: the folder with the images.
        ignored: counts the files that are left out, in words.

    Raises:
        DataError: as in `load_folder`, as far as it shows without reading an image.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; set data.root to your folder of images")
    # without a folder train, the folders are classes
    present = [name for name in ("train", "test", "val") if (root / name).is_dir()]
    if "train" not in present:
        present = []

    # Each file by its first folder, if that is a split, and the next, which is its class
    splits: dict[str, list[ImageFile]] = {name: [] for name in present[:2] or [""]}
    ignored = Counter() if ignored is None else ignored
    for path in _walk(root):
        *folders, _ = path.relative_to(root).parts
        if not present:
            folders = ["", *folders]
        split, class_name, *_ = (*folders, "", "")
        if split in splits and is_image(path):
            name = path.relative_to(root).as_posix()
            splits[split].append(ImageFile(class_key(class_name), name))
        elif is_image(path):
            ignored[f"images in {split or root.name}"] += 1
        elif split in splits:
            ignored[path.suffix.lower() or "without a suffix"] += 1
    for split, files in splits.items():
        if not files:
            raise DataError(f"{root / split}: no images; searched it for {' '.join(EXTENSIONS)}")
        in_classes = [file for file in files if file.class_name]
        if 0 < len(in_classes) < len(files):
            ignored["images outside the class folders"] += len(files) - len(in_classes)
            files = in_classes
        # by class, then folder, then name: the order in which torchvision's ImageFolder walks
        splits[split] = sorted(files, key=lambda file: (file[0], *file.name.rpartition("/")))

    # Classes called Training and Testing are another package's splits
    train, *tests = splits.values()
    classes = {file.class_name for file in train}
    other_splits = [name for name in sorted(classes) if name.lower() in SPLITS]
    if not present and len(other_splits) > 1:
        problem = f"its folders {', '.join(other_splits)} are splits, not classes"
        raise DataError(f"{root}: {problem}; rename them train and test")

    # A test image of another class would count as one without a label
    unknown = sorted({file.class_name for files in tests for file in files} - classes)
    if unknown:
        place = root / present[1] / unknown[0]
        raise DataError(f"{place}: has test images, but {root / 'train'} has no such class")
    return splits


def list_splits(root: Path, image_size: Size) -> dict[str, list[ImageFile]]:
    """Return the files by split, "train" and "test" or "val", as `load_folder` uses them.

    Without a test folder, the files are read: copies of one image are on one side. A file that
    cannot be read is a training file. A single file is no split: its key is "".

    Raises:
        DataError: as in `list_folder`.
    """
    splits = list_folder(root)
    files, *tests = splits.values()
    if tests or len(files) < 2:
        return splits
    readable = []
    hashes = []
    for file in track(files, "comparing", unit=" images"):
        pixels = inputs.decode(os.path.join(root, file.name), image_size)
        if isinstance(pixels, bytes):
            readable.append(file)
            hashes.append(image_hash(pixels))
    held_out: set[ImageFile] = set()
    if len(readable) > 1:
        held_out.update(compress(readable, choose_test_images(torch.tensor(hashes), "folder")))
    train = [file for file in files if file not in held_out]
    return {"train": train, "test": [file for file in files if file in held_out]}


def list_files(folder: Path) -> list[Path]:
    """Return all image files in a folder, however deep, sorted by path.

    Raises:
        DataError: there are none.
    """
    files = sorted(filter(is_image, _walk(folder)))
    if not files:
        raise DataError(f"{folder}: no images; searched it for {' '.join(EXTENSIONS)}")
    return files


def is_image(path: Path) -> bool:
    """Return whether a file's name is that of an image."""
    return path.name.lower().endswith(EXTENSIONS)


def _walk(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the files in `folder`, however deep; links are followed, except to a folder above.

    A folder of a run is left out: a run that trains on the folder above it would train on its own
    pictures.
    """
    place = os.path.realpath(folder)
    if place in above or (above and RunFiles(folder).showcase.exists()):
        return
    for path in folder.iterdir():
        # what systems put beside images
        if path.name.startswith((".", "__MACOSX")):
            continue
        if path.is_dir():
            yield from _walk(path, above | {place})
        else:
            yield path


def refuse_run_among_images(out: Path, root: str) -> None:
    """Refuse a run in a folder that holds some of the images: they would be left out, as a run is.

    Raises:
        DataError: `out` lies within `root`, and holds images.
    """
    images = os.path.realpath(os.path.expanduser(root))
    is_within = Path(images) in Path(os.path.realpath(out)).parents
    if is_within and out.is_dir() and any(map(is_image, _walk(out, frozenset([images])))):
        problem = "holds images of the data, which would be left out beside a run"
        raise DataError(f"--out: {out} {problem}; name another folder")


def choose_readable(paths: Sequence[str | Path], count: int = 0) -> list[int]:
    """Return the numbers of up to `count` files, evenly spaced, that can be decoded; 0: of all.

    A warning says why another is left out.

    Raises:
        DataError: no file can be decoded.
    """
    chosen = []
    for number in track(evenly_spaced(len(paths), count).tolist(), "checking", unit=" images"):
        # a small size, because the pixels are not used
        content = inputs.decode(str(paths[number]), (8, 8))
        if isinstance(content, bytes):
            chosen.append(number)
        else:
            problem = one_line(f"{paths[number]}: not a readable image ({content})")
            logger.warning("%s, left out", problem)
    if not chosen:
        raise DataError("none of the images can be read")
    return chosen
