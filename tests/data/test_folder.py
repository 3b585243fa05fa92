"""A folder of images: which files, in torchvision's order, and a cache that is never wrong.

Laws of the cache: it holds what decoding gives, to the bit; a changed file is decoded again; a
damaged, unfinished or interrupted one is not used.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from tiny import assert_same, encoded, full_disk
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from vit import inputs
from vit.config import DataConfig, changed
from vit.data import ImageSet, content_hash, folder
from vit.data import cache as cache_module
from vit.data.folder import load_folder, refuse_run_among_images
from vit.data.sources import load_data
from vit.errors import DataError

RED, BLUE = (255, 0, 0), (0, 0, 255)


def plain(path: Path, colour: tuple[int, int, int] = RED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), colour).save(path)
    return path


def load(
    root: Path, on_bad_image: str = "stop", size: tuple[int, int] = (4, 4)
) -> tuple[ImageSet, ImageSet]:
    return load_folder(root, size, on_bad_image, root.parent / "cache")  # type: ignore[arg-type]


def refusal(root: Path, on_bad_image: str = "stop") -> str:
    with pytest.raises(DataError) as caught:
        load(root, on_bad_image)
    assert str(caught.value).isprintable()
    return str(caught.value)


def colours(images: torch.Tensor) -> list[tuple[int, ...]]:
    """The colour of each image that has only one."""
    assert (images == images[:, :, :1, :1]).all()
    return [tuple(image[:, 0, 0].tolist()) for image in images]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes; the green channel of an image is its number in the order of the files."""
    names = [f"train/{name}/{i}" for name in ("ape", "bee", "cat") for i in range(4)]
    names += [f"test/{name}/{i}" for name in ("ape", "bee", "cat") for i in range(2)]
    for number, name in enumerate(names):
        plain(tmp_path / "root" / f"{name}.png", (9, number, 200))
    return tmp_path / "root"


NUMBERS = [(9, number, 200) for number in range(18)]


# --- layouts --------------------------------------------------------------------------------------


