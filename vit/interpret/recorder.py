"""Record the dynamics of a model (`vit.interpret.dynamics`) while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vit.attention import MultiHeadSelfAttention
from vit.encoder import Block
from vit.interpret.dynamics import (
    QUANTITIES,
    Dynamics,
    Matrix,
    places,
    product_drift,
    stable_rank,
    write_dynamics,
)
from vit.mae import Model
from vit.training.callbacks import Callback
from vit.training.state import StateError

if TYPE_CHECKING:
    from vit.training.loop import Step
    from vit.training.run import Run


def is_recorded(step: int, every: int, total: int) -> bool:
    """Return whether a step (1 to `total`) is recorded: each `every`-th, the last, and early 1, 2, 4, 8, ...; 0: none."""
    at_first = step < every and step & (step - 1) == 0  # a power of two has one bit
    return every > 0 and (at_first or step % every == 0 or step == total)


class DynamicsRecorder(Callback):
    """Records the dynamics of a model's matrices while it trains; uses no random numbers and changes nothing.

    Measurements stay on the device until a state is saved or the file is written: no step waits for them. Matrices of one
    shape are measured together.

    Args:
        model: its weights, at the start of training, are copied.
        every: steps between two records (see `is_recorded`).
        total: steps of the whole run.
        path: dynamics.safetensors, written with each saved state; None for no file.
    """

    name = "dynamics"

    def __init__(self, model: Model, every: int, total: int, path: Path | None = None):
        self._path = path
        self._every, self._total = every, total
        alike = groupby(sorted(_watched(model), key=_Watched.shape), key=_Watched.shape)
        self._groups = [list(group) for _, group in alike]
        self._matrices = tuple(watched.matrix for group in self._groups for watched in group)
        attention = {part: [block.attn for block in blocks] for part, blocks in _blocks(model).items()}
        self._heads = {part: layers[0].num_heads for part, layers in attention.items() if layers[0].qkv is not None}
        self._biases = {part: biases for part, layers in attention.items() if (biases := _biases(layers))}
        self._first = self._weights()
        self._before: list[Tensor] = []
        self._record: dict[str, Tensor] = {}  # of the current step
        self._pending: list[dict[str, Tensor]] = []  # on the device
        self._steps: list[int] = []
        self._recorded: dict[str, Tensor] = {}  # on the CPU, (records, ...)

    @torch.no_grad()
    def on_gradient(self, step: int) -> None:
        """Measure the gradient and copy the weights, if this step is recorded."""
        if not is_recorded(step, self._every, self._total):
            return
        self._before = self._weights()
        norms = [_norms(torch.stack([watched.gradient() for watched in group])) for group in self._groups]
        self._record = {"gradient_norm": torch.cat(norms)}
        for part, biases in self._biases.items():
            gradients = [torch.zeros_like(bias) if bias.grad is None else bias.grad for bias in biases]
            self._record[f"{part}.bias_gradients"] = _norms_of_thirds(gradients)

    @torch.no_grad()
    def on_step(self, run: Run, done: Step) -> None:
        """Measure how the step changed the weights, and where they are now, if it is recorded."""
        step = done.step
        if not is_recorded(step, self._every, self._total):
            return
        # The matrices, in groups of one shape
        now = self._weights()
        measured = []
        for weights, before, first in zip(now, self._before, self._first, strict=True):
            size = _norms(first)
            measured.append([
                _norms(weights - before) / _norms(before),
                _norms(weights - first) / size,
                (weights * first).sum((1, 2)) / (_norms(weights) * size),
                stable_rank(weights),
            ])  # fmt: skip
        self._record |= dict(zip(QUANTITIES[1:], map(torch.cat, zip(*measured, strict=True)), strict=True))
        # Each head's product of W_Q and W_K, and the biases
        for part, heads in self._heads.items():
            pair = [self._named(weights, name, part) for weights in (now, self._first) for name in ("W_Q", "W_K")]
            by_head = [matrices.unflatten(1, (heads, -1)) for matrices in pair]  # (layers, h, d, D)
            self._record[f"{part}.products"] = product_drift(*by_head)
        for part, biases in self._biases.items():
            self._record[f"{part}.bias_norms"] = _norms_of_thirds(biases)
        self._steps.append(step)
        self._pending.append(self._record)
        self._before, self._record = [], {}

    def read(self) -> Dynamics:
        """Return the records so far, on the CPU; waits for the device."""
        if self._pending:
            new = {name: torch.stack([record[name] for record in self._pending]).cpu() for name in self._pending[0]}
            self._recorded = {name: torch.cat([self._recorded.get(name, rows[:0]), rows]) for name, rows in new.items()}
            self._pending = []
        return Dynamics(torch.tensor(self._steps), self._matrices, self._recorded)

    def state_dict(self) -> dict[str, Any]:
        """Return the initial weights and all records."""
        recorded = self.read().recorded
        return {"first": [group.cpu() for group in self._first], "steps": list(self._steps), "recorded": recorded}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from the `state_dict` of a recorder of the same model.

        Raises:
            StateError: the run began without a recorder.
        """
        if state is None:
            raise StateError(
                "run.dynamics_every: the run started without it, so its first weights are unknown; leave it out"
            )
        self._first = [first.to(own.device) for first, own in zip(state["first"], self._first, strict=True)]
        self._steps, self._recorded, self._pending = list(state["steps"]), dict(state["recorded"]), []

    def on_save(self) -> None:
        """Write the records so far to `path`."""
        if self._path is not None:
            write_dynamics(self._path, self.read())

    def _weights(self) -> list[Tensor]:
        """Return a copy of all matrices: per group (matrices, rows, columns)."""
        return [torch.stack([watched.weights() for watched in group]) for group in self._groups]

    def _named(self, weights: list[Tensor], name: str, part: str) -> Tensor:
        """Return the matrices of one name by layer, out of what `_weights` returns: (layers, rows, columns)."""
        matrices = [matrix for group in weights for matrix in group]
        return torch.stack([matrices[place] for place in places(self._matrices, name, part)])


