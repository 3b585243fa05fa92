"""What a run does between its steps: objects that the main process calls after each."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import torch

from vit.atomic import make_folder, replacing
from vit.errors import RunError
from vit.progress import SECONDS_BETWEEN_LINES, progress_bar
from vit.runs import read_saved_part
from vit.training.evaluation import measure
from vit.training.process import Stopped, StopRequests
from vit.training.run import Run
from vit.training.step import Callback, Step

SECONDS_BETWEEN_LOSSES = 0.5
"""Pause between two readings of the loss on a terminal, each of which waits for the GPU."""


class MetricsFile(Callback):
    """Writes metrics.jsonl, a JSON object per line.

    There is one for the first step, the last, and some between (`RunConfig.steps_between_lines`).
    The run's state holds the file's length and hash, so that what is resumed is what was saved.

    Args:
        path: the file; lines that were written after the state are removed, because their steps
            are about to be repeated.
        run: at the step from which it continues.

    Raises:
        RunError: as `saved_metrics`.
    """

    name = "metrics"

    def __init__(self, path: Path, run: Run):
        content = saved_metrics(path, run)
        with replacing(path) as temporary:
            temporary.write_bytes(content)
        self._file = path.open("ab")
        self._bytes = len(content)
        self._hash = hashlib.sha256(content)
        self._images = 0
        self._seconds_before = run.seconds

    def on_step(self, run: Run, done: Step) -> dict[str, Any] | None:
        # the speed since the last line, or since this session began
        self._images += done.images
        every = run.config.run.steps_between_lines(run.total_steps)
        if done.step % every != 0 and done.step not in (1, run.total_steps):
            return None
        # no line of a step that was not finite: JSON has no nan
        done.check()
        speed = self._images / (run.seconds - self._seconds_before)
        self._images = 0
        self._seconds_before = run.seconds
        return {**done.metrics, "images_per_second": speed}

    def on_log(self, values: dict[str, Any]) -> None:
        line = json.dumps(values, allow_nan=False).encode() + b"\n"
        self._file.write(line)
        self._bytes += len(line)
        self._hash.update(line)
        self._file.flush()

    def on_save(self) -> None:
        # a state on disk never knows more steps than the file
        self._file.flush()
        os.fsync(self._file.fileno())

    def state_dict(self) -> dict[str, Any]:
        return {"bytes": self._bytes, "sha256": self._hash.hexdigest()}

    def close(self) -> None:
        self._file.close()


def saved_metrics(path: Path, run: Run) -> bytes:
    """Return the lines of metrics.jsonl that belong to the state a run resumed with; else none.

    Raises:
        RunError: the file has changed since the state was saved, or another version saved it.
    """
    if run.callback_states is None:
        return b""
    if MetricsFile.name not in run.callback_states:
        raise RunError(
            f"the state of step {run.step:,} does not know {path}: another version of vit "
            "saved it; finish the run with that one"
        )
    return read_saved_part(path, run.callback_states[MetricsFile.name])


class Validation(Callback):
    """Measures the model on the validation images after every `run.val_every`-th epoch.

    A signal ends a measurement at once, and the resumed run begins with it.

    Args:
        stop: receives the signals.
    """

    name = "validation"

    def __init__(self, stop: StopRequests):
        self._stop = stop
        # step and epoch of a measurement that is not finished; empty if there is none
        self._pending: dict[str, Any] = {}

    def on_start(self, run: Run) -> dict[str, Any] | None:
        if not self._pending:
            return None
        return self._measure(run)

    def on_step(self, run: Run, done: Step) -> dict[str, Any] | None:
        steps_between = run.config.run.val_every * run.total_steps // run.config.train.epochs
        if steps_between == 0 or done.step % steps_between != 0:
            return None
        self._pending = {"step": done.step, "epoch": done.epoch}
        try:
            return self._measure(run)
        except Stopped:
            # the loop reads the flag too, saves this step and ends
            return None

    def _measure(self, run: Run) -> dict[str, Any]:
        with self._stop.raising():
            scores = measure(run, baselines=False)
        line = {**self._pending, **validation_metrics(scores)}
        self._pending = {}
        return line

    def state_dict(self) -> dict[str, Any]:
        return self._pending

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        self._pending = state or {}


def validation_metrics(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of `vit.training.evaluation.measure` under their names in metrics.jsonl."""
    neighbours = scores.get("neighbours") or {}
    values = {
        "val_loss": scores.get("test_loss"),
        "val_accuracy": scores.get("test_accuracy"),
        "val_knn_accuracy": neighbours.get("encoder_accuracy"),
    }
    return {name: value for name, value in values.items() if value is not None}


