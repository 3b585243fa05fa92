"""`vit embed` writes what `embed` computes, image by image; an error leaves no file."""

import csv
import os
import shutil

import numpy as np
import pytest
import torch
from tiny import dataset, noise
from torchvision.transforms.v2.functional import to_pil_image

from vit.checkpoints import load_model
from vit.config import DataConfig
from vit.data.sources import load_data
from vit.look.datasets import list_splits
from vit.look.predict import embed


@pytest.fixture
def embedded(vit, tmp_path):
    """`embedded(*argv)`: the arrays that `vit embed` writes."""

    def embedded(*argv):
        path = tmp_path / "features.npz"
        code, said, _ = vit("embed", *argv, "--overwrite --out", path)
        assert (code, str(path) in said) == (0, True)
        return dict(np.load(path))

    return embedded


def assert_features(found, model, images):
    np.testing.assert_allclose(found, embed(load_model(model), images).pooled, atol=1e-5)


@pytest.mark.parametrize("name", ["mae", "encoder"])
def test_a_folders_features_are_those_of_its_files(name, embedded, models):
    found = embedded(name, "data")
    train, test = list_splits(models / "data", (12, 16)).values()  # as a run would use it
    assert list(found["files"]) == [name for _, name in (*train, *test)]
    assert list(found["splits"]) == ["train"] * len(train) + ["test"] * len(test)
    assert_features(found["pooled"], name, [models / "data" / file for file in found["files"]])
    classes = [found["class_names"][label] for label in found["labels"]]
    assert classes == [file.partition("/")[0] for file in found["files"]]
    assert str(found["checkpoint"]) == name
    assert (found["class_names"].tolist(), found["grid"].tolist()) == (["cat", "dog"], [3, 4])


def test_image_files_have_their_features_and_neither_splits_nor_classes(embedded, tmp_path):
    files = ["one.png", "data/cat/3.png", "two.png"]
    found = embedded("encoder", *files, "./one.png")
    assert found["files"].tolist() == files  # each once
    assert_features(found["pooled"], "encoder", files)
    assert (set(found["splits"]), set(found["labels"])) == ({""}, {-1})
    assert found["class_names"].tolist() == []

    # So has one of a name of any bytes, alone in a folder
    (tmp_path / "odd").mkdir()
    shutil.copy("two.png", os.fsdecode(os.fsencode(tmp_path / "odd") + b"/caf\xe9.png"))
    alone = embedded("encoder", tmp_path / "odd")
    np.testing.assert_allclose(alone["pooled"][0], found["pooled"][2], atol=1e-6)
    assert (alone["splits"].tolist(), alone["files"][0][:3]) == ([""], "caf")


def test_a_table_has_the_same_features(embedded, vit, tmp_path):
    found = embedded("encoder data")
    out = tmp_path / "features.csv"
    assert vit("embed", "encoder data --out", out)[0] == 0
    with out.open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head[:4] == ["file", "split", "class", "0"]
    assert [row[0] for row in rows] == found["files"].tolist()
    assert [row[1] for row in rows] == found["splits"].tolist()
    assert [row[2] for row in rows] == found["class_names"][found["labels"]].tolist()
    np.testing.assert_array_equal(np.array([row[3:] for row in rows], np.float32), found["pooled"])


def test_copies_of_an_image_are_in_one_split_as_in_a_run(embedded, tmp_path):
    folder = tmp_path / "twice"
    folder.mkdir()
    for number, image in enumerate(noise(20, size=(12, 16))):
        for copy in ("", " (copy)"):
            to_pil_image(image).save(folder / f"{number:02}{copy}.png")
    found = embedded("encoder", folder)
    tests = found["files"][found["splits"] == "test"].tolist()
    assert tests == ["00 (copy).png", "00.png", "10 (copy).png", "10.png"]
    config = DataConfig(source="folder", root=str(folder), cache=str(tmp_path / "cache"))
    assert len(load_data(config, (12, 16)).test) == 4


def test_a_data_set_in_several_batches_with_its_splits(embedded):
    """More than a batch, whose edges are not those of the splits."""
    count = 70
    found = embedded("mean scenes --limit", count)
    data = load_data(DataConfig(source="scenes", limit=count), (12, 16))
    for split, images in (("train", data.train), ("test", data.test)):
        mine = found["splits"] == split
        assert found["files"][mine].tolist() == [f"{split}/{n:05d}" for n in range(count)]
        assert_features(found["pooled"][mine], "mean", images.images)
        assert found["labels"][mine].tolist() == images.labels.tolist()


def test_images_without_classes_and_a_folder_with_splits(embedded, tmp_path):
    for split in ("train", "val"):
        (tmp_path / "plain" / split).mkdir(parents=True)
        shutil.copy("one.png", tmp_path / "plain" / split / "image.png")
    found = embedded("plain", tmp_path / "plain")
    assert found["files"].tolist() == ["train/image.png", "val/image.png"]
    assert found["splits"].tolist() == ["train", "val"]
    assert found["labels"].tolist() == [-1, -1]


def test_a_limited_data_set_keeps_the_numbers_of_its_images(embedded, monkeypatch):
    parts = dataset(9, 6)
    monkeypatch.setattr("vit.data.cifar.load_cifar", lambda *_: (parts.train, parts.test))
    monkeypatch.setattr("vit.data.cifar.fetch_cifar", lambda *_: "")
    found = embedded("mae cifar10 --limit 3")
    places = [f"train/{i:05d}" for i in (0, 3, 6)] + [f"test/{i:05d}" for i in (0, 2, 4)]
    assert found["files"].tolist() == places
    assert found["labels"].tolist() == [0, 0, 0, 0, 2, 1]
    images = torch.cat([parts.train.images[::3], parts.test.images[::2]])
    assert_features(found["pooled"], "mae", images)
    assert embedded("plain data --limit 1")["class_names"].tolist() == ["cat", "dog"]


def test_an_image_that_cannot_be_read_leaves_nothing_or_is_left_out(
    embedded, refused, models, tmp_path, caplog
):
    whole = embedded("mae data")
    shutil.copytree("data", tmp_path / "data")
    (tmp_path / "data" / "cat" / "3.png").write_text("no image")
    out = tmp_path / "none.npz"
    error = refused("embed", "mae", tmp_path / "data", "--out", out)
    assert "data/cat/3.png: its content is not an image" in error
    assert error.endswith("; --on-bad-image skip leaves out all such files\n")
    assert not out.exists()

    found = embedded("mae", tmp_path / "data", "--on-bad-image skip")
    kept = whole["files"] != "cat/3.png"
    assert kept.sum() == 23
    for key in ("files", "labels"):
        assert found[key].tolist() == whole[key][kept].tolist()
    np.testing.assert_allclose(found["pooled"], whole["pooled"][kept], atol=1e-6)
    assert "cat/3.png: not a readable image (its content is not an image), left out" in caplog.text
