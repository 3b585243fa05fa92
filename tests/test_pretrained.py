"""Laws of the models that come with the package: complete, small, and loaded by name.

A local file or folder of the same name comes first.
"""

import re
import shutil

import pytest
import torch
from tiny import NORMALIZE, autoencoder, encoder

import vit.pretrained
from vit.checkpoints import load_model, save_model
from vit.checkpoints.convert import convert_model
from vit.encoder import VisionTransformer
from vit.errors import CheckpointError
from vit.mae import MaskedAutoencoder
from vit.pretrained import shipped, shipped_models

FILES = ["model.safetensors", "config.json", "trained_on.npy", "README.md"]
SIZE = (8, 8)
OF_A_MACHINE = re.compile(r"(?:^|[\s\"'=(])(?:/(?!/)[\w.-]+/|~/|[A-Z]:\\)")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A package with two models, `small-mae` and `small-classifier`, and their originals."""
    built = tmp_path_factory.mktemp("built")
    torch.manual_seed(0)
    for name, model in (
        ("small-mae", autoencoder(image_size=SIZE)),
        ("small-classifier", encoder(image_size=SIZE, num_classes=2)),
    ):
        save_model(built / "own" / name, model, NORMALIZE, ("dark", "light"), "noise")
        folder = built / "package" / name
        assert convert_model(load_model(built / "own" / name), "safetensors", folder, half=True)
        (folder / "README.md").write_text("a card")
    (built / "package" / "__pycache__").mkdir()
    return built


@pytest.fixture
def place(built, tmp_path, monkeypatch):
    """A copy of it, and an empty folder to be in."""
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(vit.pretrained, "FOLDER", tmp_path / "package")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))  # the folder cache
    return tmp_path


# --- what is committed ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_models())
def test_what_comes_with_the_package_is_whole(name):
    folder = shipped_models()[name]
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    model = load_model(name)
    assert model.origin.report.notes == model.origin.report.problems == []
    config = model.origin.details
    assert len(config["sha256"]) == 64  # compared when it is loaded
    assert all(
        value.dtype == torch.float32 and value.isfinite().all()
        for value in model.state_dict().values()
    )
    facts = shipped(name)
    assert facts["parameters"] == sum(value.numel() for value in model.state_dict().values())
    assert facts["data"] == model.origin.data
    card = (folder / "README.md").read_text(encoding="utf-8")
    for part in (f'load_model("{name}")', "## Figures", "vit train", "Apache-2.0"):
        assert part in card, part
    assert facts["figures"]
    for text in (card, (folder / "config.json").read_text()):
        assert not OF_A_MACHINE.search(text)


# --- by name --------------------------------------------------------------------------------------


def test_a_name_is_enough_and_the_weights_are_those_within_half_precision(place):
    for name, kind in (("small-mae", MaskedAutoencoder), ("small-classifier", VisionTransformer)):
        model, original = load_model(name), load_model(place / "own" / name)
        assert isinstance(model, kind)
        assert (model.origin.source, model.origin.class_names) == (name, ("dark", "light"))
        assert model.origin.report.notes == []
        for key, value in original.state_dict().items():
            got = model.state_dict()[key]
            assert got.dtype == torch.float32
            torch.testing.assert_close(got, value, rtol=2**-11, atol=2**-25)


def test_what_is_called_so_here_comes_first(place):
    torch.manual_seed(1)
    save_model(place / "here" / "small-mae", encoder(image_size=SIZE), NORMALIZE)
    model = load_model("small-mae")
    assert isinstance(model, VisionTransformer)


def test_a_name_that_is_nearly_one_is_one_line_with_those_that_are(place):
    with pytest.raises(CheckpointError, match=r"; the package has small-classifier, small-mae$"):
        load_model("small-mea")


@pytest.mark.parametrize("name", ["..", "__pycache__", "../own/small-mae"])
def test_nothing_but_a_name_is_one(place, name):
    with pytest.raises(KeyError):
        shipped(name)
