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
from vit.cli import main
from vit.config import DataConfig
from vit.data.sources import load_data
from vit.look.datasets import list_splits
from vit.look.predict import embed


@pytest.fixture
def embedded(models, tmp_path, monkeypatch, capsys):
    """`embedded(*argv)`: the arrays that `vit embed` writes."""
    monkeypatch.chdir(models)

    def embedded(*argv):
        path = tmp_path / "features.npz"
        assert main(["embed", *map(str, argv), "--out", str(path)]) == 0
        assert str(path) in capsys.readouterr().out
        return dict(np.load(path))

    return embedded


@pytest.mark.parametrize("name", ["mae", "encoder"])
def test_a_folders_features_are_those_of_its_files(name, embedded, models):
    found, model = embedded(name, "data"), load_model(models / name)
    train, test = list_splits(models / "data", (12, 16)).values()  # as a run would use it
    assert list(found["files"]) == [name for _, name in (*train, *test)]
    assert list(found["splits"]) == ["train"] * len(train) + ["test"] * len(test)
    expected = embed(model, [models / "data" / file for file in found["files"]])
    np.testing.assert_allclose(found["pooled"], expected.pooled, atol=1e-6)
    classes = [found["class_names"][label] for label in found["labels"]]
    assert classes == [file.partition("/")[0] for file in found["files"]]
    assert str(found["checkpoint"]) == name
    assert (found["class_names"].tolist(), found["grid"].tolist()) == (["cat", "dog"], [3, 4])


def test_image_files_have_their_features_and_neither_splits_nor_classes(
    embedded, models, tmp_path, monkeypatch
):
    files = ["one.png", "data/cat/3.png", "two.png"]
    found = embedded("encoder", *files, "./one.png")
    assert found["files"].tolist() == files  # each once
    expected = embed(load_model(models / "encoder"), [models / file for file in files])
    np.testing.assert_allclose(found["pooled"], expected.pooled, atol=1e-6)
    assert (set(found["splits"]), set(found["labels"])) == ({""}, {-1})
    assert found["class_names"].tolist() == []

    # An image embedded alone is the same as among others
    alone = embedded("encoder", "two.png", "--overwrite")
    np.testing.assert_allclose(alone["pooled"][0], found["pooled"][2], atol=1e-6)


def test_a_table_has_the_same_features(embedded, models, tmp_path):
    found = embedded("encoder", "data")
    out = tmp_path / "features.csv"
    assert main(["embed", "encoder", "data", "--out", str(out)]) == 0
    with out.open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head[:4] == ["file", "split", "class", "0"]
    assert [row[0] for row in rows] == found["files"].tolist()
    assert [row[2] for row in rows] == found["class_names"][found["labels"]].tolist()
    np.testing.assert_array_equal(np.array([row[3:] for row in rows], np.float32), found["pooled"])


def test_copies_of_an_image_are_in_one_split_as_in_a_run(embedded, models, tmp_path):
    (tmp_path / "twice").mkdir()
    for number, image in enumerate(noise(20, size=(12, 16))):
        for copy in ("", " (copy)"):
            to_pil_image(image).save(tmp_path / "twice" / f"{number:02}{copy}.png")
    found = embedded("encoder", tmp_path / "twice")
    tests = found["files"][found["splits"] == "test"].tolist()
    assert tests == ["00 (copy).png", "00.png", "10 (copy).png", "10.png"]
    config = DataConfig(
        source="folder", root=str(tmp_path / "twice"), cache=str(tmp_path / "cache")
    )
    assert len(load_data(config, (12, 16)).test) == 4


def test_one_image_of_a_folder_is_no_split(embedded, models, tmp_path):
    (tmp_path / "single").mkdir()
    shutil.copy(models / "one.png", tmp_path / "single")
    assert embedded("encoder", tmp_path / "single")["splits"].tolist() == [""]


