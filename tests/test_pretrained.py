"""Laws of the models that come with the package: complete, small, and loaded by name.

A local file or folder of the same name comes first.
"""

import re

import pytest
import torch
from tiny import encoder, names, save

from vit.checkpoints import load_model
from vit.encoder import VisionTransformer
from vit.errors import CheckpointError
from vit.pretrained import shipped, shipped_models

FILES = {"model.safetensors", "config.json", "trained_on.npy", "README.md"}
OF_A_MACHINE = re.compile(r"(?:^|[\s\"'=(])(?:/(?!/)[\w.-]+/|~/|[A-Z]:\\)")


# --- what is committed ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_models())
def test_what_comes_with_the_package_is_whole(name):
    folder = shipped_models()[name]
    assert names(folder) == FILES
    model = load_model(name)
    assert model.origin.source == name
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


def test_what_is_called_so_here_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("vit-tiny-p4-cifar10", encoder())
    assert isinstance(load_model("vit-tiny-p4-cifar10"), VisionTransformer)


def test_a_name_that_is_nearly_one_is_one_line_with_those_that_are():
    others = ", ".join(shipped_models())
    with pytest.raises(CheckpointError, match=f"; the package has {others}$"):
        load_model("vit-tiny-p4")


@pytest.mark.parametrize("name", ["..", "__pycache__", "../checkpoints"])
def test_nothing_but_a_name_is_one(name):
    with pytest.raises(KeyError):
        shipped(name)
