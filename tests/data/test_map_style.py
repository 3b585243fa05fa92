"""Data sets from Python and from Hugging Face: the same images as from a folder, in their order, at flat memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tiny import noise
from torch.utils.data import Subset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms.v2.functional import to_pil_image

from vit import data as data_module
from vit.config import DataConfig
from vit.data import Dataset, ImageSet, images, map_style
from vit.data.sources import load_data
from vit.errors import DataError

SIZE = (8, 8)


@pytest.fixture
def load(tmp_path):
    def load(dataset=None, test=None, size=SIZE, **settings) -> Dataset:
        return load_data(DataConfig(cache=str(tmp_path / "cache"), **settings), size, dataset, test)

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


def assert_same_images(one: ImageSet, other: ImageSet) -> None:
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)
    assert (one.class_names, one.content_hash) == (other.class_names, other.content_hash)


@pytest.mark.parametrize("few", [0, 2000])
def test_torchvisions_folder_gives_the_images_of_a_folder(folder, load, monkeypatch, few):
    monkeypatch.setattr(map_style, "FEW", few)  # from 0 on, processes decode
    ours = load(source="folder", root=str(folder))
    theirs = load(ImageFolder(folder / "train"), ImageFolder(folder / "test"))
    for split in ("train", "test"):
        assert_same_images(getattr(theirs, split), getattr(ours, split))
    assert (theirs.source, theirs.name, theirs.notes) == ("dataset", "ImageFolder", ours.notes)
    # nobody knows what its content is: nothing is kept
    assert list((folder.parent / "cache").glob("ImageFolder*")) == []


FORMS = {
    "tensors": (lambda pixels, label: pixels, False),
    "pictures": (lambda pixels, label: to_pil_image(pixels), False),
    "pairs": (lambda pixels, label: (pixels, label), True),
    "a label that is a tensor": (
        lambda pixels, label: (to_pil_image(pixels), torch.tensor(label), "more"),
        True,
    ),
    "mappings": (lambda pixels, label: {"image": pixels, "label": label}, True),
    "no label": (lambda pixels, label: (pixels, None), False),
    "a label of -1": (lambda pixels, label: (pixels, -1), False),
}


@pytest.mark.parametrize("form", FORMS)
def test_items_of_many_forms_give_their_pixels_to_the_bit(load, form):
    make, labelled = FORMS[form]
    pixels = noise(30, size=SIZE)
    data = load([make(each, number % 3) for number, each in enumerate(pixels)])
    _, held_out, _ = images.hold_out(30, at_random=True)
    assert [number // 10 for number in held_out] == [0, 1, 2]
    kept = [number for number in range(30) if number not in held_out]
    assert torch.equal(data.train.images, pixels[kept])
    assert torch.equal(data.test.images, pixels[held_out])
    assert data.train.labels.tolist() == [number % 3 if labelled else -1 for number in kept]
    assert data.train.class_names == data.test.class_names == (("0", "1", "2") if labelled else ())
    assert data.notes[0].startswith("no test set: 3 of the 30 images")


def test_held_out_and_limited_items_follow_no_period_of_the_data(load):
    """Evenly spaced ones were all of one class, which training then never saw."""
    items = [(image, number % 10) for number, image in enumerate(noise(200, size=SIZE))]
    for data in (load(items), load(items, items, limit=20)):
        assert len(data.test) == 20
        assert len(set(data.test.labels.tolist())) > 4
        assert len(set(data.train.labels.tolist())) > 4
    for count, most in ((200, 20), (7, 3), (5, 5), (3, 9)):
        drawn, starts = images.spread_at_random(count, most), images.evenly_spaced(count, most)
        assert (starts <= drawn).all()
        assert (drawn < torch.cat([starts[1:], torch.tensor([count])])).all()


def test_grey_is_grey_and_a_part_of_a_data_set_knows_its_classes(load):
    grey = noise(12, size=SIZE)[:, :1]
    whole = TensorDataset(grey, torch.arange(12) % 2)
    whole.classes = ["left", "right"]
    data = load(Subset(whole, range(8)), Subset(whole, range(8, 12)))
    assert torch.equal(data.train.images, grey[:8].expand(-1, 3, -1, -1))
    assert data.test.label_names == ["left", "right"] * 2


def test_test_data_with_other_classes_has_their_labels_by_name(folder, load):
    shutil.rmtree(folder / "test" / "ape")
    files = load(source="folder", root=str(folder))
    assert_same_images(
        load(ImageFolder(folder / "train"), ImageFolder(folder / "test")).test, files.test
    )
    (folder / "test" / "bee").rename(folder / "test" / "dog")
    with pytest.raises(
        DataError, match="the test data has a class 'dog', which the training data has not"
    ):
        load(ImageFolder(folder / "train"), ImageFolder(folder / "test"))


BAD = {
    "floats": ([torch.rand(3, 8, 8)] * 4, "item 0: .*torch.float32.*before ToTensor"),
    "channels last": ([torch.zeros(8, 8, 3, dtype=torch.uint8)] * 4, "item 0: .*uint8 .8, 8, 3"),
    "a label that is a word": (
        [(noise(1)[0], "ape")] * 4,
        r"item 0: its label is 'ape' \(str\); labels are integers",
    ),
    "a label that is a float": (
        [(noise(1)[0], 1.0)] * 4,
        r"item 0: its label is 1\.0 \(float\); labels are integers",
    ),
    "one without a label": (
        [(each, 0 if i else None) for i, each in enumerate(noise(9))],
        "image 0 has no label",
    ),
    "a stream": (iter(noise(4)), "not a map-style data set"),
    "one image": (noise(1), "too few images"),
    "several data sets": (
        {"train": noise(4), "test": noise(2)},
        r'several data sets in one .*\["train"\]',
    ),
    "what it raises": ([noise(1)[0], {"picture": 1}, noise(1)[0]], "item 1: .*KeyError: 'image'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_data_set_of_images_is_said_in_one_line(load, case):
    dataset, words = BAD[case]
    with pytest.raises(DataError, match=words) as caught:
        load(
            dataset,
            noise(2, size=SIZE)
            if case.startswith(("what", "floats", "channels", "a label"))
            else None,
        )
    assert ("on_bad_image: skip" in str(caught.value)) == (
        case == "what it raises"
    )  # else it would leave out all


def test_test_data_alone_is_refused(load):
    with pytest.raises(DataError, match=r"^test_dataset: [^\n]*dataset=[^\n]*$"):
        load(None, noise(2), source="scenes", limit=4)


def test_labels_without_a_name_and_bad_items_left_out_on_request(load):
    pixels = noise(6, size=SIZE)
    with pytest.raises(DataError, match="a label is 3 in test, but there are 3 classes"):
        load([(each, number % 3) for number, each in enumerate(pixels)], [(pixels[0], 3)])
    with pytest.raises(
        DataError,
        match=r"list: the test data has no labels, which the training data has; [^\n]*hold",
    ):
        load([(each, number % 3) for number, each in enumerate(pixels)], pixels)
    data = load([pixels[0], "no image", *pixels[1:]], pixels[:1], on_bad_image="skip")
    assert torch.equal(data.train.images, pixels)
    assert data.train.skipped == ("list: item 1",)
    with pytest.raises(DataError, match="item 5: its label is 'ape'"):  # a label is no image
        load([*pixels[1:], (pixels[0], "ape")], pixels[:1], on_bad_image="skip")


# --- Hugging Face ----------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path, folder) -> Path:
    """The folder's images, as `save_to_disk` writes them."""
    datasets = pytest.importorskip("datasets")
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


