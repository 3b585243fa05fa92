"""`vit embed`: both formats hold what `embed` computes, image by image; what cannot be written leaves nothing behind."""

import os
import shutil
import sys

import numpy as np
import pytest
import torch
from pyarrow import parquet
from tiny import dataset

from vit.checkpoints import load_model
from vit.cli import main
from vit.cli.embed import BATCH
from vit.config import DataConfig
from vit.data import SOURCES, DataSource, load_data
from vit.look.predict import embed


@pytest.fixture
def embedded(models, tmp_path, monkeypatch, capsys):
    """`embedded(suffix, *argv)`: what `vit embed` writes, as NumPy arrays whichever the format."""
    monkeypatch.chdir(models)

    def embedded(suffix, *argv):
        path = tmp_path / f"features{suffix}"
        assert main(["embed", *map(str, argv), "--out", str(path)]) == 0
        assert str(path) in capsys.readouterr().out
        if suffix == ".npz":
            return dict(np.load(path))
        table = parquet.read_table(path)
        found = {name: table[name].to_pylist() for name in table.column_names}
        lists = {name: np.array(found[name], dtype=np.float32) for name in ("pooled", "patches") if name in found}
        names = {"files": found["file"], "splits": [split or "" for split in found["split"]]}
        metadata = {
            key.decode(): value.decode() for key, value in table.schema.metadata.items() if not key.startswith(b"ARROW")
        }
        return (
            lists
            | names
            | metadata
            | {"labels": [-1 if n is None else n for n in found["label"]], "class": found["class"]}
        )

    return embedded


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("name", ["mae", "encoder"])
def test_a_folders_features_are_those_of_its_files(name, suffix, embedded, models):
    found, model = embedded(suffix, name, "data"), load_model(models / name)
    assert [str(file) for file in found["files"]] == [
        f"{kind}/{file.name}" for kind in ("cat", "dog") for file in sorted((models / "data" / kind).iterdir())
    ]
    expected = embed(model, [models / "data" / file for file in found["files"]])
    np.testing.assert_allclose(found["pooled"], expected.pooled, atol=1e-6)
    np.testing.assert_allclose(found["patches"], expected.patches, atol=1e-6)
    assert list(found["labels"]) == [0] * 12 + [1] * 12
    assert set(found["splits"]) == {""}
    assert str(found["checkpoint"]) == name
    if suffix == ".npz":
        assert (found["class_names"].tolist(), found["grid"].tolist()) == (["cat", "dog"], [3, 4])
    else:
        assert found["class"] == ["cat"] * 12 + ["dog"] * 12


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_data_set_in_several_batches_with_its_splits(suffix, embedded, models):
    """More than a batch, whose edges are not those of the splits."""
    count = BATCH + 6
    found = embedded(suffix, "mean", "scenes", "--limit", count)
    data = load_data(DataConfig(source="scenes", limit=count), (12, 16))
    model = load_model(models / "mean")
    for split, images in (("train", data.train), ("test", data.test)):
        mine = [n for n, name in enumerate(found["splits"]) if name == split]
        assert [str(found["files"][n]) for n in mine] == [f"{split}/{n:05d}" for n in range(count)]
        np.testing.assert_allclose(found["patches"][mine], embed(model, images.images).patches, atol=1e-5)
        assert [found["labels"][n] for n in mine] == images.labels.tolist()


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_images_without_classes_and_a_folder_with_splits(suffix, embedded, models, tmp_path):
    for split in ("train", "val"):
        (tmp_path / "plain" / split).mkdir(parents=True)
        shutil.copy(models / "one.png", tmp_path / "plain" / split / "image.png")
    found = embedded(suffix, "plain", tmp_path / "plain", "--pooled")
    assert (list(found["files"]), list(found["splits"])) == (["train/image.png", "val/image.png"], ["train", "val"])
    assert list(found["labels"]) == [-1, -1]
    assert "patches" not in found
    assert found["pooled"].shape == (2, 16)


def test_a_limited_data_set_keeps_the_numbers_of_its_images(embedded, models, monkeypatch):
    parts = dataset(9, 6)
    monkeypatch.setitem(SOURCES, "cifar10", DataSource("CIFAR-10", lambda *_: (parts.train, parts.test)))
    found, model = embedded(".npz", "mae", "cifar10", "--limit", 3), load_model(models / "mae")
    assert found["files"].tolist() == [f"train/{i:05d}" for i in (0, 3, 6)] + [f"test/{i:05d}" for i in (0, 2, 4)]
    assert found["labels"].tolist() == [0, 0, 0, 0, 2, 1]
    images = torch.cat([parts.train.images[::3], parts.test.images[::2]])
    np.testing.assert_allclose(found["pooled"], embed(model, images).pooled, atol=1e-6)


def test_a_limit_keeps_the_numbers_of_the_classes(embedded):
    assert embedded(".npz", "plain", "data", "--limit", 1)["class_names"].tolist() == ["cat", "dog"]


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_an_image_that_cannot_be_read_leaves_nothing(suffix, models, tmp_path, monkeypatch, capsys):
    shutil.copytree(models / "data", tmp_path / "data")
    (tmp_path / "data" / "dog" / "11.png").write_text("no image")
    monkeypatch.chdir(tmp_path)
    assert main(["embed", str(models / "mae"), "data", "--out", f"features{suffix}"]) == 2
    error = capsys.readouterr().err
    assert "data/dog/11.png: its content is not an image" in error
    assert error.endswith("; --on-bad-image skip leaves out all such files\n")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_an_image_that_cannot_be_read_is_left_out_on_request(suffix, embedded, models, tmp_path, caplog):
    whole = embedded(suffix, "mae", "data")
    shutil.copytree(models / "data", tmp_path / "data")
    (tmp_path / "data" / "cat" / "3.png").write_text("no image")
    found = embedded(suffix, "mae", tmp_path / "data", "--on-bad-image", "skip", "--overwrite")
    kept = [n for n, name in enumerate(whole["files"]) if name != "cat/3.png"]
    assert len(kept) == 23
    for key in ("files", "labels"):
        assert list(found[key]) == [whole[key][n] for n in kept]
    np.testing.assert_allclose(found["pooled"], whole["pooled"][kept], atol=1e-6)
    assert "cat/3.png: not a readable image (its content is not an image), left out" in caplog.text


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_name_of_any_bytes_is_no_obstacle(suffix, embedded, models, tmp_path):
    (tmp_path / "odd").mkdir()
    shutil.copy(models / "one.png", os.fsdecode(os.fsencode(tmp_path / "odd") + b"/caf\xe9.png"))
    assert [str(file).startswith("caf") for file in embedded(suffix, "mae", tmp_path / "odd")["files"]] == [True]


def test_a_data_set_of_hugging_face_is_refused_with_the_way(refused):
    assert 'vit.look.predict.embed(model, DATASET["image"])' in refused("embed", "mae", "hf:me/set", "--out", "f.npz")


def test_parquet_without_pyarrow_is_one_line(monkeypatch, refused, models):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    error = refused("embed", "mae", models / "data", "--out", "f.parquet")
    assert "needs pyarrow: pip install pyarrow" in error
