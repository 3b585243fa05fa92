"""A folder of images: which files, in torchvision's order, and a cache that is never wrong.

Laws of the cache: it holds what decoding gives, to the bit; a changed file is decoded again; a
damaged, unfinished or interrupted one is not used.
"""

from __future__ import annotations

import json
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
from tiny import assert_same, encoded, full_disk, noise
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms.v2.functional import to_pil_image

from vit import inputs
from vit.data import ImageSet, content_hash, folder
from vit.data.folder import load_folder, refuse_run_among_images
from vit.errors import DataError


def plain(path: Path, number: int = 0) -> None:
    """An image of one colour, which is its number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (number, number, number)).save(path)


def load(root: Path, on_bad_image: str = "stop", size=(4, 4)) -> tuple[ImageSet, ImageSet]:
    return load_folder(root, size, on_bad_image, root.parent / "cache")


def numbers(*splits: ImageSet) -> list[int]:
    """The numbers of the images of some splits."""
    found = []
    for split in splits:
        assert (split.images == split.images[:, :1, :1, :1]).all()
        found += split.images[:, 0, 0, 0].tolist()
    return found


def refusal(root: Path, on_bad_image: str = "stop") -> str:
    with pytest.raises(DataError) as caught:
        load(root, on_bad_image)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes; images are numbered in the order of the files."""
    names = [f"train/{name}/{i}" for name in ("ape", "bee", "cat") for i in range(4)]
    names += [f"test/{name}/{i}" for name in ("ape", "bee", "cat") for i in range(2)]
    for number, name in enumerate(names):
        plain(tmp_path / "root" / f"{name}.png", number)
    return tmp_path / "root"


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


# --- layouts --------------------------------------------------------------------------------------


