"""Map-style data sets: the same images as from the folder, in their order, at flat memory.

The oracle is our own loading of the folder that torchvision and Hugging Face read.
"""

import os
import shutil
import threading
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
import torch
from PIL import Image
from tiny import noise
from torch.utils.data import Subset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms.v2 import RandomHorizontalFlip
from torchvision.transforms.v2.functional import to_pil_image

from vit.config import DataConfig
from vit.data import Dataset, ImageSet, map_style
from vit.data.sources import load_data
from vit.errors import DataError

SIZE = (8, 8)


@pytest.fixture
def load(tmp_path):
    def load(dataset=None, test=None, **settings) -> Dataset:
        return load_data(DataConfig(cache=str(tmp_path / "cache"), **settings), SIZE, dataset, test)

    return load


@pytest.fixture
def folder(tmp_path) -> Path:
    """PNG files of three classes, of noise and of several sizes."""
    for split, count in (("train", 4), ("test", 2)):
        for number, name in enumerate(["ape", "bee", "cat"] * count):
            path = tmp_path / "pictures" / split / name / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            to_pil_image(noise(1, number, (14 + number % 3, 12))[0]).save(path)
    return tmp_path / "pictures"


def assert_same_images(first: ImageSet, second: ImageSet) -> None:
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.labels, second.labels)
    assert first.class_names == second.class_names
    assert first.content_hash == second.content_hash


def test_torchvisions_folder_gives_the_images_of_a_folder(folder, load):
    ours = load(source="folder", root=str(folder))
    theirs = load(ImageFolder(folder / "train"), ImageFolder(folder / "test"))
    for split in ("train", "test"):
        assert_same_images(getattr(theirs, split), getattr(ours, split))
    assert (theirs.source, theirs.name, theirs.notes) == ("dataset", "ImageFolder", ours.notes)
    # nobody knows what its content is: nothing is kept
    assert list((folder.parent / "cache").glob("ImageFolder*")) == []


FORMS = {
    "pictures": (lambda pixels, label: to_pil_image(pixels), False),
    "triples": (lambda pixels, label: (to_pil_image(pixels), torch.tensor(label), "more"), True),
    "a label of -1": (lambda pixels, label: (pixels, -1), False),
}


class Items(list):
    """Items that know which threads have read them: an open file's position, all would share."""

    readers: ClassVar[set[tuple[int, int]]] = set()
    # an attribute that is no data set, as others have
    dataset = None

    def __getitem__(self, number):
        self.readers.add((os.getpid(), threading.get_ident()))
        return super().__getitem__(number)


@pytest.mark.parametrize("form", FORMS)
def test_items_of_many_forms_give_their_pixels_to_the_bit(load, form):
    make, labelled = FORMS[form]
    pixels = noise(9, size=SIZE)
    items = Items(make(image, number % 3) for number, image in enumerate(pixels))
    data = load(items, items)
    for split in (data.train, data.test):
        assert torch.equal(split.images, pixels)
        assert split.labels.tolist() == ([0, 1, 2] * 3 if labelled else [-1] * 9)
        assert split.class_names == ("0", "1", "2") * labelled
    assert Items.readers == {(os.getpid(), threading.get_ident())}


def test_held_out_and_limited_items_follow_no_period_of_the_data(load):
    """Evenly spaced ones were all of one class, which training then never saw."""
    items = [(image, number % 10) for number, image in enumerate(noise(200, size=SIZE))]
    for data in (load(items), load(items, items, limit=20)):
        assert 15 < len(data.test) < 30
        for split in (data.train, data.test):
            assert len(split.labels.unique()) > 4


def test_grey_is_grey(load):
    grey = PIXELS[:, :1]
    assert torch.equal(load([*grey], [*grey]).train.images, grey.expand(-1, 3, -1, -1))


def test_test_data_with_other_classes_has_their_labels_by_name(folder, load):
    shutil.rmtree(folder / "test" / "ape")
    ours = load(source="folder", root=str(folder))
    theirs = load(ImageFolder(folder / "train"), ImageFolder(folder / "test"))
    assert_same_images(theirs.test, ours.test)
    (folder / "test" / "bee").rename(folder / "test" / "dog")
    with pytest.raises(KeyError, match="dog"):
        load(ImageFolder(folder / "train"), ImageFolder(folder / "test"))


def test_parts_of_a_data_set_have_its_classes_and_other_classes_are_refused(folder, load):
    whole = ImageFolder(folder / "train")
    first = Subset(whole, range(4))
    data = load(first + Subset(whole, range(4, len(whole))), whole)
    assert_same_images(data.train, data.test)
    # apes and bees, then bees and cats: the numbers 0 and 1 mean others
    shutil.rmtree(folder / "test" / "ape")
    for other in (ImageFolder(folder / "test"), TensorDataset(PIXELS, torch.arange(9) % 3)):
        with pytest.raises(DataError, match="the same classes"):
            load(first + other, whole)


def test_random_transforms_are_noticed_and_what_does_not_change_is_not(folder, load):
    flipped = ImageFolder(folder / "train", RandomHorizontalFlip())
    (note,) = [note for note in load(flipped).notes if "from read to read" in note]
    assert 1 <= int(note.rpartition(" ")[2]) <= 12
    assert "from read" not in str(load(ImageFolder(folder / "train")).notes)


