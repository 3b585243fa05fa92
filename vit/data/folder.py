"""A folder of images: listing its files, and reading them in parallel."""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import NamedTuple

from vit import inputs
from vit.data.cache import CACHE_LAYOUT, Decoded, Pictures, Size, cache_path, cached, describe
from vit.data.images import ImageSet, hold_out
from vit.errors import DataError, one_line
from vit.inputs import OWN, Preparation
from vit.openmp import usable_cores
from vit.progress import track
from vit.runs import RunFiles

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
"""Which files are images: torchvision's IMG_EXTENSIONS and GIF, in upper or lower case."""

SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
"""Names of splits elsewhere, in any case: two such folders, and no `train`, are not classes."""

SMALL_FILE = 4096
"""Mean bytes per file below which one thread decodes: on small images, Pillow works mostly within Python's lock."""

logger = logging.getLogger(__name__)


def load_folder(
    root: Path,
    image_size: tuple[int, int],
    on_bad_image: str,
    cache: Path,
    prepared: Preparation = OWN,
) -> tuple[ImageSet, ImageSet]:
    """Return the training and test images of a folder, resized, mapped from a cache that is made if missing or outdated.

    Layouts:
        root/train/<class>/..., root/test/<class>/...    `val` is used if there is no `test`
        root/<class>/...                                 no train folder: the folders are the classes
        root/*.png, root/train/*.png                     no folders: images without labels

    Classes are the folders with an image anywhere in them, sorted; the files of a class are in the order of torchvision's
    ImageFolder; folders of runs are left out. Without a test split, M = min(1000, max(1, N // 10)) of the N files, evenly
    spaced in the list (numbers i * N // M), are held out. `inputs.decode` says how the pixels are made.

    Args:
        root: the folder with the images.
        image_size: (H, W) of the model's input in pixels.
        on_bad_image: at an unreadable file, `stop` with its path, or `skip` it and list it in `skipped`.
        cache: folder for the cache files.
        prepared: as a model expects its images.

    Returns:
        train, test: uint8 images (N, 3, h, w), int64 labels, both with the training images' class names; the notes of
            `train` say what was found and what is not used.

    Raises:
        DataError: there are fewer than two images, the training images lack a class of the test images, an image cannot be
            read, or the cache cannot be written.
    """
    # Which files, and their classes
    notes: list[str] = []
    train_files, test_files = list_splits(root, notes)
    class_names = tuple(sorted({file.class_name for file in (*train_files, *test_files)} - {""}))
    label_of = {name: label for label, name in enumerate(class_names)}

    # How one is read
    def decode_file(file: ImageFile, size: Size) -> Decoded:
        pixels = inputs.decode(os.path.join(root, file.name), size, prepared)
        return pixels, label_of.get(file.class_name, -1)

    def size_of(file: ImageFile) -> Size | None:
        return inputs.size_of(os.path.join(root, file.name))

    def name_of(file: ImageFile) -> str:
        return one_line(os.path.join(root, file.name))

    def load(
        split: str, files: list[ImageFile], kept: Size | None
    ) -> tuple[ImageSet, list[list[int]]]:
        key = _key(files, class_names, image_size, kept, prepared)
        path = cache_path(cache, str(root), split, image_size, prepared)
        pictures = Pictures(split, files, key, decode_file, size_of, name_of, _in_threads)
        images, sizes = cached(path, pictures, image_size, kept, on_bad_image)
        return replace(images, class_names=class_names), sizes

    # The training images decide the size of both; prepared ones have the model's, because
    # resizing them again would blur them
    train, sizes = load("train", train_files, None if prepared == OWN else image_size)
    test, _ = load("test", test_files, (train.images.shape[-2], train.images.shape[-1]))
    notes += describe(train, test, sizes, image_size)
    return replace(train, notes=tuple(map(one_line, notes))), test


# --- which files -----------------------------------------------------------------------------------------------------


class ImageFile(NamedTuple):
    """An image file, not opened yet."""

    class_name: str  # "" if there are no class folders
    name: str  # relative to the root, "/" between the parts
    size: int
    mtime_ns: int