# the training images, and those for testing
LAYOUTS = {
    "train and test": (["train/a/0", "train/a/1", "train/b/0"], ["test/b/0"]),
    "train and val": (["train/a/0", "train/b/0"], ["val/a/0", "val/b/0"]),
    "one in ten": ([f"cat/er/{i:02}" for i in range(20) if i % 10], ["cat/er/00", "cat/er/10"]),
    "accents": (["train/caf\u00e9/0", "train/t/0"], ["test/cafe\u0301/0"]),
    "no classes": ([f"{i:02}" for i in range(20) if i % 10], ["00", "10"]),
    "no classes, below train": ([f"train/{i}" for i in (1, 2, 3)], ["train/0"]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("beside", ["", ".c/0.png", "__MACOSX/0.png", "a/run/0.png", "logo.png"])
def test_layouts(tmp_path, layout, beside):
    parts = LAYOUTS[layout]
    files = [*parts[0], *parts[1]]
    has_classes = files[0].removeprefix("train/").count("/") > 0
    for number, file in enumerate(files):
        plain(tmp_path / "root" / f"{file}.png", number)
    # val is not used beside test
    if files[-1].startswith("test/"):
        plain(tmp_path / "root" / "val" / "a" / "9.png")
    # images of systems, of a run, and of no class are none of them
    if beside and (has_classes or beside != "logo.png"):
        split = "train/" * files[0].startswith("train")
        plain(tmp_path / "root" / split / beside)
        if "run" in beside:
            (tmp_path / "root" / split / "a/run/showcase.safetensors").touch()
    splits = load(tmp_path / "root")
    assert [len(split) for split in splits] == [len(part) for part in parts]
    assert numbers(*splits) == list(range(len(files)))
    for split, part in zip(splits, parts, strict=True):
        assert (split.images.dtype, split.labels.dtype) == (torch.uint8, torch.int64)
        assert split.content_hash == content_hash(split.images, split.labels)
        # their classes: the folder below the split
        folders = [file.split("/")[-2 if "er/" not in file else 0] for file in part if has_classes]
        expected = [name.replace("e\u0301", "\u00e9") for name in folders]
        assert split.label_names == (expected or [""] * len(part))
        # a single class measures nothing
        assert split.has_classes == (len(split.class_names) > 1)


def test_order_is_imagefolders(tmp_path):
    names = ["a/2.png", "a/10.png", "a/z/1.png", "a/Z.JPG", "a-b/1.png", "a/b/1.webp", "B/1.png"]
    names += ["é/日本.png", "a/zz.png", os.fsdecode(b"a/\xff\xfe.png"), "a/new\nline.png"]
    others = ["a/noextension", "a/readme.txt", "a/y.png.txt"]
    for name in [*names, *others]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    reference = ImageFolder(str(tmp_path))
    unused: list[str] = []
    (files,) = folder.list_folder(tmp_path, unused).values()
    assert [str(tmp_path / name) for _, name in files] == [path for path, _ in reference.samples]
    assert sorted({class_name for class_name, _ in files}) == reference.classes
    assert (*IMG_EXTENSIONS, ".gif") == folder.EXTENSIONS
    assert sorted(unused) == others


def test_loops_of_links_are_tolerated(root):
    (root / "train" / "ape" / "loop").symlink_to(root / "train", target_is_directory=True)
    (root / "train" / "bee" / "self").symlink_to("self")
    (root / "train" / "cat" / "linked.png").symlink_to("3.png")
    assert len(load(root)[0]) == 13


def test_a_run_is_refused_where_it_would_hide_images(root):
    plain(root / "runs" / "old" / "attention.png")
    (root / "runs" / "old" / "showcase.safetensors").touch()
    for out in ("train", "train/ape"):
        with pytest.raises(DataError, match=f"--out: {root / out} holds images of the data"):
            refuse_run_among_images(root / out, str(root))
    for out in (".", "new", "runs", "runs/old", "train/new", ".."):
        refuse_run_among_images(root / out, str(root))


REFUSED = {
    "empty": [],
    "one image": ["0.png"],
    "splits of another name": ["Training/cat/0.png", "Training/dog/0.png", "Testing/cat/0.png"],
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
    picture = to_pil_image(noise(1, size=photo[::-1])[0])
    for split, count in (("train", 5), ("test", 2)):
        (tmp_path / "root" / split).mkdir(parents=True)
        for number in range(count):
            picture.save(tmp_path / "root" / split / f"{number}.png")
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
    "x\r\nSaved checkpoint\x1b[2J\u202e.png": b"bad",
    "broken-link.png": None,
    "pipe.png": None,
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_stops_or_is_left_out(root, decoded, name):
    path = root / "train" / "bee" / name
    content = BAD[name]
    if content:
        path.write_bytes(content)
    elif name == "pipe.png":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere.png")
    shown = str(path).replace("\r\n", " ").replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    message = refusal(root)
    assert message.startswith(f"{shown}: ")
    assert "data.on_bad_image: skip" in message
    assert list((root.parent / "cache").iterdir()) == []

    # a cache with a gap is not used by who asks to stop, and stays as it was
    for _ in range(2):
        train, test = load(root, "skip")
        assert (train.skipped, test.skipped) == ((shown,), ())
        assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert numbers(train, test) == list(range(18))
    refusal(root)
    decoded.clear()
    load(root, "skip")
    assert decoded == []


def test_all_bad(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "0.png").write_bytes(b"bad")
    assert "none of the 1 images can be read" in refusal(tmp_path / "root", "skip")
    assert list((tmp_path / "cache").iterdir()) == []


# --- the cache ------------------------------------------------------------------------------------


def cache_of(root: Path) -> Path:
    (path,) = (root.parent / "cache").glob("*-train-*")
    return path


def test_second_start_decodes_nothing(root, decoded, monkeypatch):
    for original, copy in zip(load(root), load(root), strict=True):
        assert_same(vars(original), vars(copy))
    # nor by another name of the folder
    monkeypatch.chdir(root.parent)
    load_folder(Path("root"), (4, 4), "stop", Path("cache"))
    assert len(decoded) == 18
    # another size has another cache
    assert load(root, size=(8, 4))[0].images.shape == (12, 3, 8, 4)
    load(root)
    assert len(decoded) == 36


def rewrite_keeping_size_and_time(bees: Path) -> None:
    """As `cp -p` and `tar` do."""
    before = (bees / "0.png").stat()
    (bees / "0.png").write_bytes((bees / "1.png").read_bytes())
    os.utime(bees / "0.png", ns=(before.st_atime_ns, before.st_mtime_ns))


# and the images that are decoded then
CHANGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "rewrite": (rewrite_keeping_size_and_time, 12),
    "change the time": (lambda bees: os.utime(bees / "0.png", ns=(0, 5)), 12),
    "add": (lambda bees: plain(bees / "extra.png"), 13),
    "remove": (lambda bees: (bees / "1.png").unlink(), 11),
    "rename": (lambda bees: (bees / "1.png").rename(bees / "0a.png"), 12),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_decoded_again(root, decoded, change):
    load(root)
    decoded.clear()
    make, count = CHANGES[change]
    make(root / "train" / "bee")
    train, _ = load(root)
    # and none of the test files
    assert len(decoded) == len(train) == count
    if change == "rewrite":
        assert numbers(train)[4] == 5


def test_images_are_mapped_and_writes_stay_private(root):
    load(root)
    train, _ = load(root)
    if sys.platform == "linux":
        assert str(cache_of(root)) in Path("/proc/self/maps").read_text()
    before = cache_of(root).read_bytes()
    train.images.fill_(0)
    assert cache_of(root).read_bytes() == before


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


def test_a_cache_of_an_earlier_version_is_made_anew(root, decoded):
    """Its record named the values."""
    load(root)
    path = cache_of(root)
    content = path.read_bytes()
    start = content.rindex(b'["')
    names = ("key", "labels", "content_hash", "skipped", "image_hashes")
    record = dict(zip(names, json.loads(content[start:]), strict=True))
    path.unlink()
    path.write_bytes(content[:start] + json.dumps(record).encode())
    decoded.clear()
    load(root)
    assert len(decoded) == 12
    assert path.read_bytes() == content


def test_what_fails_leaves_the_old_cache(root):
    load(root)
    before = cache_of(root).read_bytes()
    plain(root / "train" / "bee" / "extra.png")
    with full_disk(700), pytest.raises(OSError, match=str(cache_of(root))):
        load(root)
    assert cache_of(root).read_bytes() == before
    assert len(list((root.parent / "cache").iterdir())) == 2


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
    splits = load(root, "skip")
    assert len(threads) > 2
    assert len(splits[0].skipped) == 2
    assert numbers(*splits) == list(range(18))
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
    command = [sys.executable, "-c", SLOW, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
    both[1].communicate(timeout=600)
    assert [process.returncode for process in both] == [-signal.SIGKILL, 0]
    # of the killed one a file is left that nobody uses
    assert len([path for path in (root.parent / "cache").iterdir() if path.name[0] != "."]) == 2
    assert numbers(*load(root)) == list(range(18))
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
    assert numbers(*load(root)) == list(range(18))
    assert len(decoded) == 18