PIXELS = noise(9, size=SIZE)
REFUSED = {
    "floats": [torch.rand(3, 8, 8)] * 4,
    "whole numbers, which 16-bit grey has too": [torch.full((1, 8, 8), 200)] * 4,
    "one without a label": [(PIXELS[0], None), *((image, 0) for image in PIXELS)],
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_data_is_refused(load, case):
    with pytest.raises((DataError, TypeError)):
        load(REFUSED[case])


def test_bad_items_are_left_out_on_request_but_no_item_with_a_bad_label(load):
    items = [(image, number % 3) for number, image in enumerate(PIXELS)]
    data = load([items[0], "no image", *items[1:]], items[:1], on_bad_image="skip")
    assert torch.equal(data.train.images, PIXELS)
    assert data.train.skipped == ("list: item 1",)
    for label, error in (("ape", TypeError), (3, DataError), (None, DataError)):
        with pytest.raises(error):
            load(items, [(PIXELS[0], label)], on_bad_image="skip")

    class Named(list):
        classes = ("ape", "bee")

    for train, test in ((items, items[:1]), (items[:1], items)):
        with pytest.raises(DataError, match="label 2; the 2 classes are numbered from 0"):
            load(Named(train), Named(test))

    # two classes may have one name: in ImageNet, a crane flies or lifts
    Named.classes = ("crane", "crane")
    data = load(Named(items[:2]), Named(items[:2]))
    assert data.train.labels.tolist() == [0, 1]

    class Fewer(Named):
        classes = ("ox", "crane")

    # the third of two classes is not the third of the training data's
    Named.classes = ("crane", "ox", "crane")
    with pytest.raises(DataError, match="the 3 classes are numbered from 0"):
        load(Named(items), Fewer(items))


# --- Hugging Face --------------------------------------------------------------------------------


@pytest.fixture
def datasets() -> ModuleType:
    """Hugging Face's package, which this one does not need."""
    return pytest.importorskip("datasets")


@pytest.fixture
def saved(tmp_path, folder, datasets) -> Path:
    """The folder's images, as `save_to_disk` writes them."""
    kinds = datasets.ClassLabel(names=["ape", "bee", "cat"])
    features = datasets.Features(
        {"file": datasets.Value("string"), "img": datasets.Image(), "kind": kinds}
    )
    splits = {}
    for split in ("train", "test"):
        files, labels = zip(*ImageFolder(folder / split).samples, strict=True)
        columns = {"file": files, "img": files, "kind": labels}
        splits[split] = datasets.Dataset.from_dict(columns, features)
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_data_set_of_hugging_face_gives_the_images_of_the_folder(datasets, folder, saved, load):
    parts = datasets.load_from_disk(saved)
    ours = load(source="folder", root=str(folder))
    theirs = load(parts["train"], parts["test"], name="pets")
    for split in ("train", "test"):
        assert_same_images(getattr(theirs, split), getattr(ours, split))
    assert (theirs.source, theirs.name) == ("dataset", "pets")
    assert "3 classes; images are read from 'img', labels from 'kind'" in theirs.notes


def test_it_is_decoded_once_and_again_when_it_changes(datasets, saved, load, monkeypatch):
    dataset = datasets.load_from_disk(saved)["train"]
    full = load(dataset, dataset)
    with monkeypatch.context() as patch:
        patch.setattr(map_style, "_read", None)
        again = datasets.load_from_disk(saved)["train"]
        assert_same_images(load(again, again).train, full.train)
    some = load(dataset.select([7, 2, 5]), dataset).train
    assert torch.equal(some.images, full.train.images[[7, 2, 5]])
    assert some.class_names == ("ape", "bee", "cat")


def test_a_picture_in_a_file_is_decoded_again_when_the_file_changes(datasets, tmp_path, load):
    """The fingerprint of a table of paths stays."""
    path = tmp_path / "picture.png"

    def loaded(colour: int) -> Dataset:
        Image.new("RGB", SIZE, (colour, 0, 0)).save(path)
        dataset = datasets.Dataset.from_dict({"image": [str(path)] * 2, "labels": [1, 0]})
        dataset = dataset.cast_column("image", datasets.Image())
        data = load(dataset, dataset)
        # whole numbers of that name are labels
        assert data.test.label_names == ["1", "0"]
        return data

    assert [int(loaded(colour).train.images.max()) for colour in (10, 20)] == [10, 20]


class Wrapped(list):
    """A data set that hands on the fingerprint of another one, whose pictures it changes."""

    _fingerprint = "of another"


def test_a_class_around_a_data_set_of_hugging_face_has_no_cache_of_its(load):
    dark, bright = (Wrapped(noise(4, seed, SIZE)) for seed in (0, 1))
    assert not torch.equal(load(dark, dark).train.images, load(bright, bright).train.images)


def test_a_transform_that_renames_the_labels_is_refused(datasets, saved, load):
    dataset = datasets.load_from_disk(saved)["train"]
    dataset = dataset.with_transform(lambda rows: {"img": rows["img"], "labels": rows["kind"]})
    for part in (dataset, Subset(dataset, range(6))):
        with pytest.raises(DataError):
            load(part, dataset)
