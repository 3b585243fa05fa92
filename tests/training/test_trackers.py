"""Trackers get the lines of metrics.jsonl, each step once where the tool allows it; offline."""

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
        tracker.on_log({"step": step, "epoch": step / 3, "loss": step + steps[0] / 10})
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
    scalars = events.Scalars("loss")
    assert [event.step for event in scalars] == [1, 2, 3, 4, 5, 6]
    values = [1.1, 2.1, 3.3, 4.3, 5.3, 6.3]
    assert [event.value for event in scalars] == pytest.approx(values, rel=1e-6)


@pytest.mark.slow  # wandb's own service takes seconds to start and to stop
def test_wandb_gets_the_figures_goes_on_in_the_same_run_and_leaves_the_callers_alone(
    tmp_path, monkeypatch
):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    # as within a sweep: the id of the caller's run
    monkeypatch.setenv("WANDB_RUN_ID", "theirs")
    theirs = wandb.init(project="mine", dir=tmp_path, config={"lr": 1})
    log = wandb.Run.log
    rows = []

    def recording_log(run: object, row: dict) -> None:
        assert run.config["train"]["epochs"] == Config().train.epochs
        rows.append((run.id, row["step"], row["loss"]))
        log(run, row)

    monkeypatch.setattr(wandb.Run, "log", recording_log)
    state = write(WandB(), tmp_path / "run", range(1, 6))
    time.sleep(1.1)  # its folders are named by the second
    assert write(WandB(), tmp_path / "run", range(6, 8), state) == state
    first = [(state["id"], step, step + 0.1) for step in range(1, 6)]
    assert rows == [*first, *((state["id"], step, step + 0.6) for step in (6, 7))]

    assert wandb.run is theirs
    assert theirs.id == "theirs" != state["id"]
    assert dict(theirs.config) == {"lr": 1}
    # beside wandb's own _step and the like
    assert not {key for key in dict(theirs.summary) if not key.startswith("_")}
    theirs.finish()
