"""The result of a training step, and the base class of the callbacks that see it."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vit.errors import ConfigError, TrainingError

if TYPE_CHECKING:
    from vit.training.run import Run


@dataclass(frozen=True)
class Step:
    """The result of one step.

    Reading `loss` or `metrics` waits for the device, as does `check`.

    Attributes:
        step: steps done so far, this one included.
        epoch: epochs done so far, with fractions.
        lr: learning rate.
        images: images in the batch, over all processes; each view counts.
        values: float32 scalars on the device, by name: "first_bad", the first step of this session
            that was not finite (0: none); "loss" and the objective's metrics, means over the batch
            before the update; "grad_norm" before clipping, infinite where a gradient has overflowed
            in float16 (`vit.training.optimizer.LossScale`).
    """

    step: int
    epoch: float
    lr: float
    images: int
    values: dict[str, Tensor]

    @cached_property
    def _read(self) -> dict[str, float]:
        # one transfer for all
        numbers = torch.stack(list(self.values.values())).tolist()
        return dict(zip(self.values, numbers, strict=True))

    @property
    def loss(self) -> float:
        return self._read["loss"]

    @property
    def metrics(self) -> dict[str, float]:
        """The step's values for a line of metrics.jsonl, to which `log` adds where it stands."""
        line = {**self._read, "lr": self.lr}
        del line["first_bad"]
        # after the learning rate; a gradient that has overflowed in float16 has none
        norm = line.pop("grad_norm")
        if math.isfinite(norm):
            line["grad_norm"] = norm
        return line

    def check(self) -> None:
        """Wait for the step; raise a `TrainingError` that names the first one that was not finite.

        The weights are those before that step.
        """
        first_bad = self._read["first_bad"]
        if first_bad:
            raise TrainingError(
                f"step {first_bad:.0f}: the loss or the gradient is not finite; the weights were "
                "not updated and earlier checkpoints are kept; a new run (--out) with a lower "
                "optim.blr or train.precision fp32 may help"
            )


class Callback:
    """The base class, also for `vit.fit(callbacks=...)`; every method does nothing.

    Only saving and closing should wait for the device, as reading a step's loss does.

    Attributes:
        name: key of its state within the run's state, its own among the callbacks; "" if it has
            none.
    """

    name = ""

    def on_start(self, run: Run) -> dict[str, Any] | None:
        """Called before a process's first step, and returns what `on_step` does."""
        return None

    def on_gradient(self, step: int) -> None:
        """Called when the gradient of step `step` (from 1) is complete, before it is clipped."""

    def on_step(self, run: Run, done: Step) -> dict[str, Any] | None:
        """Called after a step.

        Returns:
            A line for metrics.jsonl and the trackers, plain numbers by name, or None. `log` adds
            "step", "epoch" and "seconds".
        """
        return None

    def on_log(self, values: dict[str, Any]) -> None:
        """Called with each line of metrics, which has "step", "epoch" and "seconds"."""

    def on_save(self) -> None:
        """Called before a checkpoint is saved: flush to disk whatever belongs to it."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that another process needs to continue: CPU tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from what `state_dict` returned.

        It is None where the run began without this callback.
        """

    def close(self) -> None:
        """Called at the end, even if the run fails."""


def log(run: Run, callbacks: Sequence[Callback], line: Mapping[str, Any] | None) -> None:
    """Pass a line of metrics, if there is one, to all callbacks.

    Each line has "step" and "epoch", the run's present ones unless the line has its own, and the
    "seconds" of training so far.
    """
    if line is None:
        return
    per_epoch = run.config.steps_per_epoch(len(run.data.train))
    whole = {
        "step": run.step,
        "epoch": run.step / per_epoch,
        **line,
        "seconds": round(run.seconds, 1),
    }
    for callback in callbacks:
        callback.on_log(dict(whole))


def restore(callbacks: Sequence[Callback], states: Mapping[str, Any] | None) -> None:
    if states is None:
        return
    for callback in callbacks:
        callback.load_state_dict(states.get(callback.name))


def states_of(callbacks: Sequence[Callback]) -> dict[str, Any]:
    """Return the callbacks' states by name."""
    states = {}
    for callback in callbacks:
        if not callback.name:
            continue
        # one that could not be read would make the whole checkpoint unreadable
        states[callback.name] = callback.state_dict()
        content = io.BytesIO()
        torch.save(states[callback.name], content)
        content.seek(0)
        try:
            torch.load(content, weights_only=True)
        except Exception as error:
            raise ConfigError(
                f"callbacks: {type(callback).__name__}.state_dict returns more than tensors and "
                "plain values, which could not be read again; use e.g. float() of NumPy's numbers"
            ) from error
    return states
