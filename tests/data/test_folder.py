"""A folder of images: which files, in torchvision's order, and a cache that is never wrong.

Laws of the cache: it holds what decoding gives, to the bit; a changed file is decoded again; a
damaged, unfinished or interrupted one is not used.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import assert_same, encoded, full_disk, noise, save_images
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from vit import inputs
from vit.config import DataConfig
from vit.data import ImageSet, content_hash, folder
from vit.data.sources import load_data
from vit.errors import DataError


def plain(path: Path, number: int = 0) -> None:
    """An image of one colour, which is its number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (number, number, number)).save(path)


def load(root: Path, on_bad_image: str = "stop", size=(4, 4)) -> tuple[ImageSet, ImageSet]:
    cache = str(root.parent / "cache")
    config = DataConfig(source="folder", root=str(root), cache=cache, on_bad_image=on_bad_image)
    data = load_data(config, size)
    return data.train, data.test


def numbers(*splits: ImageSet) -> list[int]:
    """The numbers of the images of some splits."""
    found = []
    for split in splits:
        assert (split.images == split.images[:, :1, :1, :1]).all()
        found += split.images[:, 0, 0, 0].tolist()
    return found


def cache_of(root: Path) -> Path:
    (path,) = (root.parent / "cache").glob("*-train-*")
    return path


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
    """The paths that are decoded."""
    paths: list[str] = []
    original = inputs.decode

    def recorded(path: str, *arguments: object) -> bytes | str:
        paths.append(path)
        return original(path, *arguments)

    monkeypatch.setattr(inputs, "decode", recorded)
    return paths


# --- layouts --------------------------------------------------------------------------------------


# the files, and the class of each
LAYOUTS = {
    "train/a/0 train/a/1 train/b/er/0 test/b/0": ["a", "a", "b", "b"],
    "train/a/0 train/b/0 val/a/0 val/b/0": ["a", "b", "a", "b"],
    "train/caf\u00e9/0 train/t/0 test/cafe\u0301/0": ["caf\u00e9", "t", "caf\u00e9"],
    "train/0 train/1 test/0": ["", "", ""],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path, layout):
    for number, file in enumerate(layout.split()):
        plain(tmp_path / "root" / f"{file}.png", number)
    # beside them: what systems leave, a run, an image of no class, a loop of links, val beside test
    train = tmp_path / "root" / "train"
    beside = [".c/0.png", "__MACOSX/0.png", "@eaDir/0.png", "a/run/0.png"] + ["logo.png"] * bool(
        LAYOUTS[layout][0]
    )
    for name in beside:
        plain(train / name)
    for name in ("config.yaml", "metrics.jsonl"):
        (train / "a/run" / name).touch()
    (train / "a/loop").symlink_to(train, target_is_directory=True)
    if "test/" in layout:
        plain(tmp_path / "root" / "val" / "a" / "9.png")

    splits = load(tmp_path / "root")
    assert numbers(*splits) == list(range(len(LAYOUTS[layout])))
    assert splits[0].label_names + splits[1].label_names == LAYOUTS[layout]
    for split in splits:
        assert split.content_hash == content_hash(split.images, split.labels)


def test_order_is_imagefolders(tmp_path):
    names = ["a/2.png", "a/10.png", "a/z/1.png", "a/Z.JPG", "a-b/1.png", "a/b/1.webp", "B/1.png"]
    names += ["é/日本.png", "a/zz.png", os.fsdecode(b"a/\xff\xfe.png"), "a/new\nline.png"]
    others = ["a/noextension", "a/readme.txt", "a/y.png.txt"]
    for name in [*names, *others]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    reference = ImageFolder(str(tmp_path))
    splits, unused = folder.list_folder(tmp_path)
    (files,) = splits.values()
    assert [str(tmp_path / name) for _, name in files] == [path for path, _ in reference.samples]
    assert sorted({class_name for class_name, _ in files}) == reference.classes
    assert {*IMG_EXTENSIONS, ".gif", ".jfif", ".jpe"} == {*folder.EXTENSIONS}
    assert sorted(unused) == others


@pytest.mark.parametrize(
    "files",
    [
        [],
        ["Training/cat/0.png", "Training/dog/0.png", "Testing/cat/0.png"],
        ["train/ape/0.png", "test/ape/0.png", "test/dog/0.png"],
        ["train/ape/0.png", "test/0.png"],
    ],
    ids=["empty", "splits of another name", "a class of test alone", "test without classes"],
)
def test_layouts_that_would_be_trained_on_wrongly_are_refused(tmp_path, files):
    (tmp_path / "root").mkdir()
    for file in files:
        plain(tmp_path / "root" / file)
    with pytest.raises(DataError, match=str(tmp_path / "root")):
        load(tmp_path / "root")


