"""What training does to every weight matrix: the size of its gradient, and how far it moves.

`DynamicsRecorder` writes dynamics.jsonl during training, and `read_dynamics` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from vit.atomic import write_text
from vit.encoder import Block
from vit.errors import RunError, UserError
from vit.mae import Model
from vit.runs import read_metrics
from vit.training.state import StateError
from vit.training.step import Callback, Step

if TYPE_CHECKING:
    from vit.training.run import Run

QUANTITIES = ("gradient_norm", "drift")


class DynamicsError(UserError):
    """A file without dynamics, or without a requested matrix or quantity; the message is one line."""


class Matrix(NamedTuple):
    """A weight matrix of a model, as torch holds it: (outputs, inputs), which changes no norm.

    Attributes:
        name: with its part, e.g. "encoder.W_Q". Names are W_Q, W_K, W_V, W_O, fc1 and fc2 in the layers, and W_E, pos_embed,
            head, embed and pred outside them.
        parameter: holds it.
        third: which third of the parameter's rows it is; None if it is all of it.
    """

    name: str
    parameter: Tensor
    third: int | None = None

    @property
    def weights(self) -> Tensor:
        """A view of the weights."""
        return self._cut(self.parameter.detach())

    @property
    def gradient(self) -> Tensor:
        """Their gradient, zeros if there is none."""
        gradient = self.parameter.grad  # None where it is frozen
        return torch.zeros_like(self.weights) if gradient is None else self._cut(gradient)

    def _cut(self, whole: Tensor) -> Tensor:
        return whole if self.third is None else whole.chunk(3)[self.third]


def matrices_of(model: Model) -> Iterator[Matrix]:
    """Yield all weight matrices of a model, those of one name from the first layer to the last."""
    encoder, decoder = model.encoder, model.decoder
    yield Matrix("encoder.W_E", encoder.patch_embed.proj.weight)
    if encoder.config.pos_embed == "learned":
        yield Matrix("encoder.pos_embed", encoder.pos_embed)
    if isinstance(encoder.head, nn.Linear):
        yield Matrix("encoder.head", encoder.head.weight)
    blocks = [("encoder", block) for block in encoder.blocks]
    if decoder is not None:
        yield Matrix("decoder.embed", decoder.embed.weight)
        yield Matrix("decoder.pred", decoder.pred.weight)
        blocks += [("decoder", block) for block in decoder.blocks]
    for part, block in blocks:
        assert isinstance(block, Block)
        if block.attn.qkv is not None:
            for third, name in enumerate(("W_Q", "W_K", "W_V")):
                yield Matrix(f"{part}.{name}", block.attn.qkv.weight, third)
        for name, key in {"W_O": "attn.proj", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}.items():
            yield Matrix(f"{part}.{name}", block.get_parameter(f"{key}.weight"))


# ---- During training -------------------------------------------------------------------------------------------------


def is_recorded(step: int, every: int, total: int) -> bool:
    """Return whether a step (1 to `total`) is recorded: each `every`-th, the last, and early 1, 2, 4, 8, ...; 0: none."""
    at_first = step < every and step & (step - 1) == 0  # a power of two has one bit
    return every > 0 and (at_first or step % every == 0 or step == total)


class DynamicsRecorder(Callback):
    """Records the dynamics of a model's matrices while it trains; uses no random numbers and changes nothing.

    Measurements stay on the device until the file is written: no step waits for them.

    Args:
        model: its weights, at the start of training, are copied.
        every: steps between two records (see `is_recorded`).
        total: steps of the whole run.
        path: dynamics.jsonl, written with each saved state.
    """

    name = "dynamics"

    def __init__(self, model: Model, every: int, total: int, path: Path):
        self._matrices = list(matrices_of(model))
        self._every, self._total, self._path = every, total, path
        self._first = [matrix.weights.clone() for matrix in self._matrices]
        self._gradients: list[Tensor] = []  # norms at the current step
        self._pending: list[
            tuple[int, Tensor]
        ] = []  # steps, and (quantities, matrices) on the device
        self._lines: list[str] = []  # of the file

    def on_start(self, run: Run) -> None:
        """Read the records of an interrupted run, without those of steps that are about to be repeated."""
        self._lines = [
            json.dumps(record) for record in read_metrics(self._path) if record["step"] <= run.step
        ]

    @torch.no_grad()
    def on_gradient(self, step: int) -> None:
        """Measure the gradient, if this step is recorded."""
        if is_recorded(step, self._every, self._total):
            self._gradients = [
                torch.linalg.vector_norm(matrix.gradient) for matrix in self._matrices
            ]

    @torch.no_grad()
    def on_step(self, run: Run, done: Step) -> None:
        """Measure how far the weights have moved, if this step is recorded."""
        if is_recorded(done.step, self._every, self._total):
            norm, pairs = torch.linalg.vector_norm, zip(self._matrices, self._first, strict=True)
            drift = [norm(matrix.weights - first) / norm(first) for matrix, first in pairs]
            self._pending.append(
                (done.step, torch.stack([torch.stack(self._gradients), torch.stack(drift)]))
            )

    def on_save(self) -> None:
        """Write the records so far; waits for the device."""
        for step, measured in self._pending:
            record: dict[str, Any] = {"step": step}
            for quantity, values in zip(QUANTITIES, measured.tolist(), strict=True):
                record[quantity] = {}
                for matrix, value in zip(self._matrices, values, strict=True):
                    record[quantity].setdefault(matrix.name, []).append(value)
            self._lines.append(json.dumps(record))
        self._pending.clear()
        write_text(self._path, "".join(f"{line}\n" for line in self._lines))

    def state_dict(self) -> dict[str, Any]:
        """Return the initial weights."""
        return {"first": [first.cpu() for first in self._first]}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from the `state_dict` of a recorder of the same model.

        Raises:
            StateError: the run began without a recorder.
        """
        if state is None:
            raise StateError(
                "run.dynamics_every: the run started without it, so its first weights are unknown; leave it out"
            )
        self._first = [
            first.to(own.device) for first, own in zip(state["first"], self._first, strict=True)
        ]


