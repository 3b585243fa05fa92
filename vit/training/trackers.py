"""Callbacks that also send the lines of metrics.jsonl to experiment trackers; off by default."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

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
    """A tool that stores runs itself, under an id, so that a resumed run continues there."""

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
        project = os.environ.get("WANDB_PROJECT", "vit")
        config = run.config.to_dict()
        self._run = self.library.init(
            project=project, dir=folder, name=folder.name, config=config, id=self.id, resume="allow"
        )
        # not by its own count of calls: a resumed run repeats some steps
        self._run.define_metric("*", step_metric="step")
        return self._run.id

    def on_log(self, values: dict[str, Any]) -> None:
        self._run.log(values)

    def end(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class MLflow(Service):
    """Writes to the server at MLFLOW_TRACKING_URI, in the experiment MLFLOW_EXPERIMENT_NAME.

    A thread of its own sends the metrics; a failure is logged, and does not stop the run.
    """

    name = "mlflow"

    def begin(self, run: Run, folder: Path) -> str:
        self.library.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "vit"))
        active = self.library.start_run(self.id, run_name=folder.name)
        # settings may be set once
        if self.id is None:
            self.library.log_params(flat_settings(run.config.to_dict()))
        return active.info.run_id

    def on_log(self, values: dict[str, Any]) -> None:
        metrics = {key: value for key, value in values.items() if key != "step"}
        self.library.log_metrics(metrics, step=values["step"], synchronous=False)

    def end(self, finished: bool) -> None:
        try:
            self.library.flush_async_logging()
            self.library.end_run("FINISHED" if finished else "FAILED")
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
