"""Studies, made and written down; what stands in their place is not lost."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from vit.studies import STUDIES
from vit.studies.conduct import conduct, write_index
from vit.studies.finding import Finding, StudyError

ROOT = Path(__file__).resolve().parents[2]


def small(laboratory, plan):
    """A study that takes no training."""
    return Finding(f"It is {plan.images}.", "None.", [], {})


@pytest.fixture
def quick(monkeypatch):
    """The study one-hot, in no time."""
    monkeypatch.setattr(import_module("vit.studies.one_hot"), "study", small)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_module_and_a_configuration(name):
    assert callable(import_module(f"vit.studies.{name.replace('-', '_')}").study)
    header = (ROOT / "configs" / "studies" / f"{name}.yaml").read_text()
    assert header.startswith(f"# {STUDIES[name]}")
    assert f"vit study {name}" in header


def test_a_study_is_made_again_in_its_place_and_another_is_not(out, plan, quick):
    conduct("one-hot", plan, out, "vit study one-hot")
    moved = replace(plan, training=replace(plan.training, data=replace(plan.training.data, root="elsewhere")))
    conduct("one-hot", moved, out, "vit study one-hot --data.root elsewhere")
    assert "elsewhere" in (out / "one-hot" / "answer.md").read_text()
    with pytest.raises(StudyError, match="holds a study with other settings; name another folder"):
        conduct("one-hot", replace(plan, seeds=(5,)), out, "vit study one-hot")
    (out / "one-hot" / "results.json").unlink()
    with pytest.raises(StudyError, match="holds other files"):
        conduct("one-hot", plan, out, "vit study one-hot")
    (out / "one-hot" / "results.json").write_text("no JSON")
    with pytest.raises(StudyError, match="is no JSON"):
        conduct("one-hot", plan, out, "vit study one-hot")


def test_all_answers_stand_on_one_page(out, plan, quick):
    conduct("one-hot", plan, out, "vit study one-hot")
    page = (out / "README.md").read_text()
    assert page.startswith("# The questions\n")
    assert STUDIES["one-hot"] in page
    assert "It is 48." in page
    assert "(one-hot/answer.md)" in page
    (out / "README.md").write_text("mine")
    with pytest.raises(StudyError, match="is not ours"):
        write_index(out)
    assert (out / "README.md").read_text() == "mine"


def test_what_was_measured_on_what_is_written_down(out, plan):
    conduct("embedding-or-not", replace(plan, seeds=(0,)), out, "vit study embedding-or-not")
    found = json.loads((out / "embedding-or-not" / "results.json").read_text())
    assert found["data"] == [{"name": "Scenes", "content_hash": found["data"][0]["content_hash"], "train_images": 256}]
    assert found["training_seconds"] > 0
    assert found["measuring_seconds"] > 0
    assert found["settings"]["model.depth"] == 2
    assert {"answer.md", "angles.png", "results.json"} == {path.name for path in (out / "embedding-or-not").iterdir()}