# files; how many of the first are for training, the next for testing; their classes
LAYOUTS = {
    "train and test": (["train/a/0", "train/a/1", "train/b/0", "test/b/0"], 3, 1, ("a", "b")),
    "train and val": (["train/a/0", "train/b/0", "val/a/0", "val/b/0"], 2, 2, ("a", "b")),
    "test before val": (["train/a/0", "train/b/0", "test/b/0", "val/a/0"], 2, 1, ("a", "b")),
    "one in ten": (
        [f"cat/deep/er/{i:02}" for i in [*range(1, 10), *range(11, 20), 0, 10]],
        18,
        2,
        ("cat",),
    ),
    "hidden folders": (["a/1", "a/2", "b/0", "b/1", "a/0", ".c/0", "a/.c/0"], 4, 1, ("a", "b")),
    "no classes": ([f"{i:02}" for i in [*range(1, 12), *range(13, 25), 0, 12]], 23, 2, ()),
    "no classes, below train": ([f"train/{i}" for i in [1, 2, 3, 0]], 3, 1, ()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path, layout):
    files, *counts, classes = LAYOUTS[layout]
    for number, file in enumerate(files):
        plain(tmp_path / "root" / f"{file}.png", (number, 0, 0))
    for split, first, count in zip(load(tmp_path / "root"), (0, counts[0]), counts, strict=True):
        # the images, each of a colour of its own
        assert (split.images.dtype, split.labels.dtype) == (torch.uint8, torch.int64)
        assert split.images.shape == (count, 3, 4, 4)
        assert split.images.is_contiguous()
        assert colours(split.images) == [(number, 0, 0) for number in range(first, first + count)]
        assert split.content_hash == content_hash(split.images, split.labels)
        assert split.skipped == ()

        # their classes: the folder below the split
        for file, label_name in zip(files[first : first + count], split.label_names, strict=True):
            folders = file.removeprefix("train/").removeprefix("test/").removeprefix("val/")
            assert label_name == (folders.split("/")[0] if classes else "")
        assert split.class_names == classes
        # a single class measures nothing
        assert split.has_classes == (len(classes) > 1)


def test_order_is_imagefolders(tmp_path):
    names = ["a/2.png", "a/10.png", "a/z/1.png", "a/Z.JPG", "a-b/1.png", "a/b/1.webp"]
    names += [
        "é/日本.png",
        "B/1.png",
        "a/zz.png",
        os.fsdecode(b"a/\xff\xfe.png"),
        "a/new\nline.png",
    ]
    for name in [*names, "a/readme.txt", "a/y.png.txt", "a/noextension"]:
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_bytes(b"")
    reference = ImageFolder(str(tmp_path / "root"))
    notes: list[str] = []
    files = folder._list_images(tmp_path / "root", "", notes)
    paths = [str(tmp_path / "root" / file.name) for file in files]
    assert paths == [path for path, _ in reference.samples]
    assert len(files) == len(names)
    assert sorted({file.class_name for file in files}) == reference.classes
    assert (*IMG_EXTENSIONS, ".gif") == folder.EXTENSIONS
    (note,) = notes
    assert note.endswith("2 .txt, 1 without a suffix")


def test_loops_of_links_are_tolerated(root):
    (root / "train" / "ape" / "loop").symlink_to(root / "train", target_is_directory=True)
    (root / "train" / "ape" / "here").symlink_to(".", target_is_directory=True)
    (root / "train" / "bee" / "self").symlink_to("self")
    (root / "train" / "cat" / "linked.png").symlink_to("3.png")
    assert len(load(root)[0]) == 13


def test_hostile_name_cannot_forge_a_line(root, caplog):
    hostile = root / "train" / "ape" / "x\r\nSaved checkpoint\x1b[2J\u202e.png"
    hostile.write_bytes(b"bad")
    messages = [refusal(root), *load(root, "skip")[0].skipped]
    messages += [record.getMessage() for record in caplog.records]
    for text in messages:
        assert text.isprintable()
        assert "Saved checkpoint\\x1b[2J\\u202e.png" in text


OF_SYSTEMS = ["._0.png", ".hidden.PNG", ".DS_Store"]
FOLDERS_OF_SYSTEMS = ["__MACOSX", "@eaDir", "#recycle", "$RECYCLE.BIN", "@Recycle", ".thumbnails"]


@pytest.mark.parametrize("split", ["", "train/"], ids=["classes", "splits"])
def test_what_systems_put_beside_images_is_none_of_them(tmp_path, split):
    for number in range(4):
        plain(tmp_path / "root" / f"{split}{'ab'[number % 2]}" / f"{number}.png")
    for place in ("", split, f"{split}a/"):
        for name in OF_SYSTEMS:
            (tmp_path / "root" / place / name).write_bytes(b"\x00\x05\x16\x07")
        for name in FOLDERS_OF_SYSTEMS:
            plain(tmp_path / "root" / place / name / "a" / "photo.png")
            (tmp_path / "root" / place / name / "._photo.png").write_bytes(b"\x00\x05\x16\x07")
    train, test = load(tmp_path / "root")
    assert (len(train) + len(test), train.class_names) == (4, ("a", "b"))
    assert len(folder.list_files(tmp_path / "root")) == 4
    assert not [note for note in train.notes if "not used" in note]


@pytest.mark.parametrize("split", ["", "train/"], ids=["classes", "splits"])
def test_runs_among_the_images_are_none_of_them(tmp_path, split):
    for number in range(4):
        plain(tmp_path / "root" / f"{split}{'ab'[number % 2]}" / f"{number}.png")
    for run in ("runs/folder", "run", "a/run"):
        plain(tmp_path / "root" / run / "attention.png")
        (tmp_path / "root" / run / "showcase.safetensors").touch()
    train, _ = load(tmp_path / "root")
    assert train.class_names == ("a", "b")
    assert len(folder.list_files(tmp_path / "root")) == 4
    assert not [note for note in train.notes if "not used" in note]


def test_a_run_in_a_folder_that_holds_some_of_the_images_is_refused(tmp_path):
    for name in ("train/red/1.png", "train/blue/2.png", "runs/old/attention.png"):
        plain(tmp_path / name)
    (tmp_path / "runs" / "old" / "showcase.safetensors").touch()
    for out in ("train", "train/red"):
        with pytest.raises(DataError, match=f"--out: {tmp_path / out} holds images of the data"):
            refuse_run_among_images(tmp_path / out, str(tmp_path))
    for out in (".", "new", "runs", "runs/old", "train/red/new", ".."):
        refuse_run_among_images(tmp_path / out, str(tmp_path))


def test_images_beside_the_classes_are_reported_and_an_empty_folder_is_no_class(root, caplog):
    plain(root / "train" / "logo.png")
    (root / "train" / "aaa").mkdir()
    train, _ = load(root)
    assert len(train) == 12
    assert train.class_names == ("ape", "bee", "cat")
    assert "1 images outside the class folders" in caplog.text


REFUSED = {
    "empty": [],
    "one image": ["0.png"],
    "val without train": ["val/ape/0.png"],
    "train alone has classes": ["train/ape/0.png", "test/0.png"],
    "splits of another name": ["Training/cat/0.png", "Training/dog/0.png", "Testing/cat/0.png"],
    "a class of test alone": ["train/ape/0.png", "test/ape/0.png", "test/d\x1bog/0.png"],
}


@pytest.mark.parametrize("layout", REFUSED)
def test_layouts_that_cannot_be_used_are_refused_by_the_name_of_the_folder(tmp_path, layout):
    (tmp_path / "root").mkdir()
    for file in REFUSED[layout]:
        plain(tmp_path / "root" / file)
    assert refusal(tmp_path / "root").startswith(str(tmp_path / "root"))


def test_a_missing_folder_is_refused(tmp_path):
    assert refusal(tmp_path / "root").startswith(f"{tmp_path / 'root'}: no such folder")


# --- notes for the user, and the size of the images -----------------------------------------------


def test_notes_count_the_files_that_are_left_out_held_out_and_used(root):
    (root / "train" / "ape" / "photo.HEIC").write_bytes(b"")
    (root / "train" / ".DS_Store").write_bytes(b"")
    Image.new("P", (4, 4)).save(
        root / "train" / "bee" / "moving.gif", save_all=True, append_images=[NOISE]
    )
    (root / "test").rename(root / "validation")
    (root / "notes").mkdir()
    # the same from the files and from the cache
    for _ in range(2):
        train, test = load(root)
        ignored, unused, held_out, counts, sizes = train.notes
        assert ignored.endswith(": 1 .heic")
        assert unused.endswith(": validation")
        assert "1 of the 13 images" in held_out
        assert counts.endswith("ape 3 + 1, bee 5 + 0, cat 4 + 0")
        assert "smallest 4 x 4, median 4 x 4, largest 4 x 4 pixels, kept at 4 x 4;" in sizes
        assert len(test) == 1


def test_of_pictures_with_the_same_short_side_the_smallest_has_the_smallest_area(root):
    for number, width in enumerate((9, 4, 12)):
        Image.new("RGB", (width, 4)).save(root / "train" / "ape" / f"wide-{number}.png")
    (note,) = (note for note in load(root)[0].notes if "smallest" in note)
    assert "smallest 4 x 4, median 4 x 4, largest 12 x 4 pixels" in note


def gradient(width: int, height: int) -> Image.Image:
    """Every pixel differs from its neighbours, so that none is lost unseen."""
    return Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    )


