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
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import assert_same, encoded, full_disk
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from vit import inputs
from vit.config import DataConfig
from vit.data import ImageSet, content_hash, folder
from vit.data.folder import load_folder
from vit.data.sources import load_data
from vit.errors import DataError

RED, BLUE = (255, 0, 0), (0, 0, 255)


def plain(path: Path, colour: tuple[int, int, int] = RED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), colour).save(path)
    return path


def load(root: Path, on_bad_image: str = "stop", size=(4, 4)) -> tuple[ImageSet, ImageSet]:
    return load_folder(root, size, on_bad_image, root.parent / "cache")


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
    "beside classes": (["a/1", "a/2", "b/0", "b/1", "a/0", "logo"], 4, 1, ("a", "b")),
    "accents": (["train/caf\u00e9/0", "train/t/0", "test/cafe\u0301/0"], 2, 1, ("caf\u00e9", "t")),
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

        # their classes: the folder below the split
        for file, label_name in zip(files[first : first + count], split.label_names, strict=True):
            folders = file.removeprefix("train/").removeprefix("test/").removeprefix("val/")
            expected = folders.split("/")[0].replace("e\u0301", "\u00e9") if classes else ""
            assert label_name == expected
        assert split.class_names == classes
        # a single class measures nothing
        assert split.has_classes == (len(classes) > 1)


