"""Callbacks that also send the lines of metrics.jsonl to experiment trackers; off by default.

A tracker of another kind is a callback of yours: `examples/track_mlflow.py`.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any
from uuid import uuid4

from vit.training.run import Run
from vit.training.step import Callback


class TensorBoard(Callback):
    """Writes event files into `tensorboard` in the run folder."""

    def __init__(self) -> None:
        self._writer: Any = None
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


class WandB(Callback):
    """Writes to Weights & Biases, set up by its own variables (WANDB_MODE, WANDB_PROJECT, ...).

    It stores runs under an id, so that a resumed run continues there. The process may be logging to
    a run of its own, which is the caller's: it is left alone.
    """

    name = "wandb"

    def __init__(self) -> None:
        self._id: str | None = None
        self._run: Run | None = None
        self._logged: Any = None
        self._library: Any = import_module("wandb")

    def on_start(self, run: Run) -> None:
        assert run.folder is not None
        # WANDB_RUN_ID, which a sweep sets, may be taken: by the caller's run
        if self._id is None and self._library.run is not None:
            self._id = uuid4().hex[:8]
        self._logged = self._library.init(
            project=os.environ.get("WANDB_PROJECT", "vit"),
            dir=run.folder.path,
            name=run.folder.path.name,
            config=run.config.to_dict(),
            id=self._id,
            resume="allow",
            # by default it returns the caller's run
            reinit="create_new",
        )
        # not by its own count of calls: a resumed run repeats some steps
        self._logged.define_metric("*", step_metric="step")
        self._id = self._logged.id
        self._run = run

    def on_log(self, values: dict[str, Any]) -> None:
        self._logged.log(values)

    def close(self) -> None:
        if self._run is not None:
            is_finished = self._run.step == self._run.total_steps
            self._logged.finish(exit_code=0 if is_finished else 1)

    def state_dict(self) -> dict[str, Any]:
        return {"id": self._id}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        self._id = (state or {}).get("id")


TRACKERS: dict[str, type[Callback]] = {"tensorboard": TensorBoard, "wandb": WandB}
"""By name in `run.track`."""
