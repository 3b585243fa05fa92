"""Every study, run: what its tables say, and that it says the same of a model that it trained and of its checkpoint."""

import json
import math
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from tiny import NORMALIZE, autoencoder, names, save

from studies import OF_TRAININGS, STUDIES, StudyConfig
from studies.experiment import Experiment
from studies.running import run_study
from vit.atomic import write_text
from vit.inputs import Preparation, to_float
from vit.weights import weights_hash

SMALLER = {
    "kinds": {"SCENES": 100, "LEAST": 1},
    "one_hot": {"SIZES": (1, 8)},
    "fixed_or_learned": {"COMPARED": ("all learn", "no positions at all", "W_V frozen")},
    "who_trains_them": {"FROZEN": ("W_Q frozen", "W_V frozen")},
    "static_and_contextual": {
        "PATCHES": 2,
        "PLACES": 100,
        "IMAGES": 2,
        "CASES": 12,
        "DRAWS": 1,
    },  # there are 64 places
}


@pytest.fixture
def smaller(monkeypatch):
    """Studies of less, whose figures, each tested by itself, are made and not drawn."""
    for module, sizes in SMALLER.items():
        for constant, size in sizes.items():
            monkeypatch.setattr(import_module(f"studies.{module}"), constant, size)
    monkeypatch.setattr(Figure, "draw_without_rendering", lambda figure: None)
    monkeypatch.setattr("vit.figures.style.save_figure", lambda figure, path: write_text(path, ""))


def looking_at(experiment: Experiment, checkpoint: Path | str) -> Experiment:
    """The same images and settings, and nothing may be trained."""
    made = replace(experiment, study=StudyConfig([0, 1], 48, str(checkpoint)))
    made.tell = lambda _: pytest.fail("trained")
    return made


def rows(folder: Path) -> dict[tuple[str, ...], list]:
    """Tables by their titles' first words and the names of their rows."""
    tables = json.loads((folder / "results.json").read_text())["tables"]
    return {
        (table["title"], *(str(cell) for cell in row if not isinstance(cell, list))): row
        for table in tables
        for row in table["rows"]
    }


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "one-hot" else pytest.mark.slow)
        for name in STUDIES
        if name != "world"  # it looks at no images
    ],
)
def test_a_study_measures_what_its_tables_say_and_says_the_same_of_a_checkpoint(
    one_seed, trained, smaller, tmp_path, name
):
    run_study(name, replace(one_seed), tmp_path / "trained", "")
    folder = tmp_path / "trained" / name
    found = json.loads((folder / "results.json").read_text())
    for table in found["tables"]:
        for row in table["rows"]:
            assert len(row) == len(table["columns"])
            assert all(math.isfinite(*cell) for cell in row if isinstance(cell, list))
    pictures = re.findall(r"\]\((\w+\.png)\)", (folder / "tables.md").read_text())
    assert names(folder) == {"tables.md", "results.json", *pictures}
    assert found["data"][0]["train_images"] == 256
    assert found["settings"]["model.depth"] == 2
    if name in OF_TRAININGS:
        return

    experiment = looking_at(one_seed, trained.folder)
    experiment.used |= one_seed.used
    run_study(name, experiment, tmp_path / "checkpoint", "")
    before, now = (rows(tmp_path / kind / name) for kind in ("trained", "checkpoint"))
    assert {key: before[key] for key in now} == now
    for key in before.keys() - now.keys():
        assert any(what in " ".join(key) for what in experiment.left_out)
    left_out = {
        "tyres-and-roads": ["red ball"],
        "static-and-contextual": ["other objectives"],
    }
    assert experiment.left_out == left_out.get(name, [])
    assert names(tmp_path / "trained" / name) == names(tmp_path / "checkpoint" / name)


def test_it_is_shown_images_as_it_was_trained_and_is_compared_with_an_untrained_one(
    experiment, tmp_path
):
    torch.manual_seed(3)
    kept = autoencoder(norm_pix_loss=False)
    save(tmp_path, kept, interpolation="bilinear")
    small = looking_at(experiment, tmp_path)
    (one,) = small.models()
    expected = NORMALIZE(to_float(one.sample(4), (16, 16), Preparation("bilinear")))
    torch.testing.assert_close(one.inputs(4), expected)
    for model in (one.model, one.initial):
        assert (model.encoder.config, model.decoder.config) == (
            kept.encoder.config,
            kept.decoder.config,
        )
        assert model.norm_pix_loss is False
        assert not model.training
    assert weights_hash(one.model) == weights_hash(kept) != weights_hash(one.initial)
    assert weights_hash(small.models()[0].initial) == weights_hash(one.initial)
