"""A folder of images: listing its files, and reading them in parallel."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain
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
from vit.errors import DataError, one_line
from vit.inputs import OWN, Preparation
from vit.isolation import without_warnings
from vit.openmp import usable_cores
from vit.progress import track
from vit.runs import RunFiles

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
"""Which files are images: torchvision's IMG_EXTENSIONS and GIF, in upper or lower case."""

SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
"""Names of splits elsewhere, in any case: two such folders, and no `train`, are not classes."""

SYSTEM_NAMES = {
    # of macOS, beside those that begin with a dot: AppleDouble copies (._photo.jpg), .DS_Store
    "__macosx",
    "icon\r",
    "network trash folder",
    "temporary items",
    # of Windows
    "$recycle.bin",
    "recycler",
    "system volume information",
    "thumbs.db",
    "ehthumbs.db",
    "ehthumbs_vista.db",
    "desktop.ini",
    # of network storage
    "@eadir",
    "@recycle",
    "@recently-snapshot",
    "@tmp",
    "#recycle",
    "#snapshot",
    # of Linux
    "lost+found",
}
"""Files and folders that systems put beside images, in lower case: previews, copies, what was
deleted."""

SMALL_FILE = 4096
"""Mean bytes per file below which one thread decodes: on small images, Pillow works mostly within
Python's lock."""

IN_MEMORY = 256
"""Decoded images that may wait in memory to be written to the cache."""

logger = logging.getLogger(__name__)


