"""How measures and tables are written; studies, run: what stands in their place is not lost."""

import math
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from matplotlib.figure import Figure

from studies import StudyConfig
from studies.running import run_study
from studies.tables import Draws, Results, Table, seeds
from vit.atomic import write_text
from vit.config import changed
from vit.errors import RunError


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (seeds([0.5, 0.52, 0.54], share=True), "52.0% ± 2.0"),
        (seeds([1e-12, 3e-12]), "2.0e-12 ± 1e-12"),
        (seeds([float("nan")]), "not finite"),
        (Draws((0.2, 0.3, 0.4), share=True), "30.0% (20.0 to 40.0)"),
    ],
)
def test_a_measure_is_written_with_its_spread_and_no_digit_more(cell, text):
    assert str(cell) == text


def test_differences_are_taken_seed_by_seed_and_of_shares_in_points():
    points = seeds([0.5, 0.6], share=True) - seeds([0.4, 0.6], share=True)
    assert points.values == pytest.approx((10, 0))
    assert not points.share


def test_markdown_cells_stay_cells():
    table = Table("T", ("arm", "loss"), [("a|b", seeds([0.5, 0.6])), ("plain", 3)])
    lines = table.as_markdown().splitlines()
    assert lines[0] == "**T**"
    assert lines[2:] == [
        "| arm | loss |",
        "| --- | --- |",
        r"| a\|b | 0.550 ± 0.071 |",
        "| plain | 3 |",
    ]
    assert table.as_plain()["rows"] == [["a|b", [0.5, 0.6]], ["plain", 3]]
    assert Table("T", ("loss",), [(seeds([math.nan, 1.0]),)]).as_plain()["rows"] == [[[None, 1.0]]]


# --- python -m studies


@pytest.fixture
def quick(monkeypatch):
    """The study one-hot, in no time."""

    def study(experiment):
        experiment.data()
        experiment.models()
        values = [0.5 + seed for seed in experiment.study.seeds]
        return Results([Table("T", ("loss",), [(seeds(values),)])], {"one": Figure()})

    monkeypatch.setattr(import_module("studies.one_hot"), "study", study)


def test_a_study_that_is_interrupted_as_it_draws_is_made_again(
    one_seed, tmp_path, quick, monkeypatch
):
    def draw(figure, path):
        write_text(path, "")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("vit.figures.style.save_figure", draw)
        with pytest.raises(KeyboardInterrupt):
            run_study("one-hot", replace(one_seed), tmp_path, "")
    run_study("one-hot", replace(one_seed), tmp_path, "")
    assert (tmp_path / "one-hot" / "tables.md").exists()


def test_a_study_is_made_again_in_its_place_and_another_is_not(
    one_seed, tmp_path, quick, monkeypatch
):
    experiment = replace(one_seed)  # without what other tests have loaded
    run_study("one-hot", experiment, tmp_path, "")
    moved = replace(experiment, config=changed(experiment.config, {"data.root": "elsewhere"}))
    run_study("one-hot", moved, tmp_path, "python -m studies one-hot --data.root elsewhere")
    assert "elsewhere" in (tmp_path / "one-hot" / "tables.md").read_text()
    other, images = replace(experiment), experiment.data()
    other.used |= {other.config.data: replace(images, train=images.train.subset(torch.arange(200)))}
    monkeypatch.setattr(other, "models", lambda *_: pytest.fail("trained"))
    with pytest.raises(RunError, match="other images"):
        run_study("one-hot", other, tmp_path, "")
    with pytest.raises(RunError, match="other settings"):
        run_study("one-hot", replace(experiment, study=StudyConfig([5])), tmp_path, "")
    (tmp_path / "one-hot" / "results.json").unlink()
    with pytest.raises(RunError, match="other files"):
        run_study("one-hot", experiment, tmp_path, "")
