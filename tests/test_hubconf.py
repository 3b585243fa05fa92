"""hubconf.py: torch.hub loads the models of the package, and any checkpoint, from a clone."""

import runpy
from importlib import import_module
from pathlib import Path

import pytest
import torch

from vit import load_model
from vit.pretrained import entry_points

ROOT = str(Path(__file__).resolve().parents[1])


def test_the_entry_points_are_those_of_the_package():
    module = runpy.run_path(f"{ROOT}/hubconf.py")
    assert {name for name in module if callable(module[name]) and name[0] != "_"} == {
        *entry_points(),
        "load_model",
    }
    assert "vit-tiny-p4-cifar10" in module["vit_tiny_p4_cifar10"].__doc__
    for package in module["dependencies"]:  # torch.hub looks whether they are there
        import_module(package)


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (("vit_tiny_p4_cifar10",), {}),
        (("load_model", "vit-tiny-p4-cifar10"), {"part": "encoder", "num_classes": 5}),
    ],
    ids=str,
)
def test_what_torch_hub_loads_is_what_load_model_loads(asked, options):
    allow = {"allow": ["head.*"]} if options else {}
    with pytest.warns(UserWarning, match="untrained") if options else torch.no_grad():
        theirs = torch.hub.load(ROOT, *asked, source="local", **options, **allow)
        ours = load_model("vit-tiny-p4-cifar10", **options, **allow)
    assert type(theirs) is type(ours)
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name]) or name.startswith("head.")
    assert theirs.origin.normalize.mean == ours.origin.normalize.mean


def test_a_local_folder_of_the_same_name_is_not_taken_for_a_model_of_the_package(
    tmp_path, monkeypatch
):
    (tmp_path / "vit-tiny-p4-cifar10").mkdir()
    monkeypatch.chdir(tmp_path)
    model = torch.hub.load(ROOT, "vit_tiny_p4_cifar10", source="local")
    assert model.origin.source == str(entry_points()["vit_tiny_p4_cifar10"])
