"""A folder of images: its files, their order, and their pixels.

root/train/<class>/..., root/test/<class>/...    `val` is used if there is no `test`
root/<class>/...                                 no train folder: the folders are classes
root/*.png, root/train/*.png                     no folders: images without labels
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path

from vit import inputs
from vit.data import ImageSet
from vit.data.cache import Decoded, Size, cache_path, cached, times_of
from vit.device import usable_cores
from vit.errors import DataError, plural
from vit.inputs import OWN, Preparation
from vit.runs import RunFiles
from vit.weights import class_key

JPEG = (".jpg", ".jpeg", ".jfif", ".jpe")
EXTENSIONS = (*JPEG, ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
"""Which files are images, in any case: torchvision's IMG_EXTENSIONS, GIF, all names of JPEG."""
SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
"""Common names of splits, in any case: side by side they are not classes."""
MOST_NAMED = 12
"""The most folders that a note on unused files names."""
AT_ONCE = 256
"""Decoded images that may wait in memory to be written."""

File = tuple[str, str]
"""An image's class, "" for none, and its path within the folder, "/" between the parts."""


def load_folder(
    root: Path, image_size: Size, on_bad_image: str, cache: Path, prepared: Preparation
) -> tuple[ImageSet, ImageSet | None]:
    """Return the training and test images of a folder, resized and mapped from a cache file.

    Classes are the folders with an image anywhere in them, sorted; the files of a class are in the
    order of torchvision's ImageFolder. `inputs.decode` says how the pixels are made.

    Args:
        root: the folder with the images.
        image_size: (H, W) of the model's input in pixels.
        on_bad_image: at an unreadable file, `stop` with its path, or `skip` it.
        cache: folder for the cache files.
        prepared: as a model expects its images.

    Returns:
        train, test: uint8 images (N, 3, h, w), int64 labels, both with the training images' class
            names; a note of `train` says which files are not used. None without a test split.
    """
    splits, unused = list_folder(root)
    train_files, *test_files = splits.values()
    class_names = tuple(sorted({class_name for class_name, _ in train_files} - {""}))
    label_of = {name: label for label, name in enumerate(class_names)} or {"": -1}
    # before any is decoded
    for class_name, name in chain(*test_files):
        if class_name not in label_of:
            problem = f"of a class {class_name!r}, which no training image has; rename its folder"
            if not class_name:
                problem = "in no class folder: sort the test images into classes, or move them away"
            raise DataError(f"{root / name} is {problem}")
    # a cache names its files alike, however the folder is named
    place = os.path.realpath(root)

    def load(split: str, files: list[File], size: Size | None) -> ImageSet:
        paths = [os.path.join(place, name) for _, name in files]
        labels = [label_of[class_name] for class_name, _ in files]
        images = cached(
            cache_path(cache, place, split, image_size, prepared),
            # the key changes with every file that is added, removed, renamed, replaced or written
            # to, and with a new class among the training images, which renumbers the others
            (class_names, prepared, files, list(map(times_of, paths))),
            len(files),
            lambda number: inputs.size_of(paths[number]),
            lambda size: _decoded(paths, labels, size, prepared),
            image_size,
            size,
            on_bad_image,
        )
        skipped = set(images.skipped)
        names = [name for _, name in files if os.path.join(place, name) not in skipped]
        return replace(images, class_names=class_names, files=tuple(names))

    # The training images decide the size of both splits. Images prepared for a model have its input
    # size at once, because resizing them again would blur them.
    train = load("train", train_files, None if prepared == OWN else image_size)
    notes = _notes_on_unused(root, unused, splits, class_names)
    train = replace(train, notes=(*train.notes, *notes))
    if not test_files:
        return train, None
    height, width = train.images.shape[-2:]
    return train, load("test", test_files[0], (height, width))