def test_no_run_hides_the_images_that_it_learns_from(root):
    for out in ("train/ape", "test"):
        with pytest.raises(DataError, match="name another folder"):
            folder.refuse_run_among_images(root / out, root)
    for out in (".", "new", "train/new", ".."):
        folder.refuse_run_among_images(root / out, root)


# what holds the images, and the folder that is meant; "" for none
OTHER_LEVELS = {
    "unpacked": (["archive/train/cat", "archive/train/dog", "archive/test/cat"], "archive"),
    "twice": (["train/Train/cat", "train/Train/dog", "test/Test/cat"], "train/Train"),
    "of each class": (["cat/train", "cat/val", "dog/train"], "cat"),
    "classes alone": (["archive/cat", "archive/dog/young"], "archive"),
    "classes of folders": (["cat/young", "cat/old", "dog/young"], ""),
    "one class with a folder": (["cat", "cat/young"], ""),
    "a class called as a split": (["valid/2020", "invalid/2020", "invalid/test"], ""),
    "train alone": (["train/cat", "train/dog"], ""),
    "classes called as splits": (["train/train", "train/test", "test/train", "test/test"], ""),
    "folders in the only class of the test": (
        ["train/cat", "train/dog", "test/cat/a", "test/cat/b"],
        "",
    ),
}


@pytest.mark.parametrize("level", OTHER_LEVELS)
def test_splits_and_classes_on_another_level_are_refused(tmp_path, level):
    places, meant = OTHER_LEVELS[level]
    for place in places:
        plain(tmp_path / place / "0.png")
    if meant:
        with pytest.raises(DataError, match=f"do you mean {tmp_path / meant}[?]"):
            folder.list_folder(tmp_path)
    # there, they are found
    folder.list_folder(tmp_path / meant)


def test_notes_tell_what_is_held_out_and_not_used_by_class(root):
    (root / "train" / "ape" / "photo.HEIC").write_bytes(b"")
    plain(root / "train" / "logo.png")
    (root / "test").rename(root / "validation")
    (root / "train.py").touch()
    # a class that cannot be read, an empty one, what is none
    for name in ("emu", "emu/more", "owl", ".hidden", "__MACOSX"):
        (root / "train" / name).mkdir()
    for name in ("emu/0.heic", "emu/1.avif", "emu/more/2.avif"):
        (root / "train" / name).touch()
    # the same from the files and from the cache
    for _ in range(2):
        held_out, size, *unused, counts = load(root)[0].notes
        assert "3 of the 12 images" in held_out
        assert "4 x 4" in size
        assert counts.endswith("ape: 3 + 1, bee: 3 + 1, cat: 3 + 1")
        assert set(unused) == {
            f"{root / 'train'}: 1 file not used (.png)",
            f"{root / 'train' / 'ape'}: 1 file not used (.HEIC)",
            f"{root / 'validation'}: 6 files not used (.png)",
            "class emu is left out: none of its 3 files is read (.avif, .heic)",
            "class owl is left out: none of its 0 files is read (empty)",
        }


def test_files_of_several_pages_are_counted(root):
    first, second = (Image.new("L", (4, 4), grey) for grey in (10, 20))
    for name in ("ape", "cat"):
        path = root / "train" / name / "stack.tif"
        first.save(path, save_all=True, append_images=[second])
    first.save(root / "train" / "cat" / "page.tif")
    for _ in range(2):
        train, _ = load(root)
        assert "files with more than one page, of which the first is read: 2" in train.notes
        assert 20 not in numbers(train)