# ---- Afterwards ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dynamics:
    """The records of a training run: row i was recorded at step `steps[i]`.

    Attributes:
        steps: int64 (records,), from 1.
        recorded: by quantity, and by the name of a matrix with its part ("encoder.W_Q"): (records, layers). gradient_norm is
            the Frobenius norm of the whole batch's gradient before clipping; drift is |W - W0| / |W0| after the step, where
            W0 is the matrix at the start: not finite if that is zero.
    """

    steps: Tensor
    recorded: dict[str, dict[str, Tensor]]

    def of(self, quantity: str, name: str, part: str = "encoder") -> Tensor:
        """Return a quantity of all matrices of one name, from the first layer to the last: (records, layers).

        Raises:
            DynamicsError: there is no such quantity or matrix.
        """
        if quantity not in QUANTITIES:
            raise DynamicsError(
                f"no quantity of a matrix is called {quantity!r}; choose from {', '.join(QUANTITIES)}"
            )
        found = self.recorded[quantity]
        if f"{part}.{name}" not in found:
            raise DynamicsError(
                f"no matrix {name!r} was recorded in the {part}; there are {', '.join(sorted(found))}"
            )
        return found[f"{part}.{name}"]

    def names(self, part: str = "encoder") -> set[str]:
        """Return the names of the matrices of a part."""
        return {
            name.removeprefix(f"{part}.")
            for name in self.recorded["drift"]
            if name.startswith(f"{part}.")
        }


def read_dynamics(path: str | Path) -> Dynamics:
    """Read the dynamics.jsonl of a run.

    Raises:
        DynamicsError: the file is missing, damaged or of another kind.
    """
    try:
        lines = read_metrics(Path(path))
    except RunError as error:
        raise DynamicsError(str(error)) from error
    if not lines:
        raise DynamicsError(f"{path} holds no dynamics; a run with run.dynamics_every writes some")
    try:
        recorded = {
            quantity: {
                name: torch.tensor([line[quantity][name] for line in lines])
                for name in lines[0][quantity]
            }
            for quantity in QUANTITIES
        }
        return Dynamics(torch.tensor([line["step"] for line in lines]), recorded)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise DynamicsError(f"{path} is damaged: {type(error).__name__}: {error}") from error
