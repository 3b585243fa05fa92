"""A folder of images: which files, and the cache."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vit.data import decode, folder
from vit.data.folder import load_folder
from vit.data.images import DataError, ImageSet, content_hash

RED, BLUE = (255, 0, 0), (0, 0, 255)


def plain(path: Path, colour: tuple[int, int, int] = RED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), colour).save(path)
    return path


def load(root: Path, on_bad_image: str = "stop", size: tuple[int, int] = (4, 4)) -> tuple[ImageSet, ImageSet]:
    return load_folder(root, size, on_bad_image, root.parent / "cache")  # type: ignore[arg-type]


def colours(images: torch.Tensor) -> list[tuple[int, ...]]:
    """The colour of each image that has only one."""
    assert (images == images[:, :, :1, :1]).all()
    return [tuple(image[:, 0, 0].tolist()) for image in images]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes; the green channel of an image is its number in the order of the files."""
    number = 0
    for split, count in (("train", 4), ("test", 2)):
        for class_name in ("ape", "bee", "cat"):
            for index in range(count):
                plain(tmp_path / "root" / split / class_name / f"{index}.png", (9, number, 200))
                number += 1
    return tmp_path / "root"


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_train_and_test_folders(root: Path) -> None:
    train, test = load(root)
    assert train.images.dtype == torch.uint8
    assert train.images.shape == (12, 3, 4, 4)
    assert train.images.is_contiguous()
    assert train.labels.dtype == torch.int64
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert train.class_names == test.class_names == ("ape", "bee", "cat")
    assert colours(train.images) == [(9, number, 200) for number in range(12)]
    assert colours(test.images) == [(9, number, 200) for number in range(12, 18)]
    assert train.content_hash == content_hash(train.images, train.labels)
    assert test.content_hash == content_hash(test.images, test.labels)
    assert train.skipped == test.skipped == ()


def test_val_counts_where_there_is_no_test(root: Path) -> None:
    _, test = load(root)
    (root / "test").rename(root / "val")
    assert load(root)[1].content_hash == test.content_hash
    plain(root / "test" / "bee" / "0.png", BLUE)
    _, test = load(root)
    assert colours(test.images) == [BLUE]
    assert test.labels.tolist() == [1]


def test_class_folders_without_train(tmp_path: Path) -> None:
    for class_name, colour in (("dog", RED), ("cat", BLUE)):
        for index in range(10):
            plain(tmp_path / "root" / class_name / "deep" / "er" / f"{index}.png", colour)
    train, test = load(tmp_path / "root")
    assert train.class_names == ("cat", "dog")
    assert colours(train.images) == [BLUE] * 9 + [RED] * 9
    assert colours(test.images) == [BLUE, RED]
    assert train.labels.tolist() == [0] * 9 + [1] * 9
    assert test.labels.tolist() == [0, 1]


@pytest.mark.parametrize("inside", ["", "train"])
def test_images_without_classes(tmp_path: Path, inside: str) -> None:
    for index in range(25):
        plain(tmp_path / "root" / inside / f"{index:02}.png", (index, 0, 0))
    train, test = load(tmp_path / "root")
    assert train.class_names == test.class_names == ()
    assert not train.labelled
    assert set(train.labels.tolist()) == set(test.labels.tolist()) == {-1}
    assert [colour[0] for colour in colours(test.images)] == [0, 12]
    assert [colour[0] for colour in colours(train.images)] == [i for i in range(25) if i not in (0, 12)]