class Snapshots(Callback):
    """Keeps the weights, or their average, of some steps in half precision.

    Films and `vit explore` show them.

    Args:
        folder: gets a folder per snapshot.
        run: at its first step, its initial weights are kept at once.
    """

    def __init__(self, folder: Path, run: Run):
        self._folder = folder
        self._steps = snapshot_steps(run.total_steps, run.config.run.snapshots)
        # no step leads to the initial weights
        if run.step == 0 and 0 in self._steps:
            self._save(run)

    def on_step(self, run: Run, done: Step) -> None:
        if done.step in self._steps:
            done.check()
            self._save(run)

    def _save(self, run: Run) -> None:
        make_folder(self._folder)
        run.save_model(self._folder / f"step-{run.step:08d}", dtype=torch.float16)


def snapshot_steps(total: int, count: int) -> list[int]:
    """Return `count` steps from 0 to `total`, denser at first, where most changes.

    A single one is the last step.
    """
    if count < 2:
        return [total][:count]
    return sorted({round(total * (i / (count - 1)) ** 2) for i in range(count)})


class Progress(Callback):
    """Shows epoch, loss, images per second and time left.

    Speed and time left follow from the steps after the first, which may compile. Reading the loss
    waits for the GPU, so it is read only now and then.

    Args:
        run: at the step from which it continues.
        stream: where to write; None: stderr. A terminal shows a bar, anything else gets a line now
            and then.
    """

    def __init__(self, run: Run, stream: TextIO | None = None):
        stream = stream or sys.stderr
        self._first_step = run.step + 1
        self._pause = SECONDS_BETWEEN_LINES
        if stream.isatty():
            self._pause = SECONDS_BETWEEN_LOSSES
        line = "{desc}  step {n_fmt}/{total_fmt}  {remaining} left"
        bar = "{desc} {bar} {n_fmt}/{total_fmt} steps, {elapsed} elapsed, {remaining} left"
        self._bar = progress_bar(
            stream,
            line,
            total=run.total_steps,
            initial=run.step,
            bar_format=bar,
            mininterval=self._pause,
        )
        self._count_from(run.step)

    def _count_from(self, step: int) -> None:
        """Measure speed and time left from here on."""
        self._images = 0
        self._last_reading = -math.inf
        self._began = time.perf_counter()
        # the bar's own clock starts here too
        self._bar.initial = step
        self._bar.n = step
        self._bar.unpause()

    def on_step(self, run: Run, done: Step) -> None:
        # the first step may compile: too slow to count; reading waits for a GPU to finish it
        if done.step == self._first_step < run.total_steps:
            done.check()
            self._count_from(done.step)
            return

        # now and then, and at the end
        self._images += done.images
        self._bar.n = done.step
        is_due = time.perf_counter() - self._last_reading > self._pause
        if is_due or done.step == run.total_steps:
            loss = done.loss
            self._last_reading = time.perf_counter()
            speed = self._images / (self._last_reading - self._began)
            epochs = run.config.train.epochs
            # rounding may lead above the last one
            epoch = min(math.ceil(done.epoch), epochs)
            self._bar.set_description_str(
                f"epoch {epoch}/{epochs}  loss {loss:.4f}  {speed:,.0f} images/s"
            )

    def close(self) -> None:
        self._bar.close()
