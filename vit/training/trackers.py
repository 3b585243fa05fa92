"""Callbacks that also send the lines of metrics.jsonl to experiment trackers; off by default."""

from __future__ import annotations

import logging
import os
import time
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
        self._library = _imported("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None

    def on_start(self, run: Run) -> None:
        assert run.folder is not None
        self._writer = self._library.SummaryWriter(
            str(run.folder.tensorboard), purge_step=run.step + 1
        )

    def on_log(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            if key != "step":
                self._writer.add_scalar(key, value, values["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Service(Callback):
    """A tool that stores runs itself, under an id, so that a resumed run continues there."""

    id: str | None = None
    training: Run | None = None

    def begin(self, run: Run, folder: Path) -> str:
        """Begin a run, named as its `folder`, or continue the one with `id`; return its id."""
        raise NotImplementedError

    def on_start(self, run: Run) -> None:
        assert run.folder is not None
        self.training = run
        try:
            self.id = self.begin(run, run.folder.path)
        except Exception as error:  # its settings, server or network may raise anything
            reason = one_line(f"{type(error).__name__}: {error}").rstrip(".")
            advice = (
                "set it up as its documentation says, or leave it out, and continue with --resume"
            )
            raise ConfigError(
                f"run.track: {self.name} cannot start ({reason}); {advice}"
            ) from error

    @property
    def finished(self) -> bool:
        """Whether the last step was made."""
        return self.training is not None and self.training.step == self.training.total_steps

    def state_dict(self) -> dict[str, Any]:
        return {"id": self.id}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        self.id = (state or {}).get("id")


class WandB(_Service):
    """Writes to Weights & Biases, configured by its own variables (WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY, ...)."""

    name = "wandb"

    def __init__(self) -> None:
        self._library = _imported("wandb", "wandb")
        self._run: Any = None

    def begin(self, run: Run, folder: Path) -> str:
        quiet = self._library.Settings(console="off")  # leave the progress bar alone
        self._run = self._library.init(
            project=os.environ.get("WANDB_PROJECT", "vit"),
            dir=folder,
            name=folder.name,
            config=run.config.to_dict(),
            id=self.id,
            resume="allow",
            settings=quiet,
        )
        self._run.define_metric("*", step_metric="step")  # a resumed run repeats some steps
        return self._run.id

    def on_log(self, values: dict[str, Any]) -> None:
        self._run.log(values)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if self.finished else 1)


class MLflow(_Service):
    """Writes to the MLflow server at MLFLOW_TRACKING_URI, in the experiment MLFLOW_EXPERIMENT_NAME.

    A thread sends the metrics; failures are reported at the end, and do not stop the run.
    """

    name = "mlflow"

    def __init__(self) -> None:
        self._library = _imported("mlflow", "mlflow")
        self._client: Any = None
        self._sent: list[Any] = []

    def begin(self, run: Run, folder: Path) -> str:
        self._client = self._library.MlflowClient()
        if self.id is not None:
            self._client.update_run(self.id, "RUNNING")
            return self.id
        experiment = self._library.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "vit"))
        begun = self._client.create_run(experiment.experiment_id, run_name=folder.name).info.run_id
        settings = flat_settings(run.config.to_dict())
        parameters = [
            self._library.entities.Param(key, str(value)) for key, value in settings.items()
        ]
        self._client.log_batch(begun, params=parameters)
        return begun

    def on_log(self, values: dict[str, Any]) -> None:
        now = int(time.time() * 1000)
        metric = self._library.entities.Metric
        metrics = [
            metric(key, value, now, values["step"])
            for key, value in values.items()
            if key != "step"
        ]
        self._sent.append(self._client.log_batch(self.id, metrics, synchronous=False))

    def close(self) -> None:
        try:
            for operation in self._sent:
                operation.wait()
            if self.id is not None and self._client is not None:
                self._client.set_terminated(self.id, "FINISHED" if self.finished else "FAILED")
        except Exception as error:  # its server or network may raise anything
            logger.warning("mlflow: some metrics were not sent (%s)", one_line(str(error)))


TRACKERS: dict[str, type[Callback]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
"""By name in `run.track`."""


def _imported(module: str, tool: str) -> Any:
    """Import a tracker's module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        advice = f"install it (pip install {tool}), or leave it out"
        raise ConfigError(f"run.track: {tool} cannot be imported ({error}); {advice}") from error
