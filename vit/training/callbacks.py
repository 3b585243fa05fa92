"""What a run does between its steps: objects that the main process calls after each."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import torch

from vit.atomic import write_text
from vit.progress import SECONDS_BETWEEN_LINES, progress_bar
from vit.runs import read_metrics
from vit.training.evaluation import measure
from vit.training.process import Stopped, StopRequests
from vit.training.run import Run
from vit.training.step import Callback, Step

SECONDS_BETWEEN_LOSSES = 0.5


class MetricsFile(Callback):
    """Writes metrics.jsonl: one JSON object per line, for the first step, the last, and some between (`steps_between_lines`).

    Args:
        path: the file; lines for steps after `run.step` are removed, because those steps are about to be repeated.
        run: at the step from which it continues.
    """

    def __init__(self, path: Path, run: Run):
        lines = [line for line in read_metrics(path) if line["step"] <= run.step]
        kept = {
            (line["step"], *line): line for line in lines
        }  # a measurement made again counts once
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept.values()))
        self._file = path.open("a", encoding="utf-8")
        self._images, self._since = 0, run.seconds

    def on_step(self, run: Run, done: Step) -> dict[str, Any] | None:
        self._images += done.images
        every = run.config.run.steps_between_lines(run.total_steps)
        if done.step % every != 0 and done.step not in (1, run.total_steps):
            return None
        done.check()
        speed = self._images / (run.seconds - self._since)
        self._images, self._since = 0, run.seconds
        return {**done.metrics, "images_per_second": speed}

    def on_log(self, values: dict[str, Any]) -> None:
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()

    def on_save(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Validation(Callback):
    """Measures the model on the validation images after every `run.val_every`-th epoch.

    A signal ends a measurement at once, and the resumed run begins with it.

    Args:
        stop: receives the signals.
    """

    name = "validation"

    def __init__(self, stop: StopRequests):
        self._stop = stop
        self._missing: dict[str, Any] = {}  # step and epoch of a measurement that was ended

    def on_start(self, run: Run) -> dict[str, Any] | None:
        return self._measure(run) if self._missing else None

    def on_step(self, run: Run, done: Step) -> dict[str, Any] | None:
        between = run.config.run.val_every * run.total_steps // run.config.train.epochs  # steps
        if not between or done.step % between != 0:
            return None
        self._missing = {"step": done.step, "epoch": done.epoch}
        with suppress(Stopped):  # the loop asks for the signal too, saves this step and ends
            return self._measure(run)
        return None

    def _measure(self, run: Run) -> dict[str, Any]:
        with self._stop.raising():
            measured = measure(run, baselines=False)
        line = self._missing
        self._missing = {}
        return {**line, **validation_metrics(measured)}

    def state_dict(self) -> dict[str, Any]:
        return self._missing

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        self._missing = state or {}


def validation_metrics(measured: Mapping[str, Any]) -> dict[str, float]:
    """Return what `vit.training.evaluation.measure` has measured under the names of metrics.jsonl."""
    neighbours = measured.get("neighbours") or {}
    values = {
        "val_loss": measured.get("test_loss"),
        "val_accuracy": measured.get("test_accuracy"),
        "val_knn_accuracy": neighbours.get("encoder_accuracy"),
    }
    return {name: value for name, value in values.items() if value is not None}


class Snapshots(Callback):
    """Keeps the weights, or their average, of some steps in half precision, for films and `vit explore`.

    Args:
        folder: gets a folder per snapshot.
        run: at its first step, its initial weights are kept at once.
    """

    def __init__(self, folder: Path, run: Run):
        self._folder = folder
        self._steps = snapshot_steps(run.total_steps, run.config.run.snapshots)
        if run.step == 0 and 0 in self._steps:
            self._take(run)

    def on_step(self, run: Run, done: Step) -> None:
        if done.step in self._steps:
            done.check()
            self._take(run)

    def _take(self, run: Run) -> None:
        run.save_model(self._folder / f"step-{run.step:08d}", dtype=torch.float16)


def snapshot_steps(total: int, count: int) -> list[int]:
    """Return the steps whose weights are kept: `count` of them from 0 to `total`, denser at first, where most changes."""
    if count < 2:
        return [total][:count]
    return sorted({round(total * (i / (count - 1)) ** 2) for i in range(count)})


class Progress(Callback):
    """Shows epoch, loss, and the images per second and time left that follow from the steps after the first.

    Reading the loss waits for the GPU, so it is read only now and then.

    Args:
        run: at the step from which it continues.
        stream: where to write; None: stderr. A terminal shows a bar, anything else gets a line now and then.
    """

    def __init__(self, run: Run, stream: TextIO | None = None):
        stream = stream or sys.stderr
        self._first = run.step + 1
        self._pause = SECONDS_BETWEEN_LOSSES if stream.isatty() else SECONDS_BETWEEN_LINES
        bar = "{desc} {bar} {n_fmt}/{total_fmt} steps, {elapsed} elapsed, {remaining} left"
        line = "{desc}  step {n_fmt}/{total_fmt}  {remaining} left"
        sizes = dict(total=run.total_steps, initial=run.step)
        self._bar = progress_bar(stream, line, **sizes, bar_format=bar, mininterval=self._pause)
        self._count_from_here(run.step)

    def _count_from_here(self, step: int) -> None:
        self._images, self._last_shown, self._began = 0, -math.inf, time.perf_counter()
        self._bar.initial = self._bar.n = step
        self._bar.unpause()  # its clock starts here too

    def on_step(self, run: Run, done: Step) -> None:
        if done.step == self._first < run.total_steps:  # it may compile: too slow to count
            done.check()  # waits for a GPU
            return self._count_from_here(done.step)
        self._images += done.images
        self._bar.n = done.step
        epochs = run.config.train.epochs
        if time.perf_counter() - self._last_shown > self._pause or done.step == run.total_steps:
            loss = done.loss
            self._last_shown = time.perf_counter()
            speed = self._images / (self._last_shown - self._began)
            epoch = min(math.ceil(done.epoch), epochs)
            self._bar.set_description_str(
                f"epoch {epoch}/{epochs}  loss {loss:.4f}  {speed:,.0f} images/s"
            )

    def close(self) -> None:
        self._bar.close()