# for an input of 4 x 8: (width, height) of the photographs, (h, w) of the images
@pytest.mark.parametrize(
    ("photo", "size"),
    [
        ((8, 4), (4, 8)),
        ((3, 3), (4, 8)),
        ((12, 6), (6, 12)),
        ((40, 20), (8, 16)),
        ((16, 400), (8, 16)),
    ],
)
def test_images_are_kept_at_up_to_twice_the_models_input(tmp_path, photo, size):
    for split, count in (("train", 5), ("test", 2)):
        (tmp_path / "root" / split).mkdir(parents=True)
        for number in range(count):
            gradient(*photo).save(tmp_path / "root" / split / f"{number}.png")
    # the median decides
    Image.new("RGB", (1, 1)).save(tmp_path / "root" / "train" / "9.png")
    for _ in range(2):
        train, test = load(tmp_path / "root", size=(4, 8))
        assert train.images.shape == (6, 3, *size)
        assert test.images.shape == (2, 3, *size)
    content = inputs.decode(str(tmp_path / "root" / "train" / "0.png"), size)
    assert train.images[0].flatten().tolist() == list(content)


def test_size_is_read_upright(tmp_path):
    exif = Image.Exif()
    for orientation, size in ((1, (6, 2)), (3, (6, 2)), (6, (2, 6)), (8, (2, 6))):
        exif[274] = orientation
        for suffix in ("jpg", "png", "webp", "tif"):
            path = tmp_path / f"photo.{suffix}"
            Image.new("RGB", (6, 2)).save(path, exif=exif)
            assert inputs.size_of(str(path)) == size
            with Image.open(path) as image:
                assert ImageOps.exif_transpose(image).size == size
    for bad in ("absent.jpg", "bad.jpg"):
        (tmp_path / "bad.jpg").write_bytes(b"bad")
        assert inputs.size_of(str(tmp_path / bad)) is None