def list_splits(
    root: Path, notes: list[str] | None = None
) -> tuple[list[ImageFile], list[ImageFile]]:
    """Return the training and test files, in order; `notes` gets a line on what was done automatically.

    Raises:
        DataError: as in `load_folder`, as far as it shows without reading an image.
    """
    notes = [] if notes is None else notes
    train, *tests = list_folder(root, notes).values()
    if not tests:
        if len(train) < 2:
            raise DataError(
                f"{root}: has only one image; it needs at least two, one to train on and one to test on"
            )
        kept, held_out, aside = hold_out(len(train))
        notes.append(f"no test folder: {aside}")
        return [train[i] for i in kept], [train[i] for i in held_out]
    return train, tests[0]


def list_folder(root: Path, notes: list[str] | None = None) -> dict[str, list[ImageFile]]:
    """Return the files by split folder, "train" and "test" or "val"; without split folders, by "".

    `notes` gets a line on files that are left out.

    Raises:
        DataError: as in `load_folder`, as far as it shows without reading an image.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; set data.root to your folder of images")
    present = [name for name in ("train", "test", "val") if (root / name).is_dir()]
    if present and present[0] != "train":
        raise DataError(
            f"{root}: has a folder {present[0]} but no folder train; add it, or rename {present[0]}"
        )
    notes = [] if notes is None else notes
    train = _list_images(root, "train" if present else "", notes)
    alike = sorted({file.class_name for file in train if file.class_name.lower() in SPLITS})
    if not present and len(alike) > 1:
        raise DataError(
            f"{root}: its folders {', '.join(alike)} are splits, not classes; rename them train and test"
        )
    unused = ", ".join(_folders_of_images(root, present[:2])) if present else ""
    if unused and len(present) == 1 and not train[0].class_name:
        ways = "if train is a class, put all classes into a folder train; else move the others away"
        raise DataError(
            f"{root}: has folders of images ({unused}) beside train, which has no class folders; {ways}"
        )
    if unused:
        notes.append(f"folders of images that are not used: {unused}")
    if len(present) < 2:
        return {present[0] if present else "": train}
    test = _list_images(root, present[1], notes)
    unknown = sorted({file.class_name for file in test} - {file.class_name for file in train})
    if unknown:
        what = f"a class folder {unknown[0]}" if unknown[0] else "no class folders"
        raise DataError(
            f"{root / present[1]}: has {what}, unlike {root / 'train'}; both need the same classes"
        )
    return {"train": train, present[1]: test}


def list_files(folder: Path) -> list[Path]:
    """Return all image files in a folder, however deep, sorted by path.

    Raises:
        DataError: there are none, or a folder cannot be read.
    """
    images, _ = _find_images(folder)
    return sorted(path for path, _ in images)


def readable(paths: Sequence[str | Path]) -> list[bool]:
    """Whether each file can be decoded; a warning names each that cannot, and why.

    Raises:
        DataError: none can.
    """
    found = [inputs.decode(str(path), (8, 8)) for path in track(paths, "checking", unit=" images")]
    for path, content in zip(paths, found, strict=True):
        if isinstance(content, str):
            logger.warning("%s, left out", one_line(f"{path}: not a readable image ({content})"))
    if all(isinstance(content, str) for content in found):
        raise DataError("none of the images can be read")
    return [isinstance(content, bytes) for content in found]


def _list_images(root: Path, split: str, notes: list[str]) -> list[ImageFile]:
    """Return all image files in the folder `split` of `root`, in the order of torchvision's ImageFolder.

    `notes` gets a line on the other files, except hidden ones.
    """
    start = root / split
    images, others = _find_images(start)
    found: list[ImageFile] = []
    for path, info in images:
        *folders, _ = path.relative_to(start).parts
        class_name, name = folders[0] if folders else "", path.relative_to(root).as_posix()
        found.append(ImageFile(class_name, name, info.st_size, info.st_mtime_ns))
    if kinds := ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common() if count):
        notes.append(f"{start}: ignored, not images that can be read: {kinds}")
    in_classes = [file for file in found if file.class_name]
    if in_classes and len(in_classes) < len(found):
        logger.warning(
            "%s: %d images outside the class folders are ignored",
            start,
            len(found) - len(in_classes),
        )
    return sorted(
        in_classes or found, key=lambda file: (file.class_name, *file.name.rpartition("/"))
    )


def _find_images(folder: Path) -> tuple[list[tuple[Path, os.stat_result]], Counter[str]]:
    """Return all image files in a folder, however deep, and the number of other files by suffix, except hidden ones.

    Raises:
        DataError: there are no images, or a folder cannot be read.
    """
    images: list[tuple[Path, os.stat_result]] = []
    others: Counter[str] = Counter()
    try:
        for entry in _walk(str(folder)):
            if entry.name.lower().endswith(EXTENSIONS):
                # a broken link is listed too, and counts as an unreadable image
                images.append((Path(entry.path), entry.stat(follow_symlinks=os.path.exists(entry))))
            else:
                others[
                    PurePath(entry.name).suffix.lower() or "without a suffix"
                ] += not entry.name.startswith(".")
    except OSError as error:
        raise DataError(
            f"{error.filename or folder}: {error.strerror or error}; make the folder readable"
        ) from error
    if not images:
        raise DataError(
            f"{folder}: no images; searched it and its subfolders for {' '.join(EXTENSIONS)}"
        )
    return images, others


def _folders_of_images(root: Path, known: Sequence[str]) -> list[str]:
    """Return the names of the other folders in `root` that hold images, however deep."""
    found = []
    for path in sorted(root.iterdir()):
        if path.is_dir() and path.name not in known and not path.name.startswith("."):
            with suppress(OSError):  # it cannot be read, and need not be
                if _holds_images(path, root):
                    found.append(path.name)
    return found


def refuse_run_among_images(out: Path, root: str) -> None:
    """Refuse a run in a folder within `root` that holds some of its images: they would be left out as the run is.

    Raises:
        DataError: `out` is such a folder.
    """
    whole = Path(os.path.realpath(os.path.expanduser(root)))
    if (
        whole in Path(os.path.realpath(out)).parents
        and os.path.isdir(out)
        and _holds_images(out, whole)
    ):
        raise DataError(
            f"--out: {out} holds images of the data, which would be left out beside a run; name another folder"
        )


def _holds_images(folder: Path, root: Path) -> bool:
    """Return whether `folder`, which is within `root`, holds images, however deep."""
    files = _walk(str(folder), frozenset([os.path.realpath(root)]))
    return any(file.name.lower().endswith(EXTENSIONS) for file in files)


def _walk(folder: str, above: frozenset[str] = frozenset()) -> Iterator[os.DirEntry[str]]:
    """Yield the files in `folder`, however deep; links are followed, except to a folder above.

    Hidden folders are left out, and those of runs, as are a run's files in `folder` itself: a run that trains on the folder
    above it, or on its own, would add its own pictures.
    """
    place, run = os.path.realpath(folder), RunFiles(Path(folder))
    of_run = {path.name for path in run.all} if os.path.exists(run.showcase) else set()
    if place in above or (above and of_run):
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in of_run:
                continue
            if not os.path.isdir(entry):
                yield entry
            elif not entry.name.startswith("."):
                yield from _walk(entry.path, above | {place})


# --- reading them ----------------------------------------------------------------------------------------------------


def _key(
    files: Sequence[ImageFile],
    class_names: tuple[str, ...],
    image_size: Size,
    kept: Size | None,
    prepared: Preparation,
) -> str:
    """Return what changes with every file added, removed, renamed or written to.

    And with whatever else shapes the images; the class names, because a new class in train
    renumbers those in test.
    """
    shaping = (CACHE_LAYOUT, image_size, class_names, kept, prepared)
    parts = [repr(shaping), *map(repr, files)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _in_threads(
    decode_file: Callable[[ImageFile], Decoded], files: Sequence[ImageFile]
) -> Generator[Decoded]:
    """Apply a function to files, in order, in threads: Pillow works outside of Python's lock.

    For 3,000 photos, one thread takes 2.7 s, two 1.4 s, and two processes also 1.4 s; but processes
    would import torch and run the main module again, guarded or not.
    """
    small = sum(file.size for file in files) < SMALL_FILE * len(files)
    pool = ThreadPoolExecutor(1 if small else min(usable_cores(), 16))
    try:
        with warnings.catch_warnings(action="ignore"):  # Pillow's warnings name no file
            for start in range(0, len(files), 256):  # so that only some images wait in memory
                yield from pool.map(decode_file, files[start : start + 256])
    finally:
        pool.shutdown(cancel_futures=True)