def test_order_is_imagefolders(tmp_path):
    names = ["a/2.png", "a/10.png", "a/z/1.png", "a/Z.JPG", "a-b/1.png", "a/b/1.webp", "B/1.png"]
    names += ["é/日本.png", "a/zz.png", os.fsdecode(b"a/\xff\xfe.png"), "a/new\nline.png"]
    for name in [*names, "a/readme.txt", "a/y.png.txt", "a/noextension"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    reference = ImageFolder(str(tmp_path))
    unused: list[str] = []
    (files,) = folder.list_folder(tmp_path, unused).values()
    assert [str(tmp_path / name) for _, name in files] == [path for path, _ in reference.samples]
    assert len(files) == len(names)
    assert sorted({class_name for class_name, _ in files}) == reference.classes
    assert (*IMG_EXTENSIONS, ".gif") == folder.EXTENSIONS
    assert sorted(unused) == ["a/noextension", "a/readme.txt", "a/y.png.txt"]


def test_loops_of_links_are_tolerated(root):
    (root / "train" / "ape" / "loop").symlink_to(root / "train", target_is_directory=True)
    (root / "train" / "ape" / "here").symlink_to(".", target_is_directory=True)
    (root / "train" / "bee" / "self").symlink_to("self")
    (root / "train" / "cat" / "linked.png").symlink_to("3.png")
    assert len(load(root)[0]) == 13


@pytest.mark.parametrize("split", ["", "train/"], ids=["classes", "splits"])
def test_runs_and_what_systems_put_beside_images_are_none_of_them(tmp_path, split):
    for number in range(4):
        plain(tmp_path / "root" / f"{split}{'ab'[number % 2]}" / f"{number}.png")
    for place in ("", split, f"{split}a/"):
        for name in ("._0.png", ".DS_Store"):
            (tmp_path / "root" / place / name).write_bytes(b"\x00\x05\x16\x07")
        for name in ("__MACOSX", ".thumbnails", "run"):
            plain(tmp_path / "root" / place / name / "a" / "photo.png")
        (tmp_path / "root" / place / "run" / "showcase.safetensors").touch()
    train, test = load(tmp_path / "root")
    assert (len(train) + len(test), train.class_names) == (4, ("a", "b"))
    assert len(folder.list_files(tmp_path / "root")) == 4
    assert not [note for note in train.notes if "not used" in note]


REFUSED = {
    "empty": [],
    "one image": ["0.png"],
    "train alone has classes": ["train/ape/0.png", "test/0.png"],
    "splits of another name": ["Training/cat/0.png", "Training/dog/0.png", "Testing/cat/0.png"],
    "splits without train": ["test/ape/0.png", "val/ape/0.png"],
    "a class of test alone": ["train/ape/0.png", "test/ape/0.png", "test/d\x1bog/0.png"],
}


@pytest.mark.parametrize("layout", REFUSED)
def test_layouts_that_cannot_be_used_are_refused_by_the_name_of_the_folder(tmp_path, layout):
    (tmp_path / "root").mkdir()
    for file in REFUSED[layout]:
        plain(tmp_path / "root" / file)
    assert refusal(tmp_path / "root").startswith(str(tmp_path / "root"))


def test_notes_count_the_files_that_are_held_out_used_and_not_used(root):
    (root / "train" / "ape" / "photo.HEIC").write_bytes(b"")
    plain(root / "train" / "logo.png")
    (root / "train" / "empty").mkdir()
    (root / "test").rename(root / "validation")
    (root / "train.py").touch()
    # the same from the files and from the cache
    for _ in range(2):
        held_out, size, counts, unused = load(root)[0].notes
        assert "1 of the 12 images" in held_out
        assert "4 x 4" in size
        assert counts.endswith("ape 3 + 1, bee 4 + 0, cat 4 + 0")
        for what in ("6 validation/*.png", "1 train/*.HEIC", "1 train/*.png"):
            assert what in unused
        assert ".py" not in unused


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
    pixels = np.random.default_rng(0).integers(0, 256, (*photo[::-1], 3), dtype=np.uint8)
    for split, count in (("train", 5), ("test", 2)):
        (tmp_path / "root" / split).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(pixels).save(tmp_path / "root" / split / f"{number}.png")
    # the median decides
    Image.new("RGB", (1, 1)).save(tmp_path / "root" / "train" / "9.png")
    for _ in range(2):
        train, test = load(tmp_path / "root", size=(4, 8))
        assert train.images.shape == (6, 3, *size)
        assert test.images.shape == (2, 3, *size)
    content = inputs.decode(str(tmp_path / "root" / "train" / "0.png"), size)
    assert train.images[0].flatten().tolist() == list(content)


# --- files that are no images ---------------------------------------------------------------------


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
BAD = {
    "truncated.jpg": encoded(NOISE, "JPEG")[:-800],
    "bomb.png": encoded(Image.new("1", (20_000, 10_000)), "PNG"),
    "postscript.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\nshowpage\n",
    "grey32.tif": encoded(Image.new("I", (4, 4), 70_000), "TIFF"),
    "x\r\nSaved checkpoint\x1b[2J\u202e.png": b"bad",
}


@pytest.mark.parametrize("name", [*BAD, "broken-link.png", "pipe.png"])
def test_a_bad_image_stops_or_is_left_out(root, name):
    path = root / "train" / "bee" / name
    if name in BAD:
        path.write_bytes(BAD[name])
    elif name == "pipe.png":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere.png")
    shown = str(path).replace("\r\n", " ").replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    message = refusal(root)
    assert message.startswith(f"{shown}: ")
    assert "data.on_bad_image: skip" in message
    assert list((root.parent / "cache").iterdir()) == []

    train, test = load(root, "skip")
    assert (train.skipped, test.skipped) == ((shown,), ())
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert colours(train.images) == NUMBERS[:12]


def test_a_bad_image_counts_once_with_images_held_out(root):
    (root / "train" / "bee" / "bad.png").write_bytes(b"bad")
    settings = dict(root=str(root), on_bad_image="skip", cache=str(root.parent / "cache"))
    data = load_data(DataConfig(source="folder", val_size=4, **settings), (4, 4))
    assert data.facts["skipped"] == sum("left out" in note for note in data.notes) == 1


def test_all_bad(tmp_path):
    (tmp_path / "root").mkdir()
    for index in range(3):
        (tmp_path / "root" / f"{index}.png").write_bytes(b"bad")
    assert "none of the 3 images can be read" in refusal(tmp_path / "root", "skip")
    assert list((tmp_path / "cache").iterdir()) == []


# --- the cache ------------------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are decoded, as they are."""
    paths: list[str] = []
    original = inputs.decode

    def recorded(path: str, *arguments: object) -> bytes | str:
        paths.append(path)
        return original(path, *arguments)

    monkeypatch.setattr(inputs, "decode", recorded)
    return paths


def cache_of(root: Path, split: str = "train") -> Path:
    (path,) = (root.parent / "cache").glob(f"*-{split}-*")
    return path


def test_second_start_decodes_nothing(root, decoded, monkeypatch):
    for original, copy in zip(load(root), load(root), strict=True):
        assert_same(vars(original), vars(copy))
    assert len(decoded) == 18
    # nor by another name of the folder
    monkeypatch.chdir(root.parent)
    load_folder(Path("root"), (4, 4), "stop", Path("cache"))
    assert len(decoded) == 18
    # another size has another cache
    assert load(root, size=(8, 4))[0].images.shape == (12, 3, 8, 4)
    load(root)
    assert len(decoded) == 36


def rewrite_keeping_size_and_time(path: Path, content: bytes) -> None:
    """As `cp -p` and `tar` do."""
    before = path.stat()
    assert len(content) == before.st_size
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "rewrite": lambda bees: rewrite_keeping_size_and_time(
        bees / "0.png", (bees / "1.png").read_bytes()
    ),
    "change the time": lambda bees: os.utime(bees / "0.png", ns=(0, 5)),
    "add": lambda bees: plain(bees / "extra.png", BLUE),
    "remove": lambda bees: (bees / "1.png").unlink(),
    "rename": lambda bees: (bees / "1.png").rename(bees / "0a.png"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_decoded_again(root, decoded, change):
    load(root)
    decoded.clear()
    CHANGES[change](root / "train" / "bee")
    train, _ = load(root)
    # and none of the test files
    assert len(decoded) == len(train) == {"add": 13, "remove": 11}.get(change, 12)
    if change == "rewrite":
        assert colours(train.images)[4] == NUMBERS[5]


def test_images_are_mapped_and_writes_stay_private(root):
    load(root)
    train, _ = load(root)
    if sys.platform == "linux":
        assert str(cache_of(root)) in Path("/proc/self/maps").read_text()
    before = cache_of(root).read_bytes()
    train.images.fill_(0)
    assert cache_of(root).read_bytes() == before
    assert colours(load(root)[0].images)[1] == (9, 1, 200)


@pytest.mark.parametrize("length", [50, 528, -9], ids=["header", "images", "record"])
def test_a_cache_that_is_cut_is_made_anew(root, decoded, length):
    load(root)
    path = cache_of(root)
    content = path.read_bytes()
    # the images that were returned keep the old file
    path.unlink()
    path.write_bytes(content[:length])
    decoded.clear()
    load(root)
    assert len(decoded) == 12
    assert path.read_bytes() == content


def test_cache_with_gaps_is_not_served_when_told_to_stop(root, decoded):
    (root / "train" / "bee" / "bad.png").write_bytes(b"bad")
    load(root, "skip")
    assert "bad.png" in refusal(root)
    decoded.clear()
    assert load(root, "skip")[0].skipped == (str(root / "train" / "bee" / "bad.png"),)
    assert decoded == []  # the failure has left the cache as it was


def test_what_fails_leaves_the_old_cache(root):
    load(root)
    before = cache_of(root).read_bytes()
    CHANGES["add"](root / "train" / "bee")
    with full_disk(700), pytest.raises(OSError, match=str(cache_of(root))):
        load(root)
    (root / "train" / "cat" / "9.png").write_bytes(b"bad")
    assert "9.png" in refusal(root)
    assert cache_of(root).read_bytes() == before
    assert len(list((root.parent / "cache").iterdir())) == 2


# --- decoding in parallel -------------------------------------------------------------------------


def test_threads_give_the_same_in_the_same_order(root, monkeypatch):
    original = inputs.decode
    threads = set()

    def delayed(path: str, *arguments: object) -> bytes | str:
        threads.add(threading.current_thread().name)
        time.sleep(0.005 * random.random())
        return original(path, *arguments)

    monkeypatch.setattr(inputs, "decode", delayed)
    monkeypatch.setattr(folder, "AT_ONCE", 5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    bad = ("bee/b\udcffd.png", "cat/0a.png")
    for name in bad:
        (root / "train" / name).write_bytes(b"bad")
    # the first of the two is named
    assert "bee/b\\udcffd.png: not a readable image" in refusal(root)
    train, test = load(root, "skip")
    assert len(threads) > 2
    names = (name.replace("\udcff", "\\udcff") for name in bad)
    assert train.skipped == tuple(str(root / "train" / name) for name in names)
    assert (colours(train.images), colours(test.images)) == (NUMBERS[:12], NUMBERS[12:])
    assert not threads & {thread.name for thread in threading.enumerate()}


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell takes in the background
from pathlib import Path
from vit import inputs
from vit.data.folder import load_folder

original = inputs.decode
root = Path(sys.argv[1])
def slow(*how):
    print("decoding", flush=True)
    time.sleep(0.3)
    while sys.argv[2:] and not (root.parent / "go").exists():
        time.sleep(0.01)
    return original(*how)
inputs.decode = slow
load_folder(root, (4, 4), "stop", root.parent / "cache")
"""


def start(*words: object) -> subprocess.Popen[str]:
    """Another process that decodes, slowly."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SLOW, *map(str, words)]
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout.readline().startswith("decoding")
    return process


@pytest.mark.slow
def test_two_processes_build_one_cache_at_once(root, decoded):
    # both decode until the test lets them go on
    both = [start(root, "wait") for _ in range(2)]
    unfinished = [path.name[:9] for path in (root.parent / "cache").iterdir()]
    assert unfinished == [".partial-"] * 2
    both[0].kill()  # the other is not held up
    both[0].wait()
    (root.parent / "go").touch()
    said = [process.communicate(timeout=600)[1] for process in both]
    assert [process.returncode for process in both] == [-signal.SIGKILL, 0], said
    # of the killed one a file is left that nobody uses
    assert len([path for path in (root.parent / "cache").iterdir() if path.name[0] != "."]) == 2
    train, test = load(root)
    assert (colours(train.images), colours(test.images)) == (NUMBERS[:12], NUMBERS[12:])
    assert decoded == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_killed_build_leaves_nothing_that_is_used(root, decoded, number):
    process = start(root)
    process.send_signal(number)
    assert process.stdout.read().count("decoding") < 3  # it ended at once, not after all 18
    assert process.wait(timeout=600) != 0
    left = [path.name[:9] for path in (root.parent / "cache").iterdir()]
    assert left == ([".partial-"] if number == signal.SIGKILL else [])
    assert colours(load(root)[0].images) == NUMBERS[:12]
    assert len(decoded) == 18