def load_folder(
    root: Path,
    image_size: tuple[int, int],
    on_bad_image: str,
    cache: Path,
    prepared: Preparation = OWN,
) -> tuple[ImageSet, ImageSet]:
    """Return the training and test images of a folder, resized and mapped from a cache file.

    The cache is made if it is missing or outdated. Layouts of the folder:
        root/train/<class>/..., root/test/<class>/...    `val` is used if there is no `test`
        root/<class>/...                                 no train folder: the folders are classes
        root/*.png, root/train/*.png                     no folders: images without labels

    Classes are the folders with an image anywhere in them, sorted; the files of a class are in the
    order of torchvision's ImageFolder; folders of runs, hidden files and those of systems are left
    out, and so is a class whose images are all unreadable. Without a test split,
    M = min(1000, max(1, N // 10)) of the N images, evenly spaced in the list (numbers i * N // M),
    are held out; see `hold_out_test_images`. `inputs.decode` says how the pixels are made.

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
    # Which files, and their classes
    notes: list[str] = []
    train_files, *test_files = list_folder(root, notes).values()
    class_names = tuple(sorted({file.class_name for file in train_files} - {""}))
    label_of = {name: label for label, name in enumerate(class_names)}

    # How a file is read
    def path_of(file: ImageFile) -> str:
        return os.path.join(root, file.name)

    def decode_file(file: ImageFile, size: Size) -> Decoded:
        pixels = inputs.decode(path_of(file), size, prepared)
        return pixels, label_of.get(file.class_name, -1)

    def measure(file: ImageFile) -> tuple[Size, int] | None:
        return inputs.measure_file(path_of(file))

    def name_of(file: ImageFile) -> str:
        return one_line(path_of(file))

    def load(split: str, files: list[ImageFile], size: Size | None) -> Cached:
        key = _key(files, class_names, image_size, size, prepared)
        path = cache_path(cache, str(root), split, image_size, prepared)
        pictures = Pictures(
            split=split,
            items=files,
            key=key,
            decode=decode_file,
            measure=measure,
            name_of=name_of,
            parallel=_in_threads,
        )
        result = cached(path, pictures, image_size, size, on_bad_image)
        return result._replace(images=replace(result.images, class_names=class_names))

    # The training images decide the size of both splits. Images prepared for a model have its input
    # size at once, because resizing them again would blur them.
    size = None
    if prepared != OWN:
        size = image_size
    trained_on = load("train", train_files, size)
    train = trained_on.images
    if test_files:
        height, width = train.images.shape[-2:]
        test = load("test", test_files[0], (height, width)).images
        train, test = _leave_out_empty_classes([train, test], notes)
    else:
        (train,) = _leave_out_empty_classes([train], notes)
        train, test, note = hold_out_test_images(train, str(root))
        notes.append(f"no test folder: {note}")
    notes += describe(train, test, trained_on, image_size)
    return replace(train, notes=tuple(map(one_line, notes))), test


# --- which files ---------------------------------------------------------------------------------


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

    # Which of those that can be read
    def decode_file(file: ImageFile) -> Decoded:
        return inputs.decode(os.path.join(root, file.name), image_size), -1

    numbers = []
    hashes = []
    decoding = track(_in_threads(decode_file, files), "comparing", len(files), " images")
    for number, (pixels, _) in enumerate(decoding):
        if isinstance(pixels, bytes):
            numbers.append(number)
            hashes.append(image_hash(pixels))
    test_numbers: set[int] = set()
    if len(hashes) > 1:
        held_out = choose_test_images(torch.tensor(hashes))
        test_numbers = set(torch.tensor(numbers)[held_out].tolist())

    # The files, in their order
    train = [file for number, file in enumerate(files) if number not in test_numbers]
    test = [file for number, file in enumerate(files) if number in test_numbers]
    return {"train": train, "test": test}


def list_folder(root: Path, notes: list[str] | None = None) -> dict[str, list[ImageFile]]:
    """Return the files by split folder, "train" and "test" or "val"; without split folders, by "".

    Args:
        root: the folder with the images.
        notes: gets a line for files and folders that are left out.

    Raises:
        DataError: as in `load_folder`, as far as it shows without reading an image.
    """
    if notes is None:
        notes = []

    # The splits: train, or else none; then test, or else val
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; set data.root to your folder of images")
    present = [name for name in ("train", "test", "val") if (root / name).is_dir()]
    if present and present[0] != "train":
        advice = f"add it, or rename {present[0]}"
        raise DataError(f"{root}: has a folder {present[0]} but no folder train; {advice}")
    splits = present[:2] or [""]

    # The training files. Classes called Training and Testing are another package's splits.
    train = _list_images(root, splits[0], notes)
    class_names = {file.class_name for file in train}
    split_names = sorted(name for name in class_names if name.lower() in SPLITS)
    if not present and len(split_names) > 1:
        folders = ", ".join(split_names)
        advice = "rename them train and test"
        raise DataError(f"{root}: its folders {folders} are splits, not classes; {advice}")

    # Folders beside the splits are not used; if there is a single split without class folders,
    # train may be meant as a class beside them
    if present:
        unused = ", ".join(_folders_of_images(root, splits))
        if unused and len(splits) == 1 and class_names == {""}:
            problem = f"has folders of images ({unused}) beside train, which has no class folders"
            advice = "if train is a class, put all classes into a folder train"
            raise DataError(f"{root}: {problem}; {advice}; else move the others away")
        if unused:
            notes.append(f"folders of images that are not used: {unused}")
    if len(splits) == 1:
        return {splits[0]: train}

    # The test files, whose classes must be among those of the training files
    test = _list_images(root, splits[1], notes)
    unknown = sorted({file.class_name for file in test} - class_names)
    if unknown:
        problem = "has no class folders"
        if unknown[0]:
            problem = f"has a class folder {unknown[0]}"
        difference = f"{problem}, unlike {root / 'train'}"
        raise DataError(f"{root / splits[1]}: {difference}; both need the same classes")
    return {splits[0]: train, splits[1]: test}


def list_files(folder: Path) -> list[Path]:
    """Return all image files in a folder, however deep, sorted by path.

    Raises:
        DataError: there are none, or a folder cannot be read.
    """
    images, _ = _find_images(folder)
    return sorted(path for path, _ in images)


def choose_readable(paths: Sequence[str | Path], count: int = 0) -> list[int]:
    """Choose up to `count` files that can be decoded, evenly spaced; 0: all that can.

    The next one that can takes the place of one that cannot, of which a warning says why.

    Returns:
        Their numbers, in order.

    Raises:
        DataError: no file can be decoded.
    """
    chosen = []
    tried: set[int] = set()
    starts = evenly_spaced(len(paths), count).tolist()
    for start in track(starts, "checking", unit=" images"):
        for number in chain(range(start, len(paths)), range(start)):
            if number in tried:
                continue
            tried.add(number)
            if _is_readable(paths[number]):
                chosen.append(number)
                break
    if not chosen:
        raise DataError("none of the images can be read")
    return sorted(chosen)


def _is_readable(path: str | Path) -> bool:
    """Return whether a file can be decoded; if not, warn and say why."""
    # a small size, because the pixels are not used
    content = inputs.decode(str(path), (8, 8))
    if isinstance(content, str):
        logger.warning("%s, left out", one_line(f"{path}: not a readable image ({content})"))
        return False
    return True


def _list_images(root: Path, split: str, notes: list[str]) -> list[ImageFile]:
    """Return all image files in the folder `split` of `root`, in the order of ImageFolder.

    `notes` gets a line on the other files, except hidden ones.
    """
    start = root / split
    paths, ignored = _find_images(start)

    # The first folder below `start` is the class
    files: list[ImageFile] = []
    for path, info in paths:
        class_name = ""
        folders = path.relative_to(start).parts[:-1]
        if folders:
            class_name = class_key(folders[0])
        name = path.relative_to(root).as_posix()
        file = ImageFile(class_name, name, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        files.append(file)

    # Say which files are left out
    counts = [f"{count:,} {suffix}" for suffix, count in ignored.most_common()]
    if counts:
        notes.append(f"{start}: ignored, not images that can be read: {', '.join(counts)}")
    in_classes = [file for file in files if file.class_name]
    outside = len(files) - len(in_classes)
    if in_classes and outside:
        logger.warning("%s: %d images outside the class folders are ignored", start, outside)
        files = in_classes

    # By class, then folder, then name: the order in which torchvision's ImageFolder walks
    return sorted(files, key=lambda file: (file.class_name, *file.name.rpartition("/")))


def _find_images(folder: Path) -> tuple[list[tuple[Path, os.stat_result]], Counter[str]]:
    """Return all image files in a folder, however deep, and the number of other files by suffix.

    Files of systems are not counted, hidden ones only if they have an image's suffix.

    Raises:
        DataError: there are no images, or a folder cannot be read.
    """
    images: list[tuple[Path, os.stat_result]] = []
    ignored: Counter[str] = Counter()
    try:
        for entry in _walk(str(folder)):
            is_image = entry.name.lower().endswith(EXTENSIONS)
            if _is_of_system(entry.name):
                if is_image:
                    ignored["hidden"] += 1
            elif is_image:
                # a broken link is listed too, and counts as an unreadable image
                info = entry.stat(follow_symlinks=os.path.exists(entry))
                images.append((Path(entry.path), info))
            else:
                suffix = PurePath(entry.name).suffix.lower()
                ignored[suffix or "without a suffix"] += 1
    except OSError as error:
        reason = error.strerror or error
        path = error.filename or folder
        raise DataError(f"{path}: {reason}; make the folder readable") from error
    if not images:
        extensions = " ".join(EXTENSIONS)
        raise DataError(f"{folder}: no images; searched it and its subfolders for {extensions}")
    return images, ignored


def _folders_of_images(root: Path, splits: Sequence[str]) -> list[str]:
    """Return the names of the folders in `root`, besides its splits, that hold images."""
    names = []
    for path in sorted(root.iterdir()):
        if not path.is_dir() or path.name in splits or _is_of_system(path.name):
            continue
        # a folder that is not used need not be readable
        with suppress(OSError):
            if _holds_images(path, root):
                names.append(path.name)
    return names


def refuse_run_among_images(out: Path, root: str) -> None:
    """Refuse a run in a folder that holds some of the images: they would be left out, as a run is.

    Args:
        out: the run's folder.
        root: the folder of the images.

    Raises:
        DataError: `out` lies within `root` and holds images.
    """
    images = Path(os.path.realpath(os.path.expanduser(root)))
    within = images in Path(os.path.realpath(out)).parents
    if within and out.is_dir() and _holds_images(out, images):
        problem = "holds images of the data, which would be left out beside a run"
        raise DataError(f"--out: {out} {problem}; name another folder")


def _holds_images(folder: Path, root: Path) -> bool:
    """Return whether `folder`, which is within `root`, holds images, however deep."""
    for file in _walk(str(folder), frozenset([os.path.realpath(root)])):
        if file.name.lower().endswith(EXTENSIONS) and not _is_of_system(file.name):
            return True
    return False


def _is_of_system(name: str) -> bool:
    """Return whether a file or folder is hidden, or one that systems put beside images."""
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def _walk(folder: str, above: frozenset[str] = frozenset()) -> Iterator[os.DirEntry[str]]:
    """Yield the files in `folder`, however deep; links are followed, except to a folder above.

    Hidden folders and those of systems are left out, and so are those of runs: a run that trains on
    the folder above it would train on its own pictures. A run may also lie in `folder` itself: then
    only its own files are left out.

    Args:
        folder: where to start.
        above: real paths of the folders in which `folder` lies.
    """
    place = os.path.realpath(folder)
    run = RunFiles(Path(folder))
    run_files: set[str] = set()
    if os.path.exists(run.showcase):
        run_files = {path.name for path in run.all}
    if place in above or (above and run_files):
        return

    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in run_files:
                continue
            if not os.path.isdir(entry):
                yield entry
            elif not _is_of_system(entry.name):
                yield from _walk(entry.path, above | {place})


# --- reading them --------------------------------------------------------------------------------


def _leave_out_empty_classes(splits: Sequence[ImageSet], notes: list[str]) -> list[ImageSet]:
    """Return splits without the classes that have no image left in any: all were unreadable.

    Args:
        splits: with the same class names.
        notes: gets a line on the classes that are left out.
    """
    class_names = splits[0].class_names
    present = torch.cat([split.labels for split in splits]).unique()
    present = present[present >= 0]
    if len(present) == len(class_names):
        return list(splits)
    present_names = tuple(class_names[number] for number in present.tolist())
    absent = ", ".join(name for name in class_names if name not in present_names)
    notes.append(f"classes whose images are all unreadable are left out: {absent}")
    return [split.with_classes(present, present_names) for split in splits]


def _key(
    files: Sequence[ImageFile],
    class_names: tuple[str, ...],
    image_size: Size,
    size: Size | None,
    prepared: Preparation,
) -> str:
    """Return a hash that changes with every file added, removed, renamed, replaced or written to.

    It also changes with all else that shapes the images, and with the class names, because a new
    class among the training images renumbers those of the test images.
    """
    shaping = (CACHE_LAYOUT, image_size, class_names, size, prepared)
    parts = [repr(shaping), *map(repr, files)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _in_threads(
    decode_file: Callable[[ImageFile], Decoded], files: Sequence[ImageFile]
) -> Generator[Decoded]:
    """Apply a function to files, in order, in threads: Pillow works outside of Python's lock.

    For 3,000 photos, one thread takes 2.7 s, two 1.4 s, and two processes also 1.4 s; but processes
    would import torch and run the main module again, guarded or not.
    """
    threads = min(usable_cores(), 16)
    if sum(file.size for file in files) < SMALL_FILE * len(files):
        threads = 1
    pool = ThreadPoolExecutor(threads)
    try:
        # Pillow's warnings name no file
        with without_warnings():
            # `map` starts all its tasks at once, so it gets only some files at a time
            for start in range(0, len(files), IN_MEMORY):
                yield from pool.map(decode_file, files[start : start + IN_MEMORY])
    finally:
        pool.shutdown(cancel_futures=True)
