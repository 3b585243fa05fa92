"""Trackers get the lines of metrics.jsonl, each step once where the tool allows it; offline."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vit.config import Config, RunConfig
from vit.errors import ConfigError
from vit.runs import RunFiles
from vit.training.step import Callback
from vit.training.trackers import TRACKERS, MLflow, TensorBoard, WandB


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


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """The library, with a store in a folder of the test."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    yield mlflow
    # what `set_experiment` sets
    mlflow.tracking.fluent._active_experiment_id = None
    os.environ.pop("MLFLOW_EXPERIMENT_ID", None)


def test_mlflow_gets_settings_and_figures_and_goes_on_in_the_same_run(
    mlflow, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "patches")
    folder = tmp_path / "run"
    state = write(MLflow(), folder, range(1, 6))
    assert write(MLflow(), folder, range(6, 8), state) == state
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("patches")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id, run.info.status) == (state["id"], "FINISHED")
    assert run.data.params["train.epochs"] == str(Config().train.epochs)
    history = client.get_metric_history(state["id"], "loss")
    losses = dict(sorted((metric.step, metric.value) for metric in history))
    assert losses == {
        step: pytest.approx(step + (0.1 if step < 6 else 0.6)) for step in range(1, 8)
    }
    assert "step" not in run.data.metrics


def test_mlflow_says_that_a_run_ended_early(mlflow, tmp_path):
    state = write(MLflow(), tmp_path / "run", range(1, 7))  # of 7 steps
    assert mlflow.MlflowClient().get_run(state["id"]).info.status == "FAILED"


def test_mlflow_leaves_the_callers_run_and_experiment_alone(mlflow, tmp_path):
    client = mlflow.MlflowClient()
    before = mlflow.set_experiment("mine").experiment_id
    alone = write(MLflow(), tmp_path / "alone", range(1, 2))
    with mlflow.start_run(experiment_id=client.create_experiment("sweep")) as theirs:
        mlflow.log_metric("x", 1, step=1)
        within = write(MLflow(), tmp_path / "within", range(1, 2))
        resumed = write(MLflow(), tmp_path / "within", range(2, 3), within)
        assert mlflow.active_run().info.run_id == theirs.info.run_id
        mlflow.log_metric("x", 2, step=2)
    # their next run is where they wanted it
    with mlflow.start_run() as following:
        assert following.info.experiment_id == before
    assert resumed == within
    assert len({alone["id"], within["id"], theirs.info.run_id}) == 3
    assert client.get_run(alone["id"]).info.experiment_id == before
    assert client.get_run(within["id"]).info.experiment_id == theirs.info.experiment_id
    untouched = client.get_run(theirs.info.run_id)
    assert (untouched.data.metrics, untouched.data.params) == ({"x": 2}, {})
    assert untouched.info.status == "FINISHED"


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


@pytest.mark.parametrize(
    ("name", "module"),
    [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")],
)
def test_a_tracker_that_is_not_installed_is_said_in_one_line(monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"^run\.track: {name} [^\n]*pip install {name}\)"):
        TRACKERS[name]()


@pytest.mark.usefixtures("mlflow")
def test_metrics_that_cannot_be_sent_end_no_run(tmp_path, caplog):
    tracker = MLflow()
    folder = RunFiles(tmp_path / "run")
    tracker.on_start(SimpleNamespace(step=0, total_steps=1, folder=folder, config=Config()))
    shutil.rmtree(tmp_path / "store")
    tracker.on_log(line(1))
    tracker.close()
    assert "some metrics were not sent" in caplog.text


@pytest.mark.usefixtures("mlflow")
def test_a_service_that_cannot_begin_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://store")
    with pytest.raises(
        ConfigError, match=r"^run\.track: mlflow cannot start \([^\n]*nowhere[^\n]*$"
    ):
        MLflow().on_start(SimpleNamespace(step=0, folder=RunFiles(tmp_path), config=Config()))
