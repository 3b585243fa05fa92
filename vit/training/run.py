"""A run in memory: model, optimizer and all that its next step depends on, and how it goes to disk and comes back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vit.attention import choose_kernel, set_kernel
from vit.checkpoints.formats.outgoing import Model
from vit.checkpoints.native import architecture
from vit.config import Config, ConfigError
from vit.data import Dataset
from vit.data.augment import Normalization
from vit.data.batches import stream_seed
from vit.device import Compute, choose_compute
from vit.mae import MaskedAutoencoder
from vit.masking import num_keep
from vit.training.average import WeightAverage
from vit.training.freeze import freeze, keep_rows
from vit.training.loop import Step, Watch, choose_parts, total_steps, train_steps
from vit.training.model import begin_model, build_model
from vit.training.optimizer import make_optimizer
from vit.training.processes import ALONE, Processes
from vit.training.state import StateError, load_latest_state, save_state, saved_states
from vit.training.tasks import Classification, Reconstruction, Task


@dataclass
class TrainingRun:
    """What a run is at a step.

    Attributes:
        config: all settings.
        data: what it trains on.
        compute: device and precision.
        normalize: of the input, measured on the training images.
        task: with the model, on the device.
        optimizer: over the parts that learn.
        average: of the weights over the steps, where `optim.ema` asks for it.
        watch: looks on, in the first process, where `train.dynamics_every` asks for it.
        step: steps done.
        seconds: of training, all sessions together.
        notes: lines that the user should see: what was damaged, what differs from the session before.
        processes: which of how many this is.
        init: `vit.checkpoints.native.fingerprint` of what it began with; "" of random weights.
        first_step_seconds: of this session; where the model is compiled, that is its cold start.
    """

    config: Config
    data: Dataset
    compute: Compute
    normalize: Normalization
    task: Task
    optimizer: torch.optim.Optimizer
    average: WeightAverage | None
    watch: Watch | None
    step: int
    seconds: float
    notes: list[str]
    processes: Processes = ALONE
    init: str = ""
    first_step_seconds: float = 0.0

    @property
    def model(self) -> Model:
        """The model that learns."""
        return self.task.model  # type: ignore[return-value]

    @property
    def result(self) -> Model:
        """What the run is for: the model, or the average of its weights."""
        return self.model if self.average is None else self.average.model  # type: ignore[return-value]

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return total_steps(self.config, len(self.data.train))

    def steps(self) -> Iterator[Step]:
        """Train from where the run is to its end, a step at a time; `step` and `seconds` follow."""
        images = self.data.train.images
        steps = train_steps(
            self.task, self.optimizer, images, self.normalize, self.compute, self.step, self.processes,
            self.average, self.watch,
        )  # fmt: skip
        since = time.perf_counter()
        for done in steps:
            now = time.perf_counter()
            self.first_step_seconds = self.first_step_seconds or now - since
            self.seconds += now - since
            self.step = done.step
            yield done
            since = time.perf_counter()  # what the caller does meanwhile (saving, testing) is no training

    @property
    def how(self) -> str:
        """The choices that were made for this device and these lengths; the result is the same but for its last bits."""
        model, train = self.config.model, self.config.train
        images = self.processes.largest_part(train.batch_size)
        parts = choose_parts(self.config, images, self.compute.device)
        patches = math.prod(model.grid_size)
        dropped = self.config.classify.drop_patches
        lengths = {"encoder": num_keep(patches, self.config.mask.ratio), "decoder": patches}
        if train.task == "classify":
            lengths = {"encoder": num_keep(patches, dropped) if dropped else patches}
        kernels = []
        for name, length in lengths.items():
            length += model.class_token + model.registers
            dtype = torch.bfloat16 if self.compute.precision == "bf16" else torch.float32
            kernel = choose_kernel(self.compute.device, dtype, length) if train.attention == "auto" else train.attention
            kernels.append(f"{kernel} in the {name} ({length} tokens)")
        shares = f"{parts} x {math.ceil(images / parts)} images" if parts > 1 else f"{images} images at once"
        return f"{self.processes}, {shares}; attention: {', '.join(kernels)}"

    def save(self, folder: Path) -> None:
        """Save the state of this step; the last two stay (see `vit.training.state`)."""
        state = {
            "step": self.step,
            "model": dict(self.model.state_dict()),
            **({} if self.average is None else {"model_ema": dict(self.average.model.state_dict())}),
            **({} if self.watch is None else {"watch": self.watch.state_dict()}),
            **architecture(self.model),
            "optimizer": self.optimizer.state_dict(),
            "seconds": self.seconds,
            "precision": self.compute.precision,
            "computed_on": f"{self.compute}, {self.how}",
            "torch": str(torch.__version__),  # a class of its own, which is no plain value
            "init": self.init,
            "data_stamp": self.data.stamp,
            "data": self.data.name,
            "class_names": list(self.data.train.class_names),
            "mean": self.normalize.mean,
            "std": self.normalize.std,
            "config": self.config.to_dict(),
        }
        save_state(folder, self.step, state)


def begin_run(
    config: Config,
    data: Dataset,
    states: Path | None = None,
    processes: Processes = ALONE,
    make_watch: Callable[[Model, int, int], Watch] | None = None,
) -> TrainingRun:
    """A run at its first step, or at the last state that was saved in `states`.

    Everything random comes from `config.train.seed`, so the same configuration and data begin alike, and a continued run
    goes on as if it had never stopped: in the precision that it began with, and on the same CPU to the bit.

    Args:
        config: all settings.
        data: from `vit.data.load_data`.
        states: folder of saved states to continue from; with none in it, the run begins at its first step.
        processes: which of how many this is; the first reads the states and decides for all.
        make_watch: makes what looks on in the first process where `train.dynamics_every` is not 0: from the model, that
            setting, and the number of steps of the whole run.

    Raises:
        StateError: no saved state is whole, or it belongs to other data or settings.
        ConfigError: a device, precision or frozen part that does not exist, or what `begin_model` raises.
    """
    if config.mask.uniformity and processes.count > 1:
        raise ConfigError("mask.uniformity: it compares a batch's images with each other: train in one process")
    state: dict[str, Any] | None = None
    notes: list[str] = []
    if states is not None:
        latest = processes.from_first(lambda: load_latest_state(states) if saved_states(states) else None)
        state, notes = latest or (None, [])
    if state is not None:
        if "encoder" not in state:
            raise StateError(f"the states in {states} are an earlier version's; finish the run with that one")
        if state["data_stamp"] != data.stamp:
            found = f"the data has the stamp {data.stamp}, the run began with {state['data_stamp']}"
            raise StateError(
                f"the training data has changed since this run began: {found}; begin another run with --out"
            )
        for key, old, new in config.conflicts(state["config"]):
            ways = "put it back, or begin another run with --out"
            raise StateError(f"{key}: the run began with {old!r}, not {new!r}; {ways}")
    every, total = config.train.dynamics_every, total_steps(config, len(data.train))
    if state is not None and make_watch is not None and every and "watch" not in state:  # an earlier version's
        raise StateError(
            "train.dynamics_every: the run began without it, its first weights are not known; leave it out"
        )
    remaining = total - (state["step"] if state else 0)
    compute = choose_compute(config.train, state["precision"] if state else None, remaining)
    compute = replace(compute, precision=processes.from_first(lambda: compute.precision))
    torch.manual_seed(stream_seed(config.train.seed, "weights", 0))
    if state is None:
        model, normalize, notes, init = begin_model(config, data)
    else:
        init = state.get("init", "")  # an earlier version's state does not say
        model, normalize = build_model(config, state["encoder"]), Normalization(state["mean"], state["std"])
        model.load_state_dict(state["model"])
    model.to(compute.device)
    set_kernel(model, config.train.attention)
    frozen = freeze(model, config.model.freeze)
    optimizer = make_optimizer(model, config.optim)
    keep_rows(optimizer, frozen)
    if state is not None:
        optimizer.load_state_dict(state["optimizer"])
    average = WeightAverage(model, config.optim.ema) if config.optim.ema else None
    if state is not None and average is not None:
        average.model.load_state_dict(state["model_ema"])
    watch = make_watch(model, every, total) if make_watch is not None and every and processes.first else None
    if state is not None and watch is not None:
        watch.load_state_dict(state["watch"])
    if isinstance(model, MaskedAutoencoder):
        task: Task = Reconstruction(model, config)
    else:
        names, labels = data.train.class_names, data.train.labels
        task = Classification(model, config, labels, len(names))
        if absent := [names[number] for number in set(range(len(names))) - set(labels.tolist())]:
            notes.append(f"no training image of {', '.join(sorted(absent))}")
    step, seconds = (state["step"], state["seconds"]) if state else (0, 0.0)
    run = TrainingRun(
        config, data, compute, normalize, task, optimizer, average, watch, step, seconds, notes, processes, init
    )
    if state is not None and (state["computed_on"], state["torch"]) != (f"{compute}, {run.how}", torch.__version__):
        before = f"{state['computed_on']}, torch {state['torch']}"
        notes.append(f"the run began on {before}; from here its last bits may differ")
    return run
