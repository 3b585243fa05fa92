"""A folder of images: decoded once, in parallel, into a cache which later starts only map into memory.

The cache is one safetensors file a split. It is written as a stream and mapped lazily, so that neither making nor using
it needs memory for all images at once:

    images   U8  (N, 3, H, W)   in the order of the files, as they are decoded
    skipped  U8  (bytes,)       JSON, the names of the files left out; filled up so that the labels start at 8 k
    labels   I64 (N,)
    __metadata__                fingerprint of the files, class names, content stamp
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Literal, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from vit.atomic import replacing
from vit.data import decode
from vit.data.images import DataError, ImageSet, content_stamp

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Which files are images: torchvision's IMG_EXTENSIONS, in upper or lower case."""

CACHE_LAYOUT = 1
"""To be raised when the pixels made of a file, or their place in the cache, change."""

BYTES_PER_WORKER = 2**21
"""Image files worth a process, which takes 0.15 s to start; they take some 0.2 s to decode."""

logger = logging.getLogger(__name__)


def load_folder(
    root: Path, image_size: tuple[int, int], on_bad_image: Literal["stop", "skip"], cache: Path
) -> tuple[ImageSet, ImageSet]:
    """The training and test images of a folder, resized, mapped from a cache that is made where it is missing or old.

    Layouts:
        root/train/<class>/..., root/test/<class>/...    `val` is taken where there is no `test`
        root/<class>/...                                 no train folder: the folders are the classes
        root/*.png, root/train/*.png                     no folders: images without labels

    Classes are the folders with an image somewhere in them, in sorted order; the files of a class are in the order of
    torchvision's ImageFolder. Without a test split, M = min(1000, max(1, N // 10)) of the N files, evenly spaced in the
    list (numbers i * N // M), are held out of the training images. What becomes of the pixels: `decode.decode`.

    Args:
        root: the folder with the images.
        image_size: (H, W) in pixels.
        on_bad_image: at a file that cannot be read, `stop` with its path, or `skip` it and list it in `skipped`.
        cache: folder for the cache files.

    Returns:
        train, test: uint8 images (N, 3, H, W), int64 labels, both with the class names of the training images.

    Raises:
        DataError: no images, fewer than two, a class of the test images that the training images lack, an image that
            cannot be read, a cache that cannot be written.
    """
    train, test = list_splits(root)
    class_names = tuple(sorted({file.class_name for file in train + test} - {""}))
    return (
        _load(_Split(root, "train", train, class_names, image_size), on_bad_image, cache),
        _load(_Split(root, "test", test, class_names, image_size), on_bad_image, cache),
    )


# --- which files -----------------------------------------------------------------------------------------------------


class ImageFile(NamedTuple):
    """An image file, of whose content nothing is known yet."""

    class_name: str  # "" where there are no class folders
    name: str  # relative to the root, "/" between the parts
    size: int
    mtime_ns: int


def list_splits(root: Path) -> tuple[list[ImageFile], list[ImageFile]]:
    """The files for training and for testing, each in its order.

    Raises:
        DataError: as `load_folder`, as far as it can be seen without reading an image.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; set data.root to your folder of images")
    present = [name for name in ("train", "test", "val") if (root / name).is_dir()]
    if present and present[0] != "train":
        raise DataError(f"{root}: has a folder {present[0]} but no folder train; add it, or rename {present[0]}")
    train = _list_images(root, "train" if present else "")
    if len(present) < 2:
        if len(train) < 2:
            raise DataError(f"{root}: has only one image; one to train on and one to test on are the least")
        count = min(1000, max(1, len(train) // 10))
        held_out = [i * len(train) // count for i in range(count)]
        kept = sorted(set(range(len(train))).difference(held_out))
        return [train[i] for i in kept], [train[i] for i in held_out]
    test = _list_images(root, present[1])
    unknown = sorted({file.class_name for file in test} - {file.class_name for file in train})
    if unknown:
        what = f"a class folder {_printable(unknown[0])}" if unknown[0] else "no class folders"
        raise DataError(f"{root / present[1]}: has {what}, unlike {root / 'train'}; both need the same classes")
    return train, test


def _list_images(root: Path, split: str) -> list[ImageFile]:
    """All image files in the folder `split` of `root`, however deep, in the order of torchvision's ImageFolder."""
    start = root / split
    found: list[ImageFile] = []
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while waiting:
        folder, above = waiting.pop()
        try:
            place = os.stat(start / folder)
            if (place.st_dev, place.st_ino) in above:  # a link back to a folder that it is in
                continue
            above |= {(place.st_dev, place.st_ino)}
            with os.scandir(start / folder) as entries:
                for entry in entries:
                    path = f"{folder}{entry.name}"
                    try:
                        info = entry.stat()
                    except OSError:  # a link to nowhere is listed, so that it counts as an image that cannot be read
                        info = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(info.st_mode):
                        waiting.append((f"{path}/", above))
                    elif entry.name.lower().endswith(EXTENSIONS):
                        name = f"{split}/{path}" if split else path
                        class_name = path.split("/")[0] if folder else ""
                        found.append(ImageFile(class_name, name, info.st_size, info.st_mtime_ns))
        except OSError as error:
            raise DataError(f"{_printable(start / folder)}: {error.strerror}; make the folder readable") from error
    if not found:
        raise DataError(f"{start}: no images; looked in it and in the folders in it for {' '.join(EXTENSIONS)}")
    in_classes = [file for file in found if file.class_name]
    if in_classes and len(in_classes) < len(found):
        logger.warning("%s: %d images beside the class folders are not used", start, len(found) - len(in_classes))
    return sorted(in_classes or found, key=lambda file: (file.class_name, *file.name.rpartition("/")))


