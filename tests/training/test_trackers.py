"""Trackers get the lines of metrics.jsonl, each step once where the tool allows it; offline."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vit.config import Config, RunConfig
from vit.runs import RunFiles
from vit.training.step import Callback
from vit.training.trackers import TensorBoard, WandB


def line(step: int, loss: float = 0.5) -> dict:
    return {"step": step, "epoch": step / 3, "loss": loss}


def write(tracker: Callback, folder: Path, steps: range, state: dict | None = None) -> dict:
    """Call a tracker as a run does that continues with `steps`; return the state to be saved."""
    folder.mkdir(exist_ok=True)
    settings = Config(run=RunConfig(track=["wandb"]))
    run = SimpleNamespace(
        step=steps[0] - 1, total_steps=7, folder=RunFiles(folder), config=settings
    )
    tracker.load_state_dict(state)
    tracker.on_start(run)
    for step in steps:
        tracker.on_log(line(step, loss=step + steps[0] / 10))
        run.step = step
    state = tracker.state_dict()
    tracker.close()
    return json.loads(json.dumps(state))


def test_tensorboard_gets_the_same_figures_each_step_once(tmp_path):
    folder = tmp_path / "run"
    write(TensorBoard(), folder, range(1, 6))
    write(TensorBoard(), folder, range(3, 7))
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"epoch", "loss"}
    expected = {
        "epoch": [step / 3 for step in range(1, 7)],
        "loss": [1.1, 2.1, *(step + 0.3 for step in range(3, 7))],
    }
    for key, values in expected.items():
        scalars = events.Scalars(key)
        assert [event.step for event in scalars] == list(range(1, len(values) + 1))
        assert [event.value for event in scalars] == pytest.approx(values, rel=1e-6)


@pytest.mark.slow  # as below
def test_wandb_leaves_the_callers_run_alone(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    # as within a sweep: the id of the caller's run
    monkeypatch.setenv("WANDB_RUN_ID", "theirs")
    theirs = wandb.init(project="mine", dir=tmp_path, config={"lr": 1})
    for number in range(2):
        state = write(WandB(), tmp_path / f"run{number}", range(1, 6))
        assert write(WandB(), tmp_path / f"run{number}", range(6, 8), state) == state
        assert state["id"] != theirs.id
        assert wandb.run is theirs
        theirs.log({"score": number})
    assert theirs.id == "theirs"
    assert dict(theirs.config) == {"lr": 1}
    # beside wandb's own _step and the like
    assert {key for key in dict(theirs.summary) if not key.startswith("_")} == {"score"}
    theirs.finish()


@pytest.mark.slow  # wandb's own service takes seconds to start and to stop, twice
def test_wandb_gets_settings_and_figures_and_goes_on_in_the_same_run(tmp_path, monkeypatch):
    """What the library is given, and takes, offline."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_PROJECT", "patches")
    folder = tmp_path / "run"
    log = wandb.Run.log
    finish = wandb.Run.finish
    rows = []
    codes = []

    def recording_log(run: object, row: dict) -> None:
        assert (run.project, run.name) == ("patches", "run")
        assert run.config["train"]["epochs"] == Config().train.epochs
        rows.append((run.id, row))
        log(run, row)

    def recording_finish(run: object, exit_code: int) -> None:
        codes.append(exit_code)
        finish(run, exit_code)

    monkeypatch.setattr(wandb.Run, "log", recording_log)
    monkeypatch.setattr(wandb.Run, "finish", recording_finish)
    state = write(WandB(), folder, range(1, 6))
    time.sleep(1.1)  # its folders are named by the second
    assert write(WandB(), folder, range(6, 8), state) == state
    assert wandb.run is None  # it was finished
    assert codes == [1, 0]  # the first session ended before its last step
    assert len(list(folder.glob("wandb/offline-run-*/run-*.wandb"))) == 2
    assert {run_id for run_id, _ in rows} == {state["id"]}
    assert [row["step"] for _, row in rows] == list(range(1, 8))
    assert [row["loss"] for _, row in rows] == [
        pytest.approx(step + (0.1 if step < 6 else 0.6)) for step in range(1, 8)
    ]
