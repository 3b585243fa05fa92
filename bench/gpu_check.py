"""`python -m bench --gpu-check`: the checks that need a GPU, in three minutes on the first one.

The tests run steps on "meta", which shows mismatched devices and waits of the host. CUDA graphs,
compiled kernels, nccl and speed, which it cannot show, are checked here, and printed as a table to
paste into an issue.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.compare import Spread, compare
from bench.contestants import random_images
from bench.job import Job
from vit.config import Config
from vit.device import device_name
from vit.errors import TrainingError, one_line
from vit.machine import choose_compute, missing_for_compile, versions
from vit.train import fit
from vit.training.loop import train_steps
from vit.training.run import Run, setup

LONG = 1_000
"""Steps of a run whose losses are read every tenth step, as they are in a long run."""
STEPS = 20
"""Steps of each run."""
WARM_UP = 2
"""Steps before waits of the host count: the first ones choose kernels and fill caches."""
TOLERANCE = 1e-2
"""Largest relative difference between two losses of one step that differ by rounding alone."""

# Everything that can make the host wait, each at least once
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "float16, loss scaling": {"train.precision": "fp16"},
    "EMA, padded crops": {"optim.ema": 0.99, "augment.crop": "pad"},
    "Muon, two views, contrast, jitter": {
        "optim.name": "muon",
        "augment.views": 2,
        "reconstruct.contrast": 0.1,
        "augment.color_jitter": 0.4,
        "augment.grayscale": 0.2,
    },
    "block mask, drop path, frozen W_Q": {
        "mask.kind": "block",
        "model.drop_path": 0.1,
        "model.freeze": ["W_Q"],
    },
    "classify, every augmentation": {
        "train.objective": "classify",
        "augment.rand_augment": 2,
        "classify.mixup": 0.8,
        "classify.cutmix": 1.0,
        "optim.ema": 0.99,
    },
    "classify, dropped patches, layer decay": {
        "train.objective": "classify",
        "classify.drop_patches": 0.5,
        "optim.layer_decay": 0.75,
    },
}


def gpu_check(job: Job, batches: Sequence[int], rounds: int) -> dict[str, Any]:
    """Run all checks, print them as a table in Markdown, and return its rows for JSON.

    Args:
        job: size of the model, device and precision.
        batches: images per step whose speed is measured; the first is the size of all other checks.
        rounds: of each measurement of speed.

    Returns:
        "machine", "rows" (what, result) and "failed", the number of rows that failed.
    """
    compute = choose_compute(job.config().run, job.precision)
    on_gpu = compute.device.type == "cuda"
    machine = {"device": device_name(compute.device), **versions()}
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    table = Table()

    # No step waits for the device
    for name, settings in CONFIGURATIONS.items():
        what = f"no wait of the host: {name}"
        if not on_gpu:
            table.add(what, "not checked: needs a GPU")
            continue
        table.check(what, partial(_no_waits, job, settings, batches[0], STEPS))

    # Compiled steps, which on one GPU are CUDA graphs, compute the same
    missing = missing_for_compile(compute.device)
    for parts in (1, 2):
        what = f"compiled = not compiled, run.grad_accum_steps {parts}"
        if missing:
            table.add(what, f"not checked: needs {missing}")
            continue
        table.check(what, partial(_compiled, job, parts, batches[0], STEPS))

    # Several processes train as one; nccl wants a card for each
    what = "two processes = one"
    if on_gpu and torch.cuda.device_count() < 2:
        table.add(what, "not checked: needs two GPUs")
    else:
        table.check(what, partial(_two_processes, job, batches[0], STEPS))

    # Speed
    for batch in batches:
        what = f"images/s, batch {batch:,}"
        table.check(what, partial(_speed, job, batch, rounds))
    return {"machine": machine, "rows": table.rows, "failed": table.failed}


class Table:
    """A table that is printed row by row, as the results come.

    Attributes:
        rows: pairs of check and result.
        failed: how many checks failed.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.failed = 0
        print("\n| check | result |\n|---|---|")

    def add(self, what: str, result: str) -> None:
        """Print a row."""
        self.rows.append((what, result))
        print(f"| {what} | {result} |", flush=True)

    def check(self, what: str, measure: Callable[[], str]) -> None:
        """Print what `measure` returns, or in one line why it failed: the other checks continue."""
        try:
            result = measure()
        # torch's errors on a card are of many classes, and each is a result
        except Exception as error:
            self.failed += 1
            result = f"FAILED: {one_line(str(error) or type(error).__name__)[:200]}"
        self.add(what, result)


# ---- The checks, each returns its result as text and raises where it fails ----------------------