@dataclass(frozen=True)
class _Split:
    """What is to become of which files."""

    root: Path
    name: str
    files: list[ImageFile]
    class_names: tuple[str, ...]
    image_size: tuple[int, int]

    @cached_property
    def fingerprint(self) -> str:
        """Changes with every file added, removed, renamed or written to, and with whatever else shapes the cache."""
        # The class names count, as a new class in train renumbers those in test, whose files are as they were.
        digest = hashlib.sha256(repr((CACHE_LAYOUT, self.image_size, self.class_names)).encode())
        for file in self.files:
            digest.update(repr(file).encode())
        return digest.hexdigest()

    @property
    def cache_name(self) -> str:
        """One name for each folder, split and size, that tells a reader which."""
        root = self.root.resolve()
        key = hashlib.sha256(repr((str(root), self.name, self.image_size)).encode()).hexdigest()[:12]
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", root.name)[:40]
        return f"{stem}-{self.name}-{self.image_size[0]}x{self.image_size[1]}-{key}.safetensors"


# --- the cache -------------------------------------------------------------------------------------------------------


def _load(split: _Split, on_bad_image: str, cache: Path) -> ImageSet:
    path = cache / split.cache_name
    cached = _open_cache(path, split)
    if cached is not None and (on_bad_image == "skip" or not cached.skipped):
        return cached
    try:
        return _make_cache(path, split, on_bad_image)
    except OSError as error:
        raise DataError(f"{cache}: cannot hold the cache ({error.strerror or error}); set data.cache") from error


def _open_cache(path: Path, split: _Split) -> ImageSet | None:
    """The images of a cache, mapped into memory; None where there is none, or one of other files."""
    try:
        data = _map(path)
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        metadata = header["__metadata__"]
        if metadata["fingerprint"] != split.fingerprint:
            return None
        if len(data) != start + header["labels"]["data_offsets"][1]:
            raise ValueError("wrong length")
        images = _view(data, start, header["images"], torch.uint8)
        labels = _view(data, start, header["labels"], torch.int64)
        skipped = json.loads(bytes(_view(data, start, header["skipped"], torch.uint8).tolist()))
        paths = tuple(_printable(split.root / name) for name in skipped)
        return ImageSet(images, labels, tuple(json.loads(metadata["class_names"])), metadata["stamp"], paths)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        logger.warning("%s: this cache is damaged (%s) and is made anew", path, _printable(error))
        return None


def _map(path: Path) -> mmap.mmap:
    """The bytes of a file, read only when they are touched; what is written to them stays in this process."""
    with path.open("rb") as file:
        if sys.platform != "linux":
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        # The same; but unless told not to reserve memory (named since Python 3.13), Linux refuses more than it has.
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)
        return mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _view(data: mmap.mmap, start: int, entry: dict[str, list[int]], dtype: torch.dtype) -> Tensor:
    begin, end = entry["data_offsets"]
    flat = torch.frombuffer(data, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=start + begin)
    return flat.view(entry["shape"])