def _notes_on_unused(
    root: Path, unused: list[str], splits: Collection[str], class_names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return lines on the files left out, by class, and on classes without other files."""
    training = root / next(iter(splits))
    # the suffixes of a folder's files: of a class, of another folder as a whole
    suffixes: defaultdict[Path, list[str]] = defaultdict(list)
    for path in training.glob("[!._]*/"):
        if class_names and not any(path.iterdir()):
            suffixes[path] = []
    for file in map(Path, unused):
        depth = 2 if file.parts[0] in splits else 1
        place = root.joinpath(*file.parent.parts[:depth])
        suffixes[place].append(file.suffix or "no suffix")

    lines = []
    for path, endings in sorted(suffixes.items(), key=lambda item: -len(item[1])):
        files = plural(len(endings), "file")
        kinds = ", ".join(sorted(set(endings))) or "empty"
        is_class = class_names and path.parent == training
        if is_class and class_key(path.name) not in class_names:
            lines.append(f"class {path.name} is left out: none of its {files} is read ({kinds})")
        else:
            lines.append(f"{path}: {files} not used ({kinds})")
    if len(lines) > MOST_NAMED:
        lines[MOST_NAMED:] = [f"{len(lines) - MOST_NAMED:,} other folders have files not used"]
    return tuple(lines)


def _decoded(
    paths: list[str], labels: list[int], size: Size, prepared: Preparation
) -> Generator[Decoded]:
    """Yield the pixels of files, in order, decoded in threads.

    Pillow works outside of Python's lock: for 3,000 photos, one thread takes 2.7 s, two take 1.4 s,
    and so do two processes; but processes would import torch and run the main module again.
    """
    pool = ThreadPoolExecutor(min(usable_cores(), 16))
    try:
        # a pool starts all its tasks at once, so it gets only some files at a time
        for start in range(0, len(paths), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            files = paths[part]
            pixels = pool.map(lambda path: inputs.decode(path, size, prepared), files)
            yield from zip(files, pixels, labels[part], strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def list_folder(root: Path) -> tuple[dict[str, list[File]], list[str]]:
    """Return the files by split folder, and the paths of those that are left out.

    The splits are "train" and "test" or "val"; without split folders, "".
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; set data.root to your folder of images")
    # without a folder train, the folders are classes
    present = [name for name in ("train", "test", "val") if (root / name).is_dir()]
    if "train" not in present:
        present = []
    splits: dict[str, list[File]] = {name: [] for name in present[:2] or [""]}

    # Each file by its first folder, if that is a split, and the next, which is its class
    unused: list[str] = []
    for path in walk(root):
        name = path.relative_to(root).as_posix()
        folders = name.split("/")[:-1]
        if not present:
            folders.insert(0, "")
        split, class_name, *_ = (*folders, "", "")
        if split in splits and is_image(path):
            splits[split].append((class_key(class_name), name))
        elif split in splits or is_image(path):
            unused.append(name)
    for split, files in splits.items():
        if not files:
            raise DataError(f"{root / split}: no images; searched it for {' '.join(EXTENSIONS)}")
        # beside class folders, images of no class are none
        if any(class_name for class_name, _ in files):
            unused += [name for class_name, name in files if not class_name]
            files = [file for file in files if file[0]]
        place = _further_down(split, {os.path.dirname(name) for _, name in files})
        # training and test images side by side are a data set, but for train/train and test/test
        if place and len(splits) > 1 and (str(place) == split or place.name.lower() not in SPLITS):
            place = None
        if place is not None:
            problem = f"its splits or classes stand in {place}: do you mean {root / place}?"
            if place == Path():
                problem = "its folders are splits, not classes; rename them train and test"
            raise DataError(f"{root}: {problem}")
        # by class, then folder, then name: the order in which torchvision's ImageFolder walks
        splits[split] = sorted(files, key=lambda file: (file[0], *file[1].rpartition("/")))
    return splits, unused


def _further_down(split: str, folders: set[str]) -> Path | None:
    """Return the folder in which splits or classes stand, if not in the split's own.

    Test images would be trained on, and all would be of one class.

    Args:
        split: its folder, "" for the root.
        folders: all that hold images of the split.
    """
    # splits side by side
    paths = {path for folder in folders for path in (Path(folder), *Path(folder).parents)}
    named = Counter(path.parent for path in sorted(paths) if path.name.lower() in SPLITS)
    for place, count in named.most_common(1):
        if count > 1:
            return place

    # the one folder with all the images has only folders, or is named like a split
    place = Path(os.path.commonpath(folders))
    has_folders = str(place) not in folders
    if place != Path(split) and (has_folders or place.name.lower() in SPLITS):
        return place
    return None


def refuse_run_among_images(out: Path, root: Path) -> None:
    """Refuse a run in a folder with some of the images: `walk` would leave them out from now on."""
    images = root.resolve()
    if not out.is_dir() or images not in out.resolve().parents:
        return
    if any(map(is_image, walk(out, frozenset([str(images)])))):
        problem = "holds images of the data, which would be left out beside a run"
        raise DataError(f"--out: {out} {problem}; name another folder")


def is_image(path: Path) -> bool:
    """Return whether a file's name is that of an image."""
    return path.name.lower().endswith(EXTENSIONS)


def walk(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the files in `folder`, however deep; links are followed, except to a folder above.

    A run's folder is left out: a run that trains on the folder above it would train on its own
    figures.
    """
    place = os.path.realpath(folder)
    if place in above or (above and RunFiles(folder).has_begun):
        return
    for path in folder.iterdir():
        # files that systems put beside images
        if path.name.startswith((".", "__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini")):
            continue
        if path.is_dir():
            yield from walk(path, above | {place})
        else:
            yield path
