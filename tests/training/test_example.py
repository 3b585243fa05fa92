"""The example of docs/objectives.md, as it stands there, trained through the whole program."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tiny import without_pictures

from vit import cli
from vit.config import OBJECTIVES, ObjectiveInfo
from vit.report.record import read_run
from vit.runs import read_metrics
from vit.train import fit
from vit.training.state import load_state, saved_states

PAGE = Path(__file__).resolve().parents[2] / "docs" / "objectives.md"
SMALL = """
data: {source: scenes, limit: 40}
model: {preset: micro, depth: 2}
optim: {warmup_epochs: 0}
train: {objective: teach, epochs: 2, batch_size: 10, precision: fp32}
run: {threads: 1, save_every: 3, device: cpu}
"""


@pytest.fixture
def _teach(monkeypatch):
    """The page's objective, registered as the page says."""
    code, entry = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) < 40
    module = ModuleType("vit.training.objectives.teach")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(OBJECTIVES, "teach", None)  # put back afterwards
    exec(entry, {"OBJECTIVES": OBJECTIVES, "ObjectiveInfo": ObjectiveInfo})


@pytest.mark.slow
@pytest.mark.usefixtures("_teach")
def test_example_trains_stops_and_goes_on_as_if_it_had_never_stopped(tmp_path, monkeypatch):
    config = tmp_path / "teach.yaml"
    config.write_text(SMALL)

    whole = tmp_path / "whole"
    assert cli.main(["train", "--config", str(config), "--out", str(whole)]) == 0
    metrics = read_metrics(whole / "metrics.jsonl")
    assert metrics[-1]["feature_loss"] < metrics[0]["feature_loss"]
    assert metrics[0]["loss"] == pytest.approx(
        metrics[0]["masked_loss"] + 0.1 * metrics[0]["feature_loss"]
    )
    record = read_run(whole)
    assert record.summary["objective"] == "teach"
    assert (whole / "reconstructions.png").exists()
    assert (whole / "report.html").exists()

    # continued from the state before the last
    before, state = map(load_state, saved_states(whole / "checkpoints"))
    (whole / "checkpoints" / "step-00000008.pt").unlink()
    with without_pictures():
        assert fit(config, whole, resume=True).summary
    again = load_state(saved_states(whole / "checkpoints")[-1])
    teacher = [key for key in state["objective"] if key.startswith("teacher.module.")]
    assert any(
        not torch.equal(before["objective"][key], state["objective"][key]) for key in teacher
    )
    for part in ("model", "objective"):
        for name, value in state[part].items():
            assert torch.equal(value, again[part][name]), name