def _make_cache(path: Path, split: _Split, on_bad_image: str) -> ImageSet:
    """Decode the files into a new cache; when anything fails, what was at `path` is still there."""
    # How many images can be read shows at the end, so room is left for the longest header and filled with spaces.
    room = -(-len(_header(split, len(split.files), 10**15, "0" * 16)) // 8) * 8
    label_of = {name: label for label, name in enumerate(split.class_names)}
    labels: list[int] = []
    skipped: list[str] = []
    with replacing(path) as partial, partial.open("wb") as out:
        out.write(room.to_bytes(8, "little").ljust(8 + room))
        with closing(_decoded(split)) as decoded:
            progress = tqdm(decoded, f"decoding {split.name}", len(split.files), unit=" images", disable=None)
            for file, pixels in zip(split.files, progress, strict=True):
                if isinstance(pixels, bytes):
                    out.write(pixels)
                    labels.append(label_of.get(file.class_name, -1))
                    continue
                bad = f"{_printable(split.root / file.name)}: not a readable image ({_printable(pixels)})"
                if on_bad_image == "stop":
                    raise DataError(f"{bad}; remove it, or leave out all such files: data.on_bad_image: skip")
                logger.warning("%s, left out", bad)
                skipped.append(file.name)
        if not labels:
            raise DataError(f"none of the {len(split.files)} {split.name} images can be read, neither {bad}")
        names = json.dumps(skipped).encode()
        names += b" " * (-(out.tell() + len(names)) % 8)
        out.write(names)
        out.write(torch.tensor(labels, dtype=torch.int64).numpy().tobytes())

        def finish(stamp: str) -> ImageSet:
            out.seek(8)
            out.write(_header(split, len(labels), len(names), stamp).ljust(room))
            out.flush()
            made = _open_cache(partial, split)
            assert made is not None
            return made

        unstamped = finish(stamp="")
        made = finish(content_stamp(unstamped.images, unstamped.labels))
    return made


def _header(split: _Split, count: int, skipped_bytes: int, stamp: str) -> bytes:
    height, width = split.image_size
    metadata = {"fingerprint": split.fingerprint, "class_names": json.dumps(split.class_names), "stamp": stamp}
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, dtype, shape, size in (
        ("images", "U8", [count, 3, height, width], count * 3 * height * width),
        ("skipped", "U8", [skipped_bytes], skipped_bytes),
        ("labels", "I64", [count], count * 8),
    ):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return json.dumps(header).encode()


# --- decoding in parallel --------------------------------------------------------------------------------------------


def _decoded(split: _Split) -> Generator[bytes | str]:
    """In the order of the files: the pixels of each, uint8 (3, H, W), or why it cannot be read.

    Processes, as at small files Pillow works mostly within Python's lock: 60,000 JPEGs of 32 x 32 took two processes
    9 s, one thread 14 s and two threads 21 s. They are programs of their own, as multiprocessing forks beside torch's
    threads or runs the main module again, and its workers outlive a parent that is killed. These end when nobody reads.
    """
    paths = [os.path.join(split.root, file.name) for file in split.files]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(cores, 16, sum(file.size for file in split.files) // BYTES_PER_WORKER)
    if count < 2:
        for path in paths:
            yield decode.decode(path, split.image_size)
        return
    with ExitStack() as stack:
        outputs = [stack.enter_context(_worker(paths[first::count], split.image_size)) for first in range(count)]
        for number, path in enumerate(paths):
            output = outputs[number % count]
            header = output.read(decode.ANSWER.size).ljust(decode.ANSWER.size, b"\xff")
            is_image, length = decode.ANSWER.unpack(header)
            content = output.read(length)
            if len(content) < length:
                raise DataError(f"{_printable(path)}: the process died that was to decode it; remove it")
            yield content if is_image else content.decode()


@contextmanager
def _worker(paths: list[str], image_size: tuple[int, int]) -> Iterator[IO[bytes]]:
    """What a process gives out that decodes `paths`. It never is far ahead of the reader: its pipe fills up."""
    with tempfile.TemporaryFile() as task:  # not a second pipe: we would wait for the worker, and it for us
        task.write(os.fsencode("\0".join(paths)))
        task.seek(0)
        # -P: the modules beside decode.py must not be taken for others of their names
        command = [sys.executable, "-P", decode.__file__, *map(str, image_size)]
        process = subprocess.Popen(command, stdin=task, stdout=subprocess.PIPE, pipesize=2**20)
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def _printable(text: object) -> str:
    """The text with everything but printable characters escaped, so that a file's name cannot forge a line."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(text))
