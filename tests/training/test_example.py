"""The objective of examples/, which stands outside of the package, trained through the whole program."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from tiny import without_layout

from vit import cli
from vit.config import OBJECTIVES, Config
from vit.report.pictures import draw_pictures
from vit.runs import read_metrics
from vit.train import fit
from vit.training.objectives import CLASSES
from vit.training.run_folder import load_state, saved_states

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "objective.py"
SMALL = {
    "data.source": "scenes",
    "data.limit": 40,
    "model.preset": "micro",
    "model.depth": 2,
    "optim.warmup_epochs": 0,
    "train.epochs": 2,
    "train.batch_size": 10,
    "train.precision": "fp32",
    "reconstruct.contrast": 0,
    "run.threads": 1,
    "run.save_every": 3,
    "run.device": "cpu",
}


@pytest.mark.slow
def test_example_trains_and_keeps_its_teacher(tmp_path, monkeypatch):
    # what the example registers is forgotten
    for registry in (OBJECTIVES, CLASSES):
        monkeypatch.setitem(registry, "Teach", None)
        registry.pop("Teach")
    assert len(EXAMPLE.read_text().splitlines()) <= 60
    teach = runpy.run_path(str(EXAMPLE))["Teach"]
    config = Config.read("quickstart", SMALL)

    whole = tmp_path / "whole"
    run = fit(config, whole, objective=teach)
    metrics = read_metrics(whole / "metrics.jsonl")
    assert metrics[-1]["feature_loss"] < metrics[0]["feature_loss"]
    assert metrics[0]["loss"] == pytest.approx(
        metrics[0]["masked_loss"] + 0.1 * metrics[0]["feature_loss"]
    )
    assert Config.read(whole / "config.yaml").train.objective == "Teach"
    with without_layout():
        draw_pictures(run, run.folder, run.summary)
    assert (whole / "reconstructions.png").exists()

    # the teacher follows the model, in the states too
    before, state = map(load_state, saved_states(whole / "checkpoints"))
    key = "teacher.module.norm.weight"
    assert not torch.equal(before["objective"][key], state["objective"][key])

    # another program knows the name alone
    for registry in (OBJECTIVES, CLASSES):
        registry.pop("Teach")
    assert cli.main(["report", str(whole)]) == 0
