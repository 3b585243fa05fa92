"""What happens between the steps of a run: objects that are called after each, in the main process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vit.atomic import write_text
from vit.config import ConfigError
from vit.runs import read_metrics
from vit.training.loop import Step

if TYPE_CHECKING:
    from vit.training.run import Run


class Callback:
    """The base: does nothing. Nothing but saving and closing may wait for the device.

    Attributes:
        name: of its state within that of the run.
    """

    name = ""

    def on_gradient(self, step: int) -> None:
        """Called when the gradient of step `step` (from 1) is whole, and neither clipped nor used yet."""

    def on_step(self, run: Run, done: Step) -> None:
        """Called after a step."""

    def on_log(self, values: dict[str, Any]) -> None:
        """Called with each line of metrics, which has a "step"."""

    def on_save(self) -> None:
        """Called before a state is saved: what belongs to it must be on the disk."""

    def state_dict(self) -> dict[str, Any]:
        """What it needs to go on in another process: tensors on the CPU and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on from what `state_dict` gave; None where the run began without this callback."""

    def close(self) -> None:
        """Called at the end, also of a run that fails."""


class MetricsFile(Callback):
    """metrics.jsonl: one JSON object per line, each on its way to the disk at once.

    Args:
        path: the file; lines of steps after `run.step` are removed, since they are about to be made again.
        run: at the step that it goes on from.
    """

    def __init__(self, path: Path, run: Run):
        kept = [line for line in read_metrics(path) if line["step"] <= run.step]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")
        self._images, self._since = 0, run.seconds

    def on_step(self, run: Run, done: Step) -> None:
        """Log a line every `run.log_every` steps, for the first step and the last."""
        self._images += done.images
        if done.step % run.config.run.log_every == 0 or done.step in (1, run.total_steps):
            run.log({**done.metrics, "images_per_second": self._images / (run.seconds - self._since)})
            self._images, self._since = 0, run.seconds

    def on_log(self, values: dict[str, Any]) -> None:
        """Append a line."""
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()

    def on_save(self) -> None:
        """Have the lines on the disk before the state that they belong to."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard(Callback):
    """The same lines for TensorBoard.

    Args:
        folder: for its event files.
        run: at the step that it goes on from.
    """

    def __init__(self, folder: Path, run: Run):
        self._writer = tensorboard_writer()(str(folder), purge_step=run.step + 1)

    def on_log(self, values: dict[str, Any]) -> None:
        """Add a scalar per key."""
        for key, value in values.items():
            if key != "step":
                self._writer.add_scalar(key, value, values["step"])

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


def tensorboard_writer() -> type:
    """torch's SummaryWriter.

    Raises:
        ConfigError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        ways = "install it (pip install tensorboard), or leave run.tensorboard out"
        raise ConfigError(f"run.tensorboard: TensorBoard cannot be imported ({error}); {ways}") from error
    return SummaryWriter


class Validation(Callback):
    """Measures the model on the validation images after every `run.val_every`-th epoch."""

    def on_step(self, run: Run, done: Step) -> None:
        """Log what the objective measures, where it is time."""
        every, epochs = run.config.run.val_every, run.config.train.epochs
        if done.step in validation_steps(run.total_steps, epochs, every):
            run.log({"step": done.step, "epoch": done.epoch, **run.objective.validate(run)})


class Snapshots(Callback):
    """Keeps the weights of some moments for good, in half precision, for `vit attention --film` and `vit explore`.

    Args:
        folder: for a folder per snapshot.
        run: of which the first weights are kept now, if it is at its first step.
    """

    def __init__(self, folder: Path, run: Run):
        self._folder = folder
        self._steps = snapshot_steps(run.total_steps, run.config.run.snapshots)
        if run.step == 0 and 0 in self._steps:
            self._take(run)

    def on_step(self, run: Run, done: Step) -> None:
        """Keep the weights, or their average, where it is time."""
        if done.step in self._steps:
            done.check()
            self._take(run)

    def _take(self, run: Run) -> None:
        run.save_model(self._folder / f"step-{run.step:08d}", dtype=torch.float16)


def snapshot_steps(total: int, count: int) -> list[int]:
    """The steps at which weights are kept: `count` of them from 0 to `total`, closer at first, where most changes."""
    return sorted({round(total * (i / (count - 1)) ** 2) for i in range(count)}) if count > 1 else [total] * count


def validation_steps(total: int, epochs: int, every: int) -> set[int]:
    """The last step of every `every`-th of `epochs` epochs; none where `every` is 0."""
    return {total // epochs * epoch for epoch in range(every, epochs + 1, every)} if every else set()