@pytest.mark.parametrize(("count", "held_out"), [(2, 1), (9, 1), (19, 1), (20, 2), (9_999, 999), (25_000, 1000)])
def test_held_out_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, held_out: int) -> None:
    files = [folder.ImageFile("", f"{index}.png", 1, 1) for index in range(count)]
    monkeypatch.setattr(folder, "_list_images", lambda *_: files)
    train, test = folder.list_splits(tmp_path)
    assert len(test) == held_out
    assert sorted([*train, *test]) == sorted(files)
    numbers = [int(Path(file.name).stem) for file in test]
    assert set(np.diff(numbers)) <= {count // held_out, count // held_out + 1}


def test_order_is_imagefolders(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder
    from torchvision.datasets.folder import IMG_EXTENSIONS

    names = ["a/2.png", "a/10.png", "a/z/1.png", "a/.hidden.PNG", "a/Z.JPG"]
    names += ["a-b/1.png", "a/b/1.webp", "é/日本.png", "B/1.png", "a/zz.png"]
    for name in [*names, "a/readme.txt", "a/y.png.txt", "a/noextension"]:
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_bytes(b"")
    reference = ImageFolder(str(tmp_path / "root"))
    found = folder._list_images(tmp_path / "root", "")
    assert [str(tmp_path / "root" / file.name) for file in found] == [path for path, _ in reference.samples]
    assert len(found) == len(names)
    assert sorted({file.class_name for file in found}) == reference.classes
    assert folder.EXTENSIONS == IMG_EXTENSIONS


def test_unicode_and_undecodable_names(tmp_path: Path) -> None:
    names = [b"\xe6\x97\xa5\xe6\x9c\xac.png", b"\xff\xfe.png", b"new\nline.png"]
    for name in names:
        plain(tmp_path / "root" / "ünï" / "0.png").rename(tmp_path / "root" / "ünï" / os.fsdecode(name))
    train, test = load(tmp_path / "root")
    assert train.class_names == ("ünï",)
    assert len(train) + len(test) == 3


def test_loops_of_links_are_tolerated(root: Path) -> None:
    (root / "train" / "ape" / "loop").symlink_to(root / "train", target_is_directory=True)
    (root / "train" / "ape" / "here").symlink_to(".", target_is_directory=True)
    (root / "train" / "bee" / "self").symlink_to("self")
    (root / "train" / "cat" / "linked.png").symlink_to("3.png")
    assert len(load(root)[0]) == 13


def test_images_beside_the_classes_are_reported(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain(root / "train" / "logo.png")
    assert len(load(root)[0]) == 12
    assert "1 images beside the class folders" in caplog.text


def test_empty_class_folder_is_no_class(root: Path) -> None:
    (root / "train" / "aaa").mkdir()
    assert load(root)[0].class_names == ("ape", "bee", "cat")


def test_layouts_that_cannot_be_used(root: Path, tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(DataError) as caught:
            load(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "no such folder" in refused(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert ".jpg .jpeg .png .ppm .bmp .pgm .tif .tiff .webp" in refused(tmp_path / "empty")
    plain(tmp_path / "one" / "0.png")
    assert "only one image" in refused(tmp_path / "one")
    plain(tmp_path / "untrained" / "val" / "ape" / "0.png")
    assert "folder val but no folder train" in refused(tmp_path / "untrained")
    plain(tmp_path / "half" / "train" / "ape" / "0.png")
    plain(tmp_path / "half" / "test" / "0.png")
    assert "no class folders" in refused(tmp_path / "half")
    plain(root / "test" / "d\nog" / "0.png")
    assert "class folder d\\nog" in refused(root)


# --- files that are no images ----------------------------------------------------------------------------------------


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """A header that promises more than there is; nothing but the header is needed to refuse it."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))

BAD = {
    "truncated.jpg": saved(NOISE, "JPEG")[:-800],
    "truncated.png": saved(NOISE, "PNG")[:-800],
    "text.png": b"this is no image\n",
    "empty.png": b"",
    "bomb.png": png_of_size(20_000, 20_000),
    "bomb-of-pillows-warning.png": saved(Image.new("1", (10_000, 10_000)), "PNG"),
    "postscript.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\nshowpage\n",
    "fractions.tif": saved(Image.new("F", (4, 4), 0.5), "TIFF"),
    "grey32.tif": saved(Image.new("I", (4, 4), 70_000), "TIFF"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", [*BAD, "broken-link.png", "pipe.png"])
def test_bad_image(root: Path, name: str) -> None:
    path = root / "train" / "bee" / name
    if name in BAD:
        path.write_bytes(BAD[name])
    elif name == "pipe.png":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere.png")
    with pytest.raises(DataError) as caught:
        load(root)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert ("pixels" in message) == ("bomb" in name)
    assert "data.on_bad_image: skip" in message
    assert "\n" not in message
    assert list((root.parent / "cache").iterdir()) == []

    train, test = load(root, "skip")
    assert train.skipped == (str(path),)
    assert test.skipped == ()
    assert len(train) == 12
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert colours(train.images) == [(9, number, 200) for number in range(12)]


def test_first_bad_image_is_named(root: Path) -> None:
    for name in ("cat/9.png", "ape/9.png", "bee/0.png"):
        (root / "train" / name).write_bytes(b"bad")
    with pytest.raises(DataError, match=r"train/ape/9\.png"):
        load(root)


def test_all_bad(tmp_path: Path) -> None:
    for index in range(3):
        (tmp_path / "root").mkdir(exist_ok=True)
        (tmp_path / "root" / f"{index}.png").write_bytes(b"bad")
    with pytest.raises(DataError, match="none of the 2 train images can be read") as caught:
        load(tmp_path / "root", "skip")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_hostile_name_cannot_forge_a_line(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    hostile = root / "train" / "ape" / "x\r\nSaved checkpoint\x1b[2J\u202e.png"
    hostile.write_bytes(b"bad")
    with pytest.raises(DataError) as caught:
        load(root)
    train, _ = load(root, "skip")
    for text in (str(caught.value), *train.skipped, *(record.getMessage() for record in caplog.records)):
        assert text.isprintable()
        assert "x\\r\\nSaved checkpoint\\x1b[2J\\u202e.png" in text


# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are decoded, as they are."""
    paths: list[str] = []
    original = decode.decode

    def recorded(path: str, image_size: tuple[int, int]) -> bytes | str:
        paths.append(path)
        return original(path, image_size)

    monkeypatch.setattr(decode, "decode", recorded)
    return paths


def cache_of(root: Path, split: str) -> Path:
    (path,) = (root.parent / "cache").glob(f"*-{split}-*")
    return path


def test_second_start_decodes_nothing(root: Path, decoded: list[str]) -> None:
    first = load(root)
    assert len(decoded) == 18
    second = load(root)
    assert len(decoded) == 18
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
        assert (one.class_names, one.content_hash, one.skipped) == (
            other.class_names,
            other.content_hash,
            other.skipped,
        )
    assert sorted(path.name[:13] for path in (root.parent / "cache").iterdir()) == ["root-test-4x4", "root-train-4x"]


def test_another_name_of_the_folder_has_the_same_cache(
    root: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(root)
    monkeypatch.chdir(root.parent)
    load_folder(Path("root"), (4, 4), "stop", Path("cache"))
    assert len(decoded) == 18


def test_another_size_has_another_cache(root: Path, decoded: list[str]) -> None:
    load(root)
    assert load(root, size=(8, 4))[0].images.shape == (12, 3, 8, 4)
    load(root)
    assert len(decoded) == 36


def touch(path: Path) -> None:
    os.utime(path, ns=(0, 5))


def grow(path: Path) -> None:
    times = path.stat()
    path.write_bytes(path.read_bytes() + b"tail")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "rewrite": lambda train: touch(plain(train / "ape" / "0.png", BLUE)),
    "change the time": lambda train: touch(train / "ape" / "0.png"),
    "grow": lambda train: grow(train / "ape" / "0.png"),
    "add": lambda train: plain(train / "bee" / "extra.png", BLUE),
    "remove": lambda train: (train / "bee" / "1.png").unlink(),
    "rename": lambda train: (train / "bee" / "1.png").rename(train / "bee" / "0a.png"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_decoded_again(root: Path, decoded: list[str], change: str) -> None:
    load(root)
    decoded.clear()
    CHANGES[change](root / "train")
    train, _ = load(root)
    count = {"add": 13, "remove": 11}.get(change, 12)
    assert len(decoded) == len(train) == count  # and none of the test files
    if change == "rewrite":
        assert colours(train.images)[0] == BLUE


def test_new_class_renumbers_the_test_images(root: Path) -> None:
    load(root)
    plain(root / "train" / "aardvark" / "0.png")
    train, test = load(root)
    assert train.class_names == test.class_names == ("aardvark", "ape", "bee", "cat")
    assert test.labels.tolist() == [1, 1, 2, 2, 3, 3]


def test_cache_is_a_plain_npy_file_with_a_record_behind_it(root: Path) -> None:
    (root / "train" / "bee" / "bad.png").write_bytes(b"bad")
    train, _ = load(root, "skip")
    path = cache_of(root, "train")
    np.testing.assert_array_equal(np.load(path), train.images.numpy())
    record = json.loads(path.read_bytes()[128 + train.images.numel() :])
    assert (record["content_hash"], record["skipped"]) == (train.content_hash, ["train/bee/bad.png"])


def test_images_are_mapped_and_writes_stay_private(root: Path) -> None:
    load(root)
    train, _ = load(root)
    if sys.platform == "linux":
        assert str(cache_of(root, "train")) in Path("/proc/self/maps").read_text()
    before = cache_of(root, "train").read_bytes()
    train.images.fill_(0)
    assert cache_of(root, "train").read_bytes() == before
    assert colours(load(root)[0].images)[1] == (9, 1, 200)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems reserve no memory for a map")
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_map_may_be_larger_than_memory(tmp_path: Path) -> None:
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        pytest.skip("this machine is set to never overcommit")
    count = 4 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with (tmp_path / "sparse").open("wb+") as sparse:
        np.lib.format.write_array_header_1_0(sparse, {"descr": "|u1", "fortran_order": False, "shape": (count,)})
        sparse.truncate(128 + count)
        sparse.seek(0)
        assert torch.from_numpy(folder._map(sparse))[-1] == 0


HEADER = 128  # bytes
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "short": lambda content: content[:5],
    "cut in the header": lambda content: content[:50],
    "cut in the images": lambda content: content[: HEADER + 400],
    "cut in the record": lambda content: content[:-20],
    "one byte missing": lambda content: content[:-1],
    "one byte more": lambda content: content + b"x",
    "header length": lambda content: content[:8] + b"\xff\xff" + content[10:],
    "header no Python": lambda content: content[:10] + b"x" + content[11:],
    "record a list": lambda content: content[: HEADER + 12 * 48] + b"[1]",
    "no hash": lambda content: content.replace(b'"content_hash"', b'"content_mash"'),
    "more skipped": lambda content: content.replace(b"[]", b'["train/ape/0.png"]'),
    "shape": lambda content: content.replace(b"(12, 3, 4, 4)", b"(12, 3, 2, 8)"),
    "huge": lambda content: content.replace(b"(12, 3, 4, 4)", b"(99999999, 3, 99999, 99999)"),
    "type": lambda content: content.replace(b"|u1", b"|i1"),
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.filterwarnings("ignore:Reading `.npy`")
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_cache_is_made_anew(
    root: Path, decoded: list[str], caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    first, _ = load(root)
    path, before = cache_of(root, "train"), first.content_hash
    whole = path.read_bytes()
    path.unlink()  # the first map keeps the old file
    path.write_bytes(damage(whole))
    decoded.clear()
    train, _ = load(root)
    assert len(decoded) == 12
    assert train.content_hash == before
    assert [f"{path}: this cache is damaged" in record.getMessage() for record in caplog.records] == [True]
    assert path.read_bytes() == whole


def test_cache_with_gaps_is_not_served_when_told_to_stop(root: Path, decoded: list[str]) -> None:
    bad = root / "train" / "bee" / "bad.png"
    bad.write_bytes(b"bad")
    load(root, "skip")
    with pytest.raises(DataError, match=r"bad\.png"):
        load(root, "stop")
    decoded.clear()
    assert load(root, "skip")[0].skipped == (str(bad),)
    assert decoded == []  # the failure has left the cache as it was


def test_failing_decode_leaves_the_old_cache(root: Path) -> None:
    load(root)
    before = cache_of(root, "train").read_bytes()
    (root / "train" / "cat" / "9.png").write_bytes(b"bad")
    with pytest.raises(DataError):
        load(root)
    assert cache_of(root, "train").read_bytes() == before
    assert len(list((root.parent / "cache").iterdir())) == 2


def test_interrupt_leaves_no_partial_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([b"\0" * 48, b"\0" * 48])

    def interrupted(path: str, image_size: tuple[int, int]) -> bytes:
        for answer in answers:
            return answer
        raise KeyboardInterrupt

    monkeypatch.setattr(decode, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(root)
    assert list((root.parent / "cache").iterdir()) == []


def test_full_disk(root: Path) -> None:
    load(root)
    CHANGES["add"](root / "train")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = cache_of(root, "train").read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    try:
        with pytest.raises(DataError, match=r"set data\.cache") as caught:
            load(root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert cache_of(root, "train").read_bytes() == before
    assert len(list((root.parent / "cache").iterdir())) == 2


def test_unwritable_cache_folder(root: Path) -> None:
    (root.parent / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"set data\.cache") as caught:
        load_folder(root, (4, 4), "stop", root.parent / "file" / "cache")
    assert "\n" not in str(caught.value)


# --- decoding in parallel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("small_file", [0, 2**40], ids=["threads", "one thread"])
def test_threads_give_the_same_in_the_same_order(root: Path, monkeypatch: pytest.MonkeyPatch, small_file: int) -> None:
    original, names, before = decode.decode, set(), set(threading.enumerate())

    def delayed(path: str, image_size: tuple[int, int]) -> bytes | str:
        names.add(threading.current_thread().name)
        time.sleep(0.01 * random.random())
        return original(path, image_size)

    monkeypatch.setattr(decode, "decode", delayed)
    monkeypatch.setattr(folder, "SMALL_FILE", small_file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    bad = root / "train" / "bee" / "b\udcffd.png"
    bad.write_bytes(b"bad")
    with pytest.raises(DataError, match=r"b\\udcffd\.png: not a readable image \(its content is no image\)"):
        load(root)
    names.clear()
    train, test = load(root, "skip")
    assert len(names) == (6 if small_file == 0 else 2)  # of train and of test
    assert train.skipped == (str(root / "train" / "bee" / "b\\udcffd.png"),)
    assert colours(train.images) == [(9, number, 200) for number in range(12)]
    assert colours(test.images) == [(9, number, 200) for number in range(12, 18)]
    ours = set(threading.enumerate()) - before
    assert not any(thread.name.startswith("ThreadPool") for thread in ours)


PROGRAM = """
import time
from pathlib import Path
from vit.data import decode
from vit.data.folder import load_folder

original = decode.decode
def slow(path, image_size):
    print("decoding", flush=True)
    time.sleep({seconds})
    return original(path, image_size)
decode.decode = slow
train, _ = load_folder(Path({root!r}), (4, 4), "stop", Path({root!r}).parent / "cache")
print(train.content_hash)
"""


def start(root: Path, seconds: float) -> subprocess.Popen[str]:
    """A program from standard input, which no process could import again, that takes its time to decode."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-"], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdin is not None
    process.stdin.write(PROGRAM.format(root=str(root), seconds=seconds))
    process.stdin.close()
    return process


@pytest.mark.slow
def test_a_program_without_a_main_guard_or_a_file(root: Path) -> None:
    one, two = start(root, 0.05), start(root, 0.05)  # at the same time
    answers = [process.stdout.read().split()[-1] for process in (one, two) if process.stdout]  # type: ignore[union-attr]
    assert (one.wait(), two.wait()) == (0, 0)
    train, _ = load(root)
    assert answers == [train.content_hash, train.content_hash]
    assert colours(train.images) == [(9, number, 200) for number in range(12)]
    assert len(list((root.parent / "cache").iterdir())) == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_killed_build_leaves_nothing_that_is_used(root: Path, decoded: list[str], number: signal.Signals) -> None:
    process = start(root, 0.3)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    killed = time.monotonic()
    process.stdout.read()
    assert process.wait(timeout=20) != 0
    assert time.monotonic() - killed < 3
    left = [path.name[:9] for path in (root.parent / "cache").iterdir()]
    assert left == ([".partial-"] if number == signal.SIGKILL else [])
    assert colours(load(root)[0].images) == [(9, index, 200) for index in range(12)]
    assert len(decoded) == 18
