"""Callbacks of a run's main process, and the run's summary."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vit.atomic import make_folder, replacing
from vit.device import device_name
from vit.errors import one_line, plural
from vit.machine import versions
from vit.progress import SECONDS_BETWEEN_LINES, progress_bar, say
from vit.runs import read_saved_part
from vit.training.run import Run, describe_compute
from vit.training.run_folder import RunFolder
from vit.training.step import Callback, Step
from vit.weights import weights_hash

SECONDS_BETWEEN_LOSSES = 0.5
"""Pause between two readings of the loss on a terminal, each of which waits for the GPU."""
VALIDATION = (
    ("reconstruction", "loss", "val_loss", "loss"),
    ("head", "cross_entropy", "val_loss", "loss"),
    ("head", "accuracy", "val_accuracy", "train_accuracy"),
    ("knn", "accuracy", "val_knn_accuracy", ""),
)
"""The scores in metrics.jsonl: method, measure and the name there; and what a step logs in its
place, on augmented images; "" for nothing."""


class MetricsFile(Callback):
    """Writes metrics.jsonl, a JSON object per line.

    There is one for the first step, one for the last, and some between (`Run.has_line`).

    Args:
        path: the file; lines written after the checkpoint are removed, because their steps are
            about to be repeated.
        run: at the step from which it continues.
    """

    name = "metrics"

    def __init__(self, path: Path, run: Run):
        content = b""
        if run.callback_states is not None:
            content = read_saved_part(path, run.callback_states[self.name]["bytes"])
        with replacing(path) as temporary:
            temporary.write_bytes(content)
        self._file = path.open("ab")
        self._images = 0
        self._seconds_before = run.seconds

    def on_step(self, run: Run, done: Step) -> dict[str, Any] | None:
        # the speed since the last line, or since this session began
        self._images += done.images
        if done.step != 1 and not run.has_line(done.step):
            return None
        # no line of a step that was not finite: JSON has no nan
        done.check()
        speed = self._images / (run.seconds - self._seconds_before)
        self._images = 0
        self._seconds_before = run.seconds
        return {**done.metrics, "images_per_second": speed}

    def on_log(self, values: dict[str, Any]) -> None:
        self._file.write(json.dumps(values, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def on_save(self) -> None:
        # a checkpoint on disk is never at a later step than the file
        self._file.flush()
        os.fsync(self._file.fileno())

    def state_dict(self) -> dict[str, Any]:
        return {"bytes": self._file.tell()}

    def close(self) -> None:
        self._file.close()


class Validation(Callback):
    """Measures the model on the validation images after every `run.val_every`-th epoch.

    Args:
        measure: returns the present scores of a run: see `vit.metrics`.
    """

    def __init__(self, measure: Callable[[Run], Mapping[str, Any]]):
        self._measure = measure

    def on_step(self, run: Run, done: Step) -> dict[str, Any] | None:
        epochs_between = run.config.run.val_every
        if epochs_between == 0 or done.epoch % epochs_between != 0:
            return None
        scores = self._measure(run)
        return {
            name: scores[method][0][key] for method, key, name, _ in VALIDATION if method in scores
        }


class Snapshots(Callback):
    """Keeps snapshots: the weights, or their average, at some steps, in half precision.

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
    """Return up to `count` steps from 0 to `total`, denser at first, where most changes.

    A single one is the last step.
    """
    if count < 2:
        return [total][:count]
    return sorted({round(total * (i / (count - 1)) ** 2) for i in range(count)})


class Progress(Callback):
    """Shows epoch, loss, images per second and time left on stderr, as a bar or line by line.

    Speed and time left follow from the steps after the first, which may compile. Reading the loss
    waits for the GPU, so it is read only from time to time.

    Args:
        run: at the step from which it continues.
    """

    def __init__(self, run: Run):
        self._first_step = run.step + 1
        self._pause = SECONDS_BETWEEN_LINES
        if sys.stderr.isatty():
            self._pause = SECONDS_BETWEEN_LOSSES
        self._bar = progress_bar(
            "{desc}  step {n_fmt}/{total_fmt}  {remaining} left",
            total=run.total_steps,
            initial=run.step,
            bar_format="{desc} {bar} {n}/{total} steps, {elapsed} elapsed, {remaining} left",
            mininterval=self._pause,
        )
        self._images = 0
        self._began = time.perf_counter()
        self._last_reading = -math.inf

    def on_step(self, run: Run, done: Step) -> None:
        self._bar.n = done.step
        # the first step may compile: too slow to count; reading waits for a GPU to finish it
        if done.step == self._first_step < run.total_steps:
            done.check()
            self._began = time.perf_counter()
            # the bar's own clock starts here too
            self._bar.initial = done.step
            self._bar.unpause()
            return

        # from time to time, and at the end
        self._images += done.images
        is_due = time.perf_counter() - self._last_reading > self._pause
        if is_due or done.step == run.total_steps:
            loss = done.loss
            self._last_reading = time.perf_counter()
            speed = self._images / (self._last_reading - self._began)
            epoch = f"{math.ceil(done.epoch)}/{run.config.train.epochs}"
            self._bar.set_description_str(f"epoch {epoch}  loss {loss:.4f}  {speed:,.0f} images/s")

    def close(self) -> None:
        self._bar.close()


def announce(run: Run, folder: RunFolder) -> None:
    """Print the data, model, device and length of the run."""
    model = run.config.model
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    rows, columns = model.grid_size
    height, width = model.patch_size
    patches = f"{rows * columns} patches ({rows} x {columns}) of {height} x {width} pixels"
    objective = run.config.train.objective
    length = plural(run.total_steps, "step")
    if run.step:
        length += f", from step {run.step:,}"

    say(f"data     {one_line(run.data.description)}")
    say(f"model    {parameters / 1e6:.2f}M parameters, {patches}; objective: {objective}")
    say(f"compute  {describe_compute(run)}")
    say(f"run      {folder.path}, {length}")
    for note in [*run.data.notes, *run.notes]:
        say(f"note     {one_line(note)}")


def summarize(
    run: Run, metrics: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all facts about a finished run, for comparison with others: plain values for JSON.

    Args:
        run: at its last step.
        metrics: lines of metrics.jsonl.
        measured: scores: see `vit.metrics`.
    """
    config = run.config
    data = run.data

    # the loss of the last epoch: single steps differ by their images; other lines are callbacks'
    losses = [
        line["loss"]
        for line in metrics
        if "lr" in line and "loss" in line and line["epoch"] > config.train.epochs - 1
    ]
    final_loss = sum(losses) / len(losses) if losses else None

    # as text, for readers of the file
    weights = "those of the last step"
    if run.ema is not None:
        weights = "the average over the steps"
    # seen in training, counting each view; the steps of an epoch may leave images out
    count = len(data.train)
    seen = min(config.steps_per_epoch(count) * config.train.batch_size, count)
    images = config.train.epochs * seen * config.augment.views
    return {
        "objective": config.train.objective,
        "init": config.model.init,
        "init_content_hash": run.init_hash,
        "content_hash": weights_hash(run.result),
        "data": data.facts,
        "steps": run.step,
        "epochs": config.train.epochs,
        "final_train_loss": final_loss,
        "scores": measured,
        "weights": weights,
        "images_per_second": images / run.seconds,
        "seconds": run.seconds,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "device": device_name(run.compute.device),
        "precision": run.compute.precision,
        "threads": torch.get_num_threads(),
        "processes": run.dist.world_size,
        "seed": config.train.seed,
        "versions": versions(),
    }