# for an input of 4 x 8: (width, height) of the photographs, (h, w) of the images
@pytest.mark.parametrize(
    ("photo", "size"), [((3, 3), (4, 8)), ((12, 6), (6, 12)), ((16, 400), (8, 16))]
)
def test_images_are_kept_at_up_to_twice_the_models_input(tmp_path, photo, size):
    root = tmp_path / "root"
    pixels = noise(1, size=photo[::-1])[0].permute(1, 2, 0).numpy()
    save_images(root / "train", [pixels] * 3)
    # the median of the training images decides
    small = np.zeros((1, 1, 3), np.uint8)
    save_images(root / "test", [pixels, small, small])
    (root / "test" / "2.png").rename(root / "train" / "9.png")
    for _ in range(2):
        for split in load(root, size=(4, 8)):
            assert split.images.shape[1:] == (3, *size)
            content = inputs.decode(str(root / "train" / "0.png"), size)
            assert split.images[0].flatten().tolist() == list(content[0])


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
BAD = {
    "truncated.jpg": encoded(NOISE, "JPEG")[:-800],
    "bomb.png": encoded(Image.new("1", (20_000, 10_000)), "PNG"),
    "x\r\nSaved checkpoint\x1b[2J\u202e.png": b"bad",
    "pipe.png": None,
    # only its spaces differ from those of an image that is read
    "x  3.png": b"bad",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_stops_or_is_left_out(root, decoded, name):
    path = root / "train" / "bee" / name
    path.with_name("3.png").rename(path.with_name("x 3.png"))
    if BAD[name]:
        path.write_bytes(BAD[name])
    else:
        os.mkfifo(path)
    in_a_line = " ".join(str(path).split())
    shown = in_a_line.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    with pytest.raises(DataError, match=r"data\.on_bad_image: skip") as caught:
        load(root)
    assert str(caught.value).startswith(f"{shown}: ")
    assert list((root.parent / "cache").iterdir()) == []

    # a cache with a gap is not used by who asks to stop, and stays as it was
    for _ in range(2):
        train, test = load(root, "skip")
        assert (train.skipped, test.skipped) == ((str(path),), ())
        assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert numbers(train, test) == list(range(18))
        assert len(train.files) == 12
    with pytest.raises(DataError):
        load(root)
    # also of a folder with another name
    decoded.clear()
    again, _ = load(root / ".." / root.name, "skip")
    assert (again.files, decoded) == (train.files, [])


# --- the cache ------------------------------------------------------------------------------------


def rewrite_keeping_size_and_time(bees: Path) -> None:
    """As `cp -p` and `tar` do."""
    before = (bees / "0.png").stat()
    (bees / "0.png").write_bytes((bees / "1.png").read_bytes())
    os.utime(bees / "0.png", ns=(before.st_atime_ns, before.st_mtime_ns))


# and the images that are decoded then
CHANGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "nothing": (lambda bees: None, 0),
    "rewrite": (rewrite_keeping_size_and_time, 12),
    "rename": (lambda bees: (bees / "1.png").rename(bees / "0a.png"), 12),
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_changed_files_are_decoded_again(root, decoded, change):
    first, _ = load(root)
    # another size has another cache
    assert load(root, size=(8, 4))[0].images.shape == (12, 3, 8, 4)
    decoded.clear()
    make, count = CHANGES[change]
    make(root / "train" / "bee")
    train, _ = load(root)
    # and none of the test files
    assert len(decoded) == count
    if change == "nothing":
        assert_same(vars(train), vars(first))
    if change == "rewrite":
        assert numbers(train)[4] == 5


def test_writes_into_the_images_stay_private(root):
    train, _ = load(root)
    before = cache_of(root).read_bytes()
    train.images.fill_(0)
    assert cache_of(root).read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:50],
        lambda content: content[:-9],
        # of another version: six values of other types
        lambda content: content[: content.rindex(b'["')] + b'"record"',
    ],
)
def test_a_cache_that_cannot_be_read_is_made_anew(root, decoded, damage):
    load(root)
    path = cache_of(root)
    content = path.read_bytes()
    # the images that were returned keep the old file
    path.unlink()
    path.write_bytes(damage(content))
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


def test_of_two_processes_that_build_one_cache_one_is_killed(root, decoded):
    forks = multiprocessing.get_context("fork")
    original = inputs.decode

    def build(decoding: Event) -> None:
        def slow(*how: object) -> tuple[bytes, int, str] | str:
            decoding.set()
            while not (root.parent / "go").exists():
                time.sleep(0.01)
            return original(*how)

        torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
        inputs.decode = slow
        load(root)

    begun = [forks.Event(), forks.Event()]
    both = [forks.Process(target=build, args=[decoding]) for decoding in begun]
    for process in both:
        process.start()
    # both decode until the test lets them go on
    assert all(decoding.wait(600) for decoding in begun)
    both[0].kill()
    both[0].join()
    (root.parent / "go").touch()
    both[1].join(600)
    assert [process.exitcode for process in both] == [-signal.SIGKILL, 0]
    # what the killed one had written is gone with the second file of the other
    left = sorted(path.name[:9] for path in (root.parent / "cache").iterdir())
    assert left == ["root-test", "root-trai"]
    assert numbers(*load(root)) == list(range(18))
    assert decoded == []