def test_a_data_set_in_several_batches_with_its_splits(embedded, models):
    """More than a batch, whose edges are not those of the splits."""
    count = 70
    found = embedded("mean", "scenes", "--limit", count)
    data = load_data(DataConfig(source="scenes", limit=count), (12, 16))
    model = load_model(models / "mean")
    for split, images in (("train", data.train), ("test", data.test)):
        mine = [n for n, name in enumerate(found["splits"]) if name == split]
        assert [str(found["files"][n]) for n in mine] == [f"{split}/{n:05d}" for n in range(count)]
        np.testing.assert_allclose(
            found["pooled"][mine], embed(model, images.images).pooled, atol=1e-5
        )
        assert [found["labels"][n] for n in mine] == images.labels.tolist()


def test_images_without_classes_and_a_folder_with_splits(embedded, models, tmp_path):
    for split in ("train", "val"):
        (tmp_path / "plain" / split).mkdir(parents=True)
        shutil.copy(models / "one.png", tmp_path / "plain" / split / "image.png")
    found = embedded("plain", tmp_path / "plain")
    assert (list(found["files"]), list(found["splits"])) == (
        ["train/image.png", "val/image.png"],
        ["train", "val"],
    )
    assert list(found["labels"]) == [-1, -1]
    assert found["pooled"].shape == (2, 16)


def test_a_limited_data_set_keeps_the_numbers_of_its_images(embedded, models, monkeypatch):
    parts = dataset(9, 6)
    monkeypatch.setattr("vit.data.cifar.load_cifar", lambda *_: (parts.train, parts.test))
    monkeypatch.setattr("vit.data.cifar.fetch_cifar", lambda *_: "")
    found, model = embedded("mae", "cifar10", "--limit", 3), load_model(models / "mae")
    assert found["files"].tolist() == [f"train/{i:05d}" for i in (0, 3, 6)] + [
        f"test/{i:05d}" for i in (0, 2, 4)
    ]
    assert found["labels"].tolist() == [0, 0, 0, 0, 2, 1]
    images = torch.cat([parts.train.images[::3], parts.test.images[::2]])
    np.testing.assert_allclose(found["pooled"], embed(model, images).pooled, atol=1e-6)


def test_a_limit_keeps_the_numbers_of_the_classes(embedded):
    assert embedded("plain", "data", "--limit", 1)["class_names"].tolist() == ["cat", "dog"]


def test_an_image_that_cannot_be_read_leaves_nothing(models, tmp_path, monkeypatch, capsys):
    shutil.copytree(models / "data", tmp_path / "data")
    (tmp_path / "data" / "dog" / "11.png").write_text("no image")
    monkeypatch.chdir(tmp_path)
    assert main(["embed", str(models / "mae"), "data", "--out", "features.npz"]) == 2
    error = capsys.readouterr().err
    assert "data/dog/11.png: its content is not an image" in error
    assert error.endswith("; --on-bad-image skip leaves out all such files\n")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_an_image_that_cannot_be_read_is_left_out_on_request(embedded, models, tmp_path, caplog):
    whole = embedded("mae", "data")
    shutil.copytree(models / "data", tmp_path / "data")
    (tmp_path / "data" / "cat" / "3.png").write_text("no image")
    found = embedded("mae", tmp_path / "data", "--on-bad-image", "skip", "--overwrite")
    kept = [n for n, name in enumerate(whole["files"]) if name != "cat/3.png"]
    assert len(kept) == 23
    for key in ("files", "labels"):
        assert list(found[key]) == [whole[key][n] for n in kept]
    np.testing.assert_allclose(found["pooled"], whole["pooled"][kept], atol=1e-6)
    assert "cat/3.png: not a readable image (its content is not an image), left out" in caplog.text


def test_a_name_of_any_bytes_is_no_obstacle(embedded, models, tmp_path):
    (tmp_path / "odd").mkdir()
    shutil.copy(models / "one.png", os.fsdecode(os.fsencode(tmp_path / "odd") + b"/caf\xe9.png"))
    assert [str(file).startswith("caf") for file in embedded("mae", tmp_path / "odd")["files"]] == [
        True
    ]
