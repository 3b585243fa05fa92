"""A run in memory: model, optimizer and all that its next step depends on, and how it goes to disk and comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vit.config import Config
from vit.data import Dataset
from vit.data.augment import Normalization
from vit.data.batches import stream_seed
from vit.mae import MaskedAutoencoder, build_autoencoder
from vit.training.device import Compute, choose_compute
from vit.training.freeze import freeze, keep_rows
from vit.training.loop import Step, total_steps, train_steps
from vit.training.optimizer import make_optimizer
from vit.training.state import StateError, load_latest_state, save_state, saved_states


@dataclass
class TrainingRun:
    """What a run is at a step.

    Attributes:
        config: all settings.
        data: what it trains on.
        compute: device and precision.
        normalize: of the input, measured on the training images.
        model: on the device.
        optimizer: over the parts that learn.
        step: steps done.
        seconds: of training, all sessions together.
        notes: lines that the user should see: what was damaged, what differs from the session before.
    """

    config: Config
    data: Dataset
    compute: Compute
    normalize: Normalization
    model: MaskedAutoencoder
    optimizer: torch.optim.Optimizer
    step: int
    seconds: float
    notes: list[str]

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return total_steps(self.config, len(self.data.train))

    def steps(self) -> Iterator[Step]:
        """Train from where the run is to its end, a step at a time; `step` and `seconds` follow."""
        images = self.data.train.images
        steps = train_steps(
            self.model, self.optimizer, images, self.normalize, self.config, self.compute, start=self.step
        )
        since = time.perf_counter()
        for done in steps:
            now = time.perf_counter()
            self.seconds, since = self.seconds + now - since, now
            self.step = done.step
            yield done

    def save(self, folder: Path) -> None:
        """Save the state of this step; the last two stay (see `vit.training.state`)."""
        state = {
            "step": self.step,
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "seconds": self.seconds,
            "precision": self.compute.precision,
            "computed_on": str(self.compute),
            "torch": str(torch.__version__),  # a class of its own, which is no plain value
            "data_stamp": self.data.stamp,
            "config": self.config.to_dict(),
        }
        save_state(folder, self.step, state)


def begin_run(config: Config, data: Dataset, states: Path | None = None) -> TrainingRun:
    """A run at its first step, or at the last state that was saved in `states`.

    Everything random comes from `config.train.seed`, so the same configuration and data begin alike, and a continued run
    goes on as if it had never stopped: in the precision that it began with, and on the same CPU to the bit.

    Args:
        config: all settings.
        data: from `vit.data.load_data`.
        states: folder of saved states to continue from; with none in it, the run begins at its first step.

    Raises:
        StateError: no saved state is whole, or it belongs to other data or settings.
        ConfigError: a device, precision or frozen part that does not exist.
    """
    state: dict[str, Any] | None = None
    notes: list[str] = []
    if states is not None and saved_states(states):
        state, notes = load_latest_state(states)
        if state["data_stamp"] != data.stamp:
            found = f"the data has the stamp {data.stamp}, the run began with {state['data_stamp']}"
            raise StateError(
                f"the training data has changed since this run began: {found}; begin another run with --out"
            )
        for key, old, new in config.conflicts(state["config"]):
            ways = "put it back, or begin another run with --out"
            raise StateError(f"{key}: the run began with {old!r}, not {new!r}; {ways}")
    compute = choose_compute(config.train, precision=state["precision"] if state else None)
    torch.manual_seed(stream_seed(config.train.seed, "weights", 0))
    model = build_autoencoder(
        config.model.encoder_arguments(), config.model.decoder_arguments(), config.mask.norm_pix_loss
    ).to(compute.device)
    if state is not None:
        model.load_state_dict(state["model"])
        if state["computed_on"] != str(compute) or state["torch"] != torch.__version__:
            before = f"{state['computed_on']}, torch {state['torch']}"
            notes.append(f"the run began on {before}; from here its last bits may differ")
    frozen = freeze(model, config.model.freeze)
    optimizer = make_optimizer(model, config.optim)
    keep_rows(optimizer, frozen)
    if state is not None:
        optimizer.load_state_dict(state["optimizer"])
    normalize = Normalization.of(data.train.images)
    step, seconds = (state["step"], state["seconds"]) if state else (0, 0.0)
    return TrainingRun(config, data, compute, normalize, model, optimizer, step, seconds, notes)
