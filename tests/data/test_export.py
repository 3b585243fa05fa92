"""Images written as a folder come back from it; a folder that cannot be whole is not there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tiny
import torch
from PIL import Image, JpegImagePlugin
from tiny import encoded, full_disk
from torchvision.transforms.v2.functional import to_pil_image

from vit.data import Dataset
from vit.data.export import export_images
from vit.data.folder import load_folder
from vit.data.images import ImageSet
from vit.errors import DataError

SIZE = (12, 16)
CLASSES = ("sheep", "cat", "a dog", "not.hidden", "Zebra")  # neither sorted nor plain


def image_set(labels: list[int], class_names: tuple[str, ...] = CLASSES) -> ImageSet:
    return tiny.image_set(torch.randint(0, 256, (len(labels), 3, *SIZE), dtype=torch.uint8), class_names, labels)


def dataset(train: ImageSet, test: ImageSet) -> Dataset:
    return Dataset("some", "folder", train, test)


def by_class(split: ImageSet) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for image, name in zip(split.images, split.label_names, strict=True):
        found.setdefault(name, []).append(image.numpy().tobytes())
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("labelled", [True, False], ids=["classes", "without classes"])
def test_png_comes_back_as_it_was(labelled, seed, tmp_path):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    known = draw.sample(range(len(CLASSES)), draw.randint(1, len(CLASSES))) if labelled else [-1]
    train, test = (
        image_set([draw.choice(some) for _ in range(count)] + always, CLASSES if labelled else ())
        for some, count, always in ((known, draw.randint(0, 40), known), (known, draw.randint(1, 20), []))
    )
    assert export_images(dataset(train, test), tmp_path / "new" / "copy", "png") == len(train) + len(test)
    again = load_folder(tmp_path / "new" / "copy", SIZE, "stop", tmp_path / "cache")
    for split, read in zip((train, test), again, strict=True):
        assert by_class(read) == by_class(split)


@pytest.mark.parametrize("how", [{}, {"quality": 30}], ids=["75", "30"])
def test_jpeg_is_what_pillow_writes_at_this_quality(how, tmp_path):
    split = image_set([1, 0, 1])
    export_images(dataset(split, split), tmp_path / "copy", **how)
    files = {path.relative_to(tmp_path / "copy").as_posix(): path for path in (tmp_path / "copy").rglob("*.jpg")}
    assert {name for name in files if name.startswith("test/")} == {
        "test/cat/0000.jpg", "test/cat/0001.jpg", "test/sheep/0000.jpg",
    }  # fmt: skip
    for name, row in {"train/cat/0000.jpg": 0, "train/sheep/0000.jpg": 1, "test/cat/0001.jpg": 2}.items():
        wanted = encoded(to_pil_image(split.images[row]), "JPEG", **({"quality": 75} | how))
        assert files[name].read_bytes() == wanted
        with Image.open(files[name]) as image:
            assert JpegImagePlugin.get_sampling(image) == 2  # 4:2:0


def test_full_disk_leaves_nothing(tmp_path):
    noise, flat = image_set([0] * 8), image_set([0] * 8)
    flat.images[:] = 0  # small files, which fit
    with full_disk(300):
        assert export_images(dataset(flat, flat), tmp_path / "fits", "png") == 16
        with pytest.raises(OSError, match="too large") as caught:
            export_images(dataset(flat, noise), tmp_path / "copy", "png")
    assert caught.value.filename == str(tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["fits"]


def test_interrupt_leaves_nothing(tmp_path, monkeypatch):
    saved, save = [], Image.Image.save

    def interrupted(self: Image.Image, path: Path, **how: object) -> None:
        if len(saved) == 3:
            raise KeyboardInterrupt
        saved.append(path)
        save(self, path, **how)

    monkeypatch.setattr(Image.Image, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_images(dataset(image_set([0] * 8), image_set([0])), tmp_path / "copy")
    assert not saved[0].exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        (([0], ("a/b",)), ([0], ("a/b",)), "'a/b'"),
        (([0], ("..",)), ([0], ("..",)), "'..'"),
        (([0], (".hidden",)), ([0], (".hidden",)), "'.hidden'"),
        (([0], ("x" * 256,)), ([0], ("x" * 256,)), "cannot be a folder name"),
        (([0, -1],), ([0],), "have no class"),
        (([0, 1],), ([0, 4],), "'Zebra'"),
    ],
    ids=["slash", "above", "hidden", "long", "partly without classes", "only in test"],
)
def test_classes_that_would_not_come_back_are_refused(train, test, said, tmp_path):
    with pytest.raises(DataError, match=said):
        export_images(dataset(image_set(*train), image_set(*test)), tmp_path / "copy")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("link", [False, True], ids=["folder", "link to nowhere"])
def test_what_is_there_is_left_alone(link, tmp_path):
    there = tmp_path / "copy"
    there.symlink_to("nowhere") if link else there.mkdir()
    with pytest.raises(FileExistsError, match="copy"):
        export_images(dataset(image_set([0]), image_set([0])), there)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    assert there.is_symlink() == link