def test_a_data_set_of_hugging_face_gives_the_images_of_the_folder(folder, saved, load):
    from datasets import load_from_disk

    parts = load_from_disk(saved)
    ours = load(source="folder", root=str(folder))
    theirs = load(parts["train"], parts["test"], name="pets")
    for split in ("train", "test"):
        assert_same_images(getattr(theirs, split), getattr(ours, split))
    assert (theirs.source, theirs.name) == ("dataset", "pets")
    assert "images of the column img, labels of kind" in theirs.notes


def test_it_is_decoded_once_and_again_when_it_changes(saved, load, monkeypatch):
    from datasets import load_from_disk

    first = load_from_disk(saved)["train"]
    whole = load(first, first)
    with monkeypatch.context() as patch:
        patch.setattr(map_style, "_in_processes", None)
        again = load_from_disk(saved)["train"]
        assert_same_images(load(again, again).train, whole.train)
    part = first.select([7, 2, 5])
    assert torch.equal(load(part, first).train.images, whole.train.images[[7, 2, 5]])


def test_a_random_part_of_a_data_set_of_hugging_face_has_its_columns(saved, load):
    from datasets import load_from_disk

    whole = load_from_disk(saved)["train"]
    part = load(Subset(whole, [7, 2, 5]), whole)
    assert torch.equal(part.train.images, load(whole, whole).train.images[[7, 2, 5]])
    assert part.train.class_names == ("ape", "bee", "cat")


def test_labels_that_are_text_are_not_taken_and_the_note_says_how_to(saved, load):
    from datasets import Value, load_from_disk

    part = load_from_disk(saved)["train"]
    named = part.map(lambda row: {"label": "ape"}).remove_columns("kind")
    assert named.features["label"] == Value("string")
    way = "label holds text; class_encode_column('label') makes classes of it"
    assert f"images of the column img, without labels: {way}" in load(named).notes
    assert (
        "images of the column img, labels of label"
        in load(named.class_encode_column("label")).notes
    )


def test_a_data_set_without_images_is_refused_in_one_line(load):
    datasets = pytest.importorskip("datasets")
    text = datasets.Dataset.from_dict({"text": ["a", "b"]})
    with pytest.raises(DataError, match=r"^no image column among text; cast_column"):
        load(text)


# --- more than fits in memory ----------------------------------------------------------------------------------------


def test_a_large_part_of_a_set_is_no_copy_and_has_the_same_images_and_hash(monkeypatch):
    pixels, labels = noise(50), torch.arange(50) % 5
    whole = ImageSet(pixels, labels, ("a", "b", "c", "d", "e"), "")
    chosen = [torch.tensor([7, 3, 44]), torch.arange(50) % 3 > 0]
    copies = [whole.subset(some) for some in chosen]
    monkeypatch.setattr(data_module, "LARGE", 0)
    for some, copy in zip(chosen, copies, strict=True):
        part = whole.subset(some)
        assert part.images[:].data_ptr() != part.images[:].data_ptr()  # made when it is asked for
        assert_same_images(
            ImageSet(part.images[:], part.labels, part.class_names, part.content_hash), copy
        )
        assert part.images.shape == copy.images.shape
        twice = part.subset(torch.tensor([1, 0]))
        assert torch.equal(twice.images[:], copy.images[[1, 0]])
