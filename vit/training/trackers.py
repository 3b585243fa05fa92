"""Callbacks that also send the lines of metrics.jsonl to experiment trackers; off by default."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from vit.config import flat_settings
from vit.errors import ConfigError, one_line
from vit.training.run import Run
from vit.training.step import Callback

logger = logging.getLogger(__name__)


class TensorBoard(Callback):
    """Writes event files into `tensorboard` in the run folder."""

    def __init__(self) -> None:
        self._writer: Any = None
        with _in_one_line("tensorboard"):
            self._library = import_module("torch.utils.tensorboard")

    def on_start(self, run: Run) -> None:
        assert run.folder is not None
        # a resumed run repeats some steps, which are removed
        folder = str(run.folder.tensorboard)
        self._writer = self._library.SummaryWriter(folder, purge_step=run.step + 1)

    def on_log(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            if key != "step":
                self._writer.add_scalar(key, value, values["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Service(Callback):
    """A tool that stores runs itself, under an id, so that a resumed run continues there.

    The process may be logging to a run of its own, which is the caller's: it is left alone.
    """

    def __init__(self) -> None:
        self.id: str | None = None
        self.run: Run | None = None
        with _in_one_line(self.name):
            self.library: Any = import_module(self.name)

    def on_start(self, run: Run) -> None:
        assert run.folder is not None
        with _in_one_line(self.name):
            self.id = self.begin(run, run.folder.path)
        self.run = run

    def begin(self, run: Run, folder: Path) -> str:
        """Begin a run, named as its folder, or continue the one with `id`; return its id."""
        raise NotImplementedError

    def close(self) -> None:
        if self.run is not None:
            self.end(finished=self.run.step == self.run.total_steps)

    def end(self, finished: bool) -> None:
        """Send what remains; `finished` says whether the last step was made."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {"id": self.id}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        self.id = (state or {}).get("id")


class WandB(Service):
    """Writes to Weights & Biases, set up by its own variables (WANDB_MODE, WANDB_PROJECT, ...)."""

    name = "wandb"

    def begin(self, run: Run, folder: Path) -> str:
        # WANDB_RUN_ID, which a sweep sets, may be taken: by the caller's run
        if self.id is None and self.library.run is not None:
            self.id = uuid4().hex[:8]
        self._run = self.library.init(
            project=os.environ.get("WANDB_PROJECT", "vit"),
            dir=folder,
            name=folder.name,
            config=run.config.to_dict(),
            id=self.id,
            resume="allow",
            # by default it returns the caller's
            reinit="create_new",
        )
        # not by its own count of calls: a resumed run repeats some steps
        self._run.define_metric("*", step_metric="step")
        return self._run.id

    def on_log(self, values: dict[str, Any]) -> None:
        self._run.log(values)

    def end(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class MLflow(Service):
    """Writes to the server at MLFLOW_TRACKING_URI.

    The experiment is that of the caller's run or of their `mlflow.set_experiment`, else
    MLFLOW_EXPERIMENT_NAME, else "vit". A thread of its own sends the metrics; a failure is logged,
    and does not stop the run.
    """

    name = "mlflow"

    def begin(self, run: Run, folder: Path) -> str:
        # a client names its run in every call, and has no active one
        self._client = self.library.MlflowClient()
        if self.id is not None:
            self._client.update_run(self.id, status="RUNNING")
            return self.id
        created = self._client.create_run(self._experiment(), run_name=folder.name)
        run_id = created.info.run_id
        entities = self.library.entities
        settings = flat_settings(run.config.to_dict())
        params = [entities.Param(key, str(value)) for key, value in settings.items()]
        # at most 100 at a time
        for start in range(0, len(params), 100):
            self._client.log_batch(run_id, params=params[start : start + 100])
        return run_id

    def _experiment(self) -> str:
        """Return the id of the experiment for a new run."""
        active = self.library.active_run()
        if active is not None:
            return active.info.experiment_id
        # `mlflow.set_experiment` sets it too
        chosen = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if chosen is not None:
            return chosen
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "vit")
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None:
            return experiment.experiment_id
        return self._client.create_experiment(name)

    def on_log(self, values: dict[str, Any]) -> None:
        now = round(time.time() * 1000)
        metrics = []
        for key, value in values.items():
            if key != "step":
                metrics.append(self.library.entities.Metric(key, value, now, values["step"]))
        self._client.log_batch(self.id, metrics, synchronous=False)

    def end(self, finished: bool) -> None:
        try:
            self.library.flush_async_logging()
            status = "FAILED"
            if finished:
                status = "FINISHED"
            self._client.set_terminated(self.id, status)
        except Exception as error:
            # server or network may raise anything, and the model is still to be saved
            logger.warning("mlflow: some metrics were not sent (%s)", one_line(str(error)))


TRACKERS: dict[str, type[Callback]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
"""By name in `run.track`."""


@contextmanager
def _in_one_line(tool: str) -> Iterator[None]:
    """Turn whatever a tool's library raises within the block into a ConfigError."""
    try:
        yield
    except Exception as error:
        # of its import, settings, server or network
        raise ConfigError(
            f"run.track: {tool} cannot start ({type(error).__name__}: {str(error).rstrip('.')}); "
            f"install it (pip install {tool}) and set it up as its documentation says, "
            "or leave it out"
        ) from error