def _no_waits(job: Job, settings: Mapping[str, Any], batch: int, steps: int) -> str:
    """Make the steps while torch raises wherever the host waits for the GPU."""
    run = _run(job, {**settings, "run.compile": "off"}, batch, steps=LONG)
    training = train_steps(run)
    try:
        for number in range(1, steps + 1):
            # every tenth step is read, which has to wait
            may_wait = number <= WARM_UP or run.has_line(number)
            torch.cuda.set_sync_debug_mode("default" if may_wait else "error")
            next(training)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"


def _compiled(job: Job, parts: int, batch: int, steps: int) -> str:
    """Compare the losses of compiled steps with those of the same steps uncompiled."""
    losses = []
    for compile_ in ("off", "on"):
        settings = {"run.compile": compile_, "run.grad_accum_steps": parts}
        run = _run(job, settings, batch, steps)
        losses.append([done.loss for done in train_steps(run)])
    return _same(*losses)


def _two_processes(job: Job, batch: int, steps: int) -> str:
    """Compare the losses that a run of two processes writes with those of one."""
    settings = _settings(job, {"run.compile": "off"}, batch, steps)
    settings |= {"data.source": "scenes", "data.limit": batch, "run.knn_images": 16}
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        for processes in (1, 2):
            out = Path(folder, f"{processes}")
            command = [sys.executable]
            if processes > 1:
                command += ["-m", "torch.distributed.run", "--standalone"]
                command += ["--nproc-per-node", str(processes)]
            command += ["-m", "bench.gpu_check", json.dumps(settings), str(out)]
            ended = subprocess.run(command, capture_output=True, text=True)
            if ended.returncode:
                errors = [line for line in ended.stderr.splitlines() if "rror:" in line]
                raise TrainingError(errors[0] if errors else "a process ended early")
            lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line) for line in lines]
            losses.append([row["loss"] for row in rows if "loss" in row])
    return _same(*losses)


def _speed(job: Job, batch: int, rounds: int) -> str:
    """Time our step, from uint8 images on, beside vit-pytorch's bare step in alternating rounds."""
    ours = replace(job, batch=batch, images=batch, with_data=True, compile="off")
    contestants = {"not compiled": ours}
    device = choose_compute(job.config().run, job.precision).device
    if not missing_for_compile(device):
        contestants["compiled"] = replace(ours, compile="on")
    if find_spec("vit_pytorch") is not None:
        contestants["vit-pytorch"] = replace(job, batch=batch, contestant="vit-pytorch")

    results = compare([*contestants.values()], rounds)
    rates = []
    for name, result in zip(contestants, results, strict=True):
        rates.append(f"{name} {Spread.of_values(result.images_per_second).median:,.0f}")
    return ", ".join(rates)


def _same(first: Sequence[float], second: Sequence[float]) -> str:
    """Return how much two lists of losses differ.

    Raises:
        TrainingError: by more than rounding.
    """
    largest = 0.0
    for one_loss, other_loss in zip(first, second, strict=True):
        difference = abs(one_loss - other_loss) / abs(one_loss)
        # a loss that is not a number differs from all
        if not difference <= TOLERANCE:
            raise TrainingError(f"losses {one_loss} and {other_loss} differ by more than rounding")
        largest = max(largest, difference)
    return f"losses differ by {largest:.1e} at most"


# ---- Runs on random images ----------------------------------------------------------------------


def _settings(job: Job, changes: Mapping[str, Any], batch: int, steps: int) -> dict[str, Any]:
    """Return the settings of a run of `steps` steps, an epoch each."""
    settings = {
        "model.preset": job.preset,
        "model.image_size": job.image_size,
        "model.patch_size": job.patch,
        "model.class_token": job.class_token,
        "train.precision": job.precision,
        "train.batch_size": batch,
        "train.epochs": steps,
        "optim.warmup_epochs": 0,
        "run.device": job.device,
        "run.threads": job.threads,
    }
    if changes.get("train.objective") != "classify":
        settings["mask.ratio"] = job.mask_ratio
        settings["model.decoder_dim"] = job.decoder_dim
        settings["model.decoder_depth"] = job.decoder_depth
        settings["model.decoder_heads"] = job.decoder_heads
    return settings | dict(changes)


def _run(job: Job, changes: Mapping[str, Any], batch: int, steps: int) -> Run:
    """Return a run on as many random images as a batch has, at its first step."""
    config = Config.from_settings(_settings(job, changes, batch, steps))
    return setup(config, random_images(batch, job.image_size))


if __name__ == "__main__":
    fit(Config.from_settings(json.loads(sys.argv[1])), out=sys.argv[2])
