"""A folder of images: which files, and in which order."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import NamedTuple

import torch

from vit import inputs
from vit.data import ImageSet, image_hash
from vit.data.cache import (
    CACHE_LAYOUT,
    Cached,
    Decoded,
    Pictures,
    Size,
    cache_path,
    cached,
    describe,
)
from vit.data.images import choose_test_images, class_key, evenly_spaced, hold_out_test_images
from vit.device import usable_cores
from vit.errors import DataError, one_line
from vit.inputs import OWN, Preparation
from vit.progress import track
from vit.runs import RunFiles

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
"""Which files are images: torchvision's IMG_EXTENSIONS and GIF, in upper or lower case."""
SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
"""Names of splits elsewhere, in any case: two such folders, and no `train`, are not classes."""
COPIES = ("__macosx", "@eadir", "@recycle", "#recycle", "$recycle.bin")
"""Folders in which systems keep previews, copies and what was deleted, in lower case; other such
names begin with a dot."""
SMALL_FILE = 4096
"""Mean bytes per file below which one thread decodes: on small images, Pillow works mostly within
Python's lock."""

logger = logging.getLogger(__name__)


class ImageFile(NamedTuple):
    """An image file, not opened yet."""

    # "" outside the class folders, or if there are none
    class_name: str
    # relative to the root, "/" between the parts
    name: str
    size: int
    mtime_ns: int
    # when it was last written, moved or replaced; unlike mtime, nobody can set it back
    ctime_ns: int


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
    test split, M = min(1000, max(1, N // 10)) of the N images, evenly spaced in the list (numbers
    i * N // M), are held out; see `hold_out_test_images`. `inputs.decode` says how the pixels are
    made.

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
            images, an image cannot be read, or the cache cannot be written.
    """
    notes: list[str] = []
    train_files, *test_files = list_folder(root, notes).values()
    class_names = tuple(sorted({file.class_name for file in train_files} - {""}))
    label_of = {name: label for label, name in enumerate(class_names)}

    def load(split: str, files: list[ImageFile], size: Size | None) -> Cached:
        # another key for every file that is added, removed, renamed, replaced or written to, and
        # for a new class among the training images, which renumbers the others
        shaping = (CACHE_LAYOUT, image_size, class_names, size, prepared)
        key = hashlib.sha256("".join(map(repr, [shaping, *files])).encode()).hexdigest()

        def decode(file: ImageFile, size: Size) -> Decoded:
            pixels = inputs.decode(os.path.join(root, file.name), size, prepared)
            return pixels, label_of.get(file.class_name, -1)

        pictures = Pictures(
            split=split,
            items=files,
            key=key,
            decode=decode,
            measure=lambda file: inputs.size_of(os.path.join(root, file.name)),
            name_of=lambda file: one_line(os.path.join(root, file.name)),
            threads=_threads_for(files),
        )
        path = cache_path(cache, str(root), split, image_size, prepared)
        result = cached(path, pictures, image_size, size, on_bad_image)
        return result._replace(images=replace(result.images, class_names=class_names))

    # The training images decide the size of both splits. Images prepared for a model have its input
    # size at once, because resizing them again would blur them.
    trained_on = load("train", train_files, None if prepared == OWN else image_size)
    train = trained_on.images
    if test_files:
        height, width = train.images.shape[-2:]
        test = load("test", test_files[0], (height, width)).images
    else:
        train, test, note = hold_out_test_images(train, str(root))
        notes.append(f"no test folder: {note}")
    notes += describe(train, test, trained_on.sizes, image_size)
    return replace(train, notes=tuple(map(one_line, notes))), test


def _threads_for(files: Sequence[ImageFile]) -> int:
    if sum(file.size for file in files) < SMALL_FILE * len(files):
        return 1
    return min(usable_cores(), 16)


# ---- Which files ---------------------------------------------------------------------------------


def list_folder(root: Path, notes: list[str] | None = None) -> dict[str, list[ImageFile]]:
    """Return the files by split folder, "train" and "test" or "val"; without split folders, by "".

    Args:
        root: the folder with the images.
        notes: gets a line for files and folders that are left out.

    Raises:
        DataError: as in `load_folder`, as far as it shows without reading an image.
    """
    notes = [] if notes is None else notes
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; set data.root to your folder of images")
    present = [name for name in ("train", "test", "val") if (root / name).is_dir()]
    if present and present[0] != "train":
        advice = f"add it, or rename {present[0]}"
        raise DataError(f"{root}: has a folder {present[0]} but no folder train; {advice}")
    splits = {name: _list_images(root, name, notes) for name in present[:2] or [""]}

    # Classes called Training and Testing are another package's splits
    train, *tests = splits.values()
    class_names = {file.class_name for file in train}
    other_splits = sorted(name for name in class_names if name.lower() in SPLITS)
    if not present and len(other_splits) > 1:
        folders = ", ".join(other_splits)
        advice = "rename them train and test"
        raise DataError(f"{root}: its folders {folders} are splits, not classes; {advice}")
    if present:
        unused = [path.name for path in sorted(root.iterdir()) if _holds_images(path, root)]
        unused = [name for name in unused if name not in splits]
        if unused:
            notes.append(f"folders of images that are not used: {', '.join(unused)}")

    # A test image of another class would count as one without a label
    unknown = sorted({file.class_name for files in tests for file in files} - class_names)
    if unknown:
        problem = f"the test images have a class {unknown[0]}" if unknown[0] else "no class folders"
        raise DataError(f"{root / present[1]}: {problem}, unlike {root / 'train'}")
    return splits


def list_splits(root: Path, image_size: Size) -> dict[str, list[ImageFile]]:
    """Return the files by split, "train" and "test" or "val", as `load_folder` uses them.

    Without a test folder, the files are read: copies of one image are on one side. A file that
    cannot be read is a training file. A single file is no split: its key is "".

    Raises:
        DataError: as in `list_folder`.
    """
    files_by_split = list_folder(root)
    files, *tests = files_by_split.values()
    if tests or len(files) < 2:
        return files_by_split
    numbers = []
    hashes = []
    for number, file in enumerate(track(files, "comparing", unit=" images")):
        pixels = inputs.decode(os.path.join(root, file.name), image_size)
        if isinstance(pixels, bytes):
            numbers.append(number)
            hashes.append(image_hash(pixels))
    held_out: set[int] = set()
    if len(hashes) > 1:
        held_out = set(torch.tensor(numbers)[choose_test_images(torch.tensor(hashes))].tolist())
    train = [file for number, file in enumerate(files) if number not in held_out]
    return {"train": train, "test": [files[number] for number in sorted(held_out)]}


def _list_images(root: Path, split: str, notes: list[str]) -> list[ImageFile]:
    """Return all image files in the folder `split` of `root`, in the order of ImageFolder."""
    start = root / split
    files: list[ImageFile] = []
    ignored: Counter[str] = Counter()
    for path in _walk(start):
        if not path.name.lower().endswith(EXTENSIONS):
            ignored[PurePath(path).suffix.lower() or "without a suffix"] += 1
            continue
        # the first folder below `start` is the class; a broken link counts as an unreadable image
        folders = path.relative_to(start).parts[:-1]
        info = path.stat() if path.exists() else path.lstat()
        name = path.relative_to(root).as_posix()
        class_name = class_key(folders[0]) if folders else ""
        times = (info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        files.append(ImageFile(class_name, name, *times))
    if not files:
        raise DataError(f"{start}: no images; searched it for {' '.join(EXTENSIONS)}")

    # Say which files are left out
    if ignored:
        counts = ", ".join(f"{count:,} {suffix}" for suffix, count in ignored.most_common())
        notes.append(f"{start}: ignored, not images that can be read: {counts}")
    in_classes = [file for file in files if file.class_name]
    outside = len(files) - len(in_classes)
    if in_classes and outside:
        logger.warning("%s: %d images outside the class folders are ignored", start, outside)
        files = in_classes

    # By class, then folder, then name: the order in which torchvision's ImageFolder walks
    return sorted(files, key=lambda file: (file.class_name, *file.name.rpartition("/")))


def list_files(folder: Path) -> list[Path]:
    """Return all image files in a folder, however deep, sorted by path.

    Raises:
        DataError: there are none.
    """
    files = sorted(path for path in _walk(folder) if path.name.lower().endswith(EXTENSIONS))
    if not files:
        raise DataError(f"{folder}: no images; searched it for {' '.join(EXTENSIONS)}")
    return files


def _walk(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the files in `folder`, however deep; links are followed, except to a folder above.

    A folder of a run is left out: a run that trains on the folder above it would train on its own
    pictures.
    """
    place = os.path.realpath(folder)
    if place in above or (above and RunFiles(folder).showcase.exists()):
        return
    for path in folder.iterdir():
        if _is_hidden(path.name):
            continue
        if path.is_dir():
            yield from _walk(path, above | {place})
        else:
            yield path


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in COPIES


def _holds_images(folder: Path, root: Path) -> bool:
    """Return whether a folder within `root`, which is none of a run, holds images."""
    if not folder.is_dir() or _is_hidden(folder.name):
        return False
    files = _walk(folder, frozenset([os.path.realpath(root)]))
    return any(file.name.lower().endswith(EXTENSIONS) for file in files)


def refuse_run_among_images(out: Path, root: str) -> None:
    """Refuse a run in a folder that holds some of the images: they would be left out, as a run is.

    Raises:
        DataError: `out` lies within `root`, and holds images.
    """
    images = Path(os.path.realpath(os.path.expanduser(root)))
    if images in Path(os.path.realpath(out)).parents and _holds_images(out, images):
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