def _third(index: int, fused: Tensor) -> Tensor:
    return fused.chunk(3)[index]


@dataclass(frozen=True)
class _Watched:
    """A matrix, the parameter that holds it, and how to cut it out of that or its gradient."""

    matrix: Matrix
    parameter: Tensor
    cut: Callable[[Tensor], Tensor] = lambda weight: weight.flatten(1)

    def weights(self) -> Tensor:
        return self.cut(self.parameter.detach())

    def gradient(self) -> Tensor:
        gradient = self.parameter.grad  # None where it is frozen
        return torch.zeros_like(self.weights()) if gradient is None else self.cut(gradient)

    def shape(self) -> torch.Size:
        return self.weights().shape


def _watched(model: Model) -> Iterator[_Watched]:
    """Yield all matrices to record, as torch holds them: (outputs, inputs), which changes no norm, angle or rank."""
    encoder = model.encoder
    yield _Watched(Matrix("encoder", "W_E"), encoder.patch_embed.proj.weight)
    if encoder.config.pos_embed == "learned":
        yield _Watched(Matrix("encoder", "pos_embed"), encoder.pos_embed, lambda table: table[0])
    if isinstance(encoder.head, nn.Linear):
        yield _Watched(Matrix("encoder", "head"), encoder.head.weight)
    if model.decoder is not None:
        yield _Watched(Matrix("decoder", "embed"), model.decoder.embed.weight)
        yield _Watched(Matrix("decoder", "pred"), model.decoder.pred.weight)
    for part, blocks in _blocks(model).items():
        for layer, block in enumerate(blocks):
            if block.attn.qkv is not None:
                for third, name in enumerate(("W_Q", "W_K", "W_V")):
                    yield _Watched(Matrix(part, name, layer), block.attn.qkv.weight, partial(_third, third))
            for name, key in {"W_O": "attn.proj", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}.items():
                yield _Watched(Matrix(part, name, layer), block.get_parameter(f"{key}.weight"))


def _blocks(model: Model) -> dict[str, list[Block]]:
    parts = {"encoder": model.encoder.blocks}
    if model.decoder is not None:
        parts["decoder"] = model.decoder.blocks
    return {part: [block for block in blocks if isinstance(block, Block)] for part, blocks in parts.items()}


def _biases(layers: list[MultiHeadSelfAttention]) -> list[Tensor]:
    """Return the biases of queries, keys and values, (3 D) each, if they exist and softmax cancels the keys'."""
    plain = [layer.qkv for layer in layers if layer.qkv is not None and isinstance(layer.k_norm, nn.Identity)]
    return [linear.bias for linear in plain if linear.bias is not None]


def _norms(matrices: Tensor) -> Tensor:
    """Return Frobenius norms: (n, rows, columns) -> (n,)."""
    return torch.linalg.vector_norm(matrices, dim=(1, 2))


def _norms_of_thirds(biases: list[Tensor]) -> Tensor:
    """Return the norms of queries', keys' and values' biases: (3 D) each -> (layers, 3)."""
    return torch.linalg.vector_norm(torch.stack(biases).unflatten(1, (3, -1)), dim=2)
