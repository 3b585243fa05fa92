"""`vit embed` writes what `embed` computes, image by image; an error leaves no file."""

import csv
import shutil

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tiny import dataset

from vit.checkpoints import load_model
from vit.config import DataConfig
from vit.data.sources import load_data
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
    assert_allclose(found, embed(load_model(model), images).pooled, atol=1e-5)


@pytest.mark.parametrize("name", ["mae", "encoder"])
def test_a_folders_features_are_those_of_its_files_in_a_table_too(
    name, embedded, vit, models, tmp_path
):
    found = embedded(name, "data")
    files, splits = found["files"].tolist(), found["splits"].tolist()
    data = load_data(DataConfig(source="folder", root=str(models / "data")), (12, 16))
    assert files == [*data.train.files, *data.test.files]
    assert splits == ["train"] * len(data.train) + ["test"] * len(data.test)
    assert_features(found["pooled"], name, [f"data/{file}" for file in files])
    classes = found["class_names"][found["labels"]].tolist()
    assert classes == [file.partition("/")[0] for file in files]
    assert (str(found["checkpoint"]), str(found["options"])) == (name, "{}")

    out = tmp_path / "features.csv"
    assert vit("embed", name, "data --out", out)[0] == 0
    with out.open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head[:4] == ["file", "split", "class", "0"]
    assert [tuple(row[:3]) for row in rows] == [*zip(files, splits, classes, strict=True)]
    assert_array_equal(np.array([row[3:] for row in rows], np.float32), found["pooled"])


def test_image_files_have_their_features_and_neither_splits_nor_classes(embedded):
    files = ["one.png", "data/cat/3.png", "two.png"]
    found = embedded("encoder", *files, "./one.png")
    assert found["files"].tolist() == files  # each once
    assert_features(found["pooled"], "encoder", files)
    assert (set(found["splits"]), set(found["labels"])) == ({""}, {-1})


def test_a_limited_data_set_keeps_the_numbers_of_its_images(embedded, monkeypatch):
    """More than a batch, whose edges are not those of the splits."""
    parts = dataset(140, 6)
    monkeypatch.setattr("vit.data.cifar.load_cifar", lambda *_: (parts.train, parts.test))
    monkeypatch.setattr("vit.data.cifar.fetch_cifar", lambda *_: "")
    found = embedded("mae cifar10 --limit 70")
    train = [f"train/{n:05d}" for n in range(0, 140, 2)]
    assert found["files"].tolist() == train + [f"test/{n:05d}" for n in range(6)]
    images = torch.cat([parts.train.images[::2], parts.test.images])
    assert_features(found["pooled"], "mae", images)
    labels = torch.cat([parts.train.labels[::2], parts.test.labels])
    assert found["labels"].tolist() == labels.tolist()


def test_an_image_that_cannot_be_read_leaves_nothing_or_is_left_out(
    embedded, refused, models, tmp_path, caplog
):
    # no run can split this one
    shutil.copytree("data", tmp_path / "few", ignore=shutil.ignore_patterns("[!0]*.png"))
    assert set(embedded("mae", tmp_path / "few")["splits"]) == {"train"}

    whole = embedded("mae data")
    shutil.copytree("data", tmp_path / "data")
    (tmp_path / "data" / "cat" / "3.png").write_text("no image")
    (tmp_path / "data" / "cat" / "4.heic").touch()
    out = tmp_path / "none.npz"
    error = refused("embed mae", tmp_path / "data", "--out", out)
    assert "data/cat/3.png" in error
    assert "data: 1 file not used, e.g. cat/4.heic" in caplog.text
    assert "--on-bad-image skip" in error
    assert not out.exists()

    found = embedded("mae", tmp_path / "data", "--on-bad-image skip")
    kept = whole["files"] != "cat/3.png"
    for key in ("files", "labels"):
        assert found[key].tolist() == whole[key][kept].tolist()
    assert_allclose(found["pooled"], whole["pooled"][kept], atol=1e-6)