# --- files that are no images ---------------------------------------------------------------------


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
BAD = {
    "truncated.jpg": encoded(NOISE, "JPEG")[:-800],
    "bomb.png": encoded(Image.new("1", (10_000, 10_000)), "PNG"),
    "postscript.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\nshowpage\n",
    "grey32.tif": encoded(Image.new("I", (4, 4), 70_000), "TIFF"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", [*BAD, "broken-link.png", "pipe.png"])
def test_bad_image(root, name):
    path = root / "train" / "bee" / name
    if name in BAD:
        path.write_bytes(BAD[name])
    elif name == "pipe.png":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere.png")
    message = refusal(root)
    assert message.startswith(f"{path}: ")
    assert ("pixels" in message) == ("bomb" in name)
    assert "data.on_bad_image: skip" in message
    assert list((root.parent / "cache").iterdir()) == []

    train, test = load(root, "skip")
    assert (train.skipped, test.skipped) == ((str(path),), ())
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert colours(train.images) == NUMBERS[:12]


@pytest.mark.parametrize("bad", ["train", "test"])
def test_a_bad_image_counts_once_with_images_held_out(root, bad):
    (root / bad / "bee" / "bad.png").write_bytes(b"bad")
    settings = DataConfig(
        source="folder", root=str(root), on_bad_image="skip", cache=str(root.parent / "cache")
    )
    for val_size in (0, 4):
        data = load_data(changed(settings, {"val_size": val_size}), (4, 4))
        assert data.facts["skipped"] == 1
        assert sum("left out" in note for note in data.notes) == 1


def test_all_bad(tmp_path):
    (tmp_path / "root").mkdir()
    for index in range(3):
        (tmp_path / "root" / f"{index}.png").write_bytes(b"bad")
    assert "none of the 3 train images can be read" in refusal(tmp_path / "root", "skip")
    assert list((tmp_path / "cache").iterdir()) == []


# --- the cache ------------------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are decoded, as they are."""
    paths: list[str] = []
    original = inputs.decode

    def recorded(path: str, *arguments: Any) -> bytes | str:
        paths.append(path)
        return original(path, *arguments)

    monkeypatch.setattr(inputs, "decode", recorded)
    return paths


def cache_of(root: Path, split: str) -> Path:
    (path,) = (root.parent / "cache").glob(f"*-{split}-*")
    return path


def test_second_start_decodes_nothing(root, decoded, monkeypatch):
    first = load(root)
    second = load(root)
    assert len(decoded) == 18
    for original, copy in zip(first, second, strict=True):
        assert_same(vars(original), vars(copy))
    names = sorted(path.name[:13] for path in (root.parent / "cache").iterdir())
    assert names == ["root-test-4x4", "root-train-4x"]

    # nor by another name of the folder
    monkeypatch.chdir(root.parent)
    load_folder(Path("root"), (4, 4), "stop", Path("cache"))
    assert len(decoded) == 18

    # another size has another cache
    assert load(root, size=(8, 4))[0].images.shape == (12, 3, 8, 4)
    load(root)
    assert len(decoded) == 36


def touch(path: Path) -> None:
    os.utime(path, ns=(0, 5))


def rewrite_keeping_size_and_time(path: Path, image: Path) -> None:
    """Write another image of as many bytes, and set the time back, as `cp -p` and `tar` do."""
    before = path.stat()
    content = image.read_bytes()
    assert len(content) == before.st_size
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def replace_by_another_of_the_same_size_and_time(train: Path) -> None:
    first, second = train / "ape" / "0.png", train / "ape" / "1.png"
    other = train.parent / "other"
    os.utime(second, ns=(0, first.stat().st_mtime_ns))
    for source, target in ((first, other), (second, first), (other, second)):
        source.rename(target)


CHANGES: dict[str, Callable[[Path], object]] = {
    "rewrite, size and time kept": lambda train: rewrite_keeping_size_and_time(
        train / "ape" / "0.png", train / "ape" / "1.png"
    ),
    "replace": replace_by_another_of_the_same_size_and_time,
    "rewrite": lambda train: touch(plain(train / "ape" / "0.png", BLUE)),
    "change the time": lambda train: touch(train / "ape" / "0.png"),
    "add": lambda train: plain(train / "bee" / "extra.png", BLUE),
    "remove": lambda train: (train / "bee" / "1.png").unlink(),
    "rename": lambda train: (train / "bee" / "1.png").rename(train / "bee" / "0a.png"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_decoded_again(root, decoded, change):
    load(root)
    decoded.clear()
    CHANGES[change](root / "train")
    train, _ = load(root)
    count = {"add": 13, "remove": 11}.get(change, 12)
    # and none of the test files
    assert len(decoded) == len(train) == count
    if change == "rewrite":
        assert colours(train.images)[0] == BLUE
    if change in ("rewrite, size and time kept", "replace"):
        assert colours(train.images)[0] == NUMBERS[1]


def test_images_are_mapped_and_writes_stay_private(root):
    load(root)
    train, _ = load(root)
    if sys.platform == "linux":
        assert str(cache_of(root, "train")) in Path("/proc/self/maps").read_text()
    before = cache_of(root, "train").read_bytes()
    train.images.fill_(0)
    assert cache_of(root, "train").read_bytes() == before
    assert colours(load(root)[0].images)[1] == (9, 1, 200)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut in the header": lambda content: content[:50],
    "cut in the images": lambda content: content[:528],
    "no hash": lambda content: content.replace(b'"content_hash"', b'"content_mash"'),
    "more skipped": lambda content: content.replace(b"[]", b'["train/ape/0.png"]'),
    "shape": lambda content: content.replace(b"(12, 3, 4, 4)", b"(12, 3, 2, 8)"),
    "zeros": lambda content: bytes(len(content)),
    "one bit of a pixel": lambda content: content[:600] + bytes([content[600] ^ 4]) + content[601:],
}


NO_FILES: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file": lambda path: path.symlink_to(plain(path.parent / "mine.png")),
    "a broken link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.filterwarnings("ignore:Reading `.npy`")
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_cache_is_made_anew(root, decoded, caplog, damage):
    first, _ = load(root)
    path = cache_of(root, "train")
    content = path.read_bytes()
    # the images that were returned keep the old file
    path.unlink()
    path.write_bytes(damage(content))
    decoded.clear()
    train, _ = load(root)
    assert len(decoded) == 12
    assert train.content_hash == first.content_hash
    (record,) = caplog.records
    assert f"{path}: this cache is damaged" in record.getMessage()
    assert path.read_bytes() == content


def test_the_pixels_of_a_large_cache_are_not_read_at_the_start(root, monkeypatch):
    small = load(root)
    monkeypatch.setattr(cache_module, "HASHED", 0)
    monkeypatch.setattr(cache_module, "content_hash", None)
    for original, copy in zip(small, load(root), strict=True):
        assert_same(vars(original), vars(copy))


def test_two_builds_of_one_cache_at_once(root, decoded):
    started = threading.Barrier(2, timeout=600)

    def build() -> tuple[ImageSet, ImageSet]:
        started.wait()
        return load(root)

    with ThreadPoolExecutor(2) as pool:
        builds = [pool.submit(build), pool.submit(build)]
    for finished in builds:
        train, _ = finished.result()
        assert colours(train.images) == NUMBERS[:12]
    # a file for each split, and no leftovers
    assert len(list((root.parent / "cache").iterdir())) == 2
    decoded.clear()
    assert colours(load(root)[0].images) == NUMBERS[:12]
    assert decoded == []


def test_cache_with_gaps_is_not_served_when_told_to_stop(root, decoded):
    (root / "train" / "bee" / "bad.png").write_bytes(b"bad")
    load(root, "skip")
    assert "bad.png" in refusal(root)
    decoded.clear()
    assert load(root, "skip")[0].skipped == (str(root / "train" / "bee" / "bad.png"),)
    assert decoded == []  # the failure has left the cache as it was


def test_what_fails_leaves_the_old_cache(root):
    load(root)
    before = cache_of(root, "train").read_bytes()
    CHANGES["add"](root / "train")
    with full_disk(700):
        assert "set data.cache" in refusal(root)
    (root / "train" / "cat" / "9.png").write_bytes(b"bad")
    assert "9.png" in refusal(root)
    assert cache_of(root, "train").read_bytes() == before
    assert len(list((root.parent / "cache").iterdir())) == 2


# --- decoding in parallel -------------------------------------------------------------------------


@pytest.mark.parametrize("small_file", [0, 2**40], ids=["threads", "one thread"])
def test_threads_give_the_same_in_the_same_order(root, monkeypatch, small_file):
    original = inputs.decode
    threads = set()

    def delayed(path: str, *arguments: Any) -> bytes | str:
        threads.add(threading.current_thread().name)
        time.sleep(0.005 * random.random())
        return original(path, *arguments)

    monkeypatch.setattr(inputs, "decode", delayed)
    monkeypatch.setattr(folder, "SMALL_FILE", small_file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    for name in ("bee/b\udcffd.png", "cat/0a.png"):
        (root / "train" / name).write_bytes(b"bad")
    # the first of the two is named
    assert "bee/b\\udcffd.png: not a readable image" in refusal(root)
    train, test = load(root, "skip")
    assert len(threads) > 3 or small_file
    names = ("bee/b\\udcffd.png", "cat/0a.png")
    assert train.skipped == tuple(str(root / "train" / name) for name in names)
    assert (colours(train.images), colours(test.images)) == (NUMBERS[:12], NUMBERS[12:])
    assert not threads & {thread.name for thread in threading.enumerate()}


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has taken from what it runs in the background
from pathlib import Path
from vit import inputs
from vit.data.folder import load_folder, refuse_run_among_images

original = inputs.decode
def slow(*how):
    print("decoding", flush=True)
    time.sleep(0.3)
    return original(*how)
inputs.decode = slow
root = Path(sys.argv[1])
load_folder(root, (4, 4), "stop", root.parent / "cache")
"""


@pytest.mark.slow
def test_two_processes_build_one_cache_at_once(root, decoded):
    # both decode until the test lets them go on
    together = SLOW.replace(
        "time.sleep(0.3)", "while not (root.parent / 'go').exists():\n        time.sleep(0.01)"
    )
    streams = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    both = [subprocess.Popen([sys.executable, "-c", together, root], **streams) for _ in range(2)]
    for process in both:
        assert process.stdout.readline() == "decoding\n"
    unfinished = [path.name[:9] for path in (root.parent / "cache").iterdir()]
    assert unfinished == [".partial-"] * 2
    both[0].kill()  # the other is not held up
    both[0].wait()
    (root.parent / "go").touch()
    said = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [-signal.SIGKILL, 0], said
    assert [err for _, err in said] == ["", ""]
    # of the killed one a file is left that nobody uses
    assert len([path for path in (root.parent / "cache").iterdir() if path.name[0] != "."]) == 2
    train, test = load(root)
    assert (colours(train.images), colours(test.images)) == (NUMBERS[:12], NUMBERS[12:])
    assert decoded == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_killed_build_leaves_nothing_that_is_used(root, decoded, number):
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, root], stdout=pipe, stderr=pipe, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    assert process.stdout.read().count("decoding") < 3  # it ended at once, not after all 18
    assert process.wait(timeout=600) != 0
    left = [path.name[:9] for path in (root.parent / "cache").iterdir()]
    assert left == ([".partial-"] if number == signal.SIGKILL else [])
    assert colours(load(root)[0].images) == NUMBERS[:12]
    assert len(decoded) == 18


def test_accents_are_the_same_however_a_system_encodes_them(tmp_path):
    """A folder made on a Mac has its accents in parts (NFD)."""
    whole = "caf\u00e9"
    parts = unicodedata.normalize("NFD", whole)
    assert whole != parts
    for split, name in (("train", whole), ("test", parts)):
        plain(tmp_path / "data" / split / name / "0.png")
        plain(tmp_path / "data" / split / "tea" / "0.png")
    train, test = load(tmp_path / "data")
    assert train.class_names == test.class_names == (whole, "tea")
    assert sorted(test.labels.tolist()) == [0, 1]
