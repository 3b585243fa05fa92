"""The gradient size and movement of every weight matrix during training.

`DynamicsRecorder` writes dynamics.jsonl during training, and `read_dynamics` reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vit.atomic import write_text
from vit.errors import RunError
from vit.mae import Model
from vit.runs import read_metrics, read_saved_part
from vit.training.step import Callback, Step

if TYPE_CHECKING:
    from vit.training.run import Run

QUANTITIES = ("gradient_norm", "drift")
MATRICES = {
    "patch_embed.proj.weight": ["W_E"],
    "pos_embed": ["pos_embed"],
    "head.weight": ["head"],
    "embed.weight": ["embed"],
    "pred.weight": ["pred"],
    "attn.qkv.weight": ["W_Q", "W_K", "W_V"],
    "attn.proj.weight": ["W_O"],
    "mlp.fc1.weight": ["fc1"],
    "mlp.fc2.weight": ["fc2"],
}
"""The matrices in each parameter, by its name in encoder or decoder, or in one of their layers."""


def matrices_of(model: Model) -> Iterator[tuple[str, Tensor, int | None]]:
    """Yield all weight matrices of a model, those of one name from the first layer to the last.

    Yields:
        The name, with its part ("encoder.W_Q"): W_Q, W_K, W_V, W_O, fc1 and fc2 in the layers, and
        W_E, pos_embed, head, embed and pred outside them. The parameter that holds it, (outputs,
        inputs) as in torch, which changes no norm. Which third of its rows; None for all.
    """
    # positions that are not learned are no matrix
    fixed = ["decoder.pos_embed"]
    if model.encoder.config.pos_embed != "learned":
        fixed.append("encoder.pos_embed")
    for part, module in (("encoder", model.encoder), ("decoder", model.decoder)):
        if module is None:
            continue
        for key, parameter in module.named_parameters():
            names = MATRICES.get(re.sub(r"^blocks\.\d+\.", "", key), [])
            for third, name in enumerate(names):
                if f"{part}.{name}" not in fixed:
                    yield f"{part}.{name}", parameter, third if len(names) > 1 else None


def rows_of(values: Tensor, third: int | None) -> Tensor:
    """Return a view of a third of the rows, or of all."""
    return values if third is None else values.chunk(3)[third]


# ---- During training ----------------------------------------------------------------------------


def is_recorded(step: int, every: int, total: int) -> bool:
    """Return whether a step is recorded: each `every`-th, the last, and early 1, 2, 4, 8, ...

    Args:
        step: from 1 to `total`.
        every: steps between two records, from 1.
        total: steps of the whole run.
    """
    # a power of two has one bit
    is_early = step < every and step & (step - 1) == 0
    return is_early or step % every == 0 or step == total


class DynamicsRecorder(Callback):
    """Records the dynamics of a model's matrices while it trains; changes nothing, draws nothing.

    Measurements stay on the device until the file is written: no step waits for them.

    Args:
        model: its initial weights are copied.
        every: steps between two records (see `is_recorded`).
        total: steps of the whole run.
        path: dynamics.jsonl, written with each checkpoint.
    """

    name = "dynamics"

    def __init__(self, model: Model, every: int, total: int, path: Path):
        self._matrices = list(matrices_of(model))
        self._every = every
        self._total = total
        self._path = path
        self._initial = [weights.clone() for weights in self._weights()]
        # norms at the current step, one per matrix
        self._gradients: list[Tensor] = []
        # step, and (quantities, matrices) on the device
        self._pending: list[tuple[int, Tensor]] = []
        # of the file
        self._content = ""

    def _weights(self) -> list[Tensor]:
        return [rows_of(parameter.detach(), third) for _, parameter, third in self._matrices]

    def on_start(self, run: Run) -> None:
        # without the lines of steps after the checkpoint, even if no later step writes
        if self._content:
            self.on_save()

    @torch.no_grad()
    def on_gradient(self, step: int) -> None:
        if not is_recorded(step, self._every, self._total):
            return
        self._gradients = []
        for _, parameter, third in self._matrices:
            gradient = parameter.grad
            # a frozen parameter has none
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            self._gradients.append(torch.linalg.vector_norm(rows_of(gradient, third)))

    @torch.no_grad()
    def on_step(self, run: Run, done: Step) -> None:
        if not is_recorded(done.step, self._every, self._total):
            return
        # relative to the size of the initial weights
        norm = torch.linalg.vector_norm
        drifts = []
        for weights, initial in zip(self._weights(), self._initial, strict=True):
            drifts.append(norm(weights - initial) / norm(initial))
        values = torch.stack([torch.stack(self._gradients), torch.stack(drifts)])  # (2, matrices)
        self._pending.append((done.step, values))

    def on_save(self) -> None:
        """Write the records so far; waits for the device."""
        # the layers of a matrix in one list, as `matrices_of` yields them
        for step, values in self._pending:
            record: dict[str, Any] = {"step": step}
            for quantity, row in zip(QUANTITIES, values.tolist(), strict=True):
                record[quantity] = {}
                for (name, _, _), value in zip(self._matrices, row, strict=True):
                    record[quantity].setdefault(name, []).append(value)
            self._content += json.dumps(record) + "\n"
        self._pending.clear()
        write_text(self._path, self._content)

    def state_dict(self) -> dict[str, Any]:
        first = [weights.cpu() for weights in self._initial]
        return {"first": first, "bytes": len(self._content)}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        if state is None:
            raise RunError(
                "run.dynamics_every: the run began without it, so its initial weights are unknown; "
                "leave it out"
            )
        self._content = read_saved_part(self._path, state["bytes"]).decode()
        # a checkpoint is read onto the CPU
        device = self._initial[0].device
        self._initial = [weights.to(device) for weights in state["first"]]


# ---- Afterwards ---------------------------------------------------------------------------------


def read_dynamics(path: str | Path) -> tuple[Tensor, dict[str, dict[str, Tensor]]]:
    """Read the dynamics.jsonl of a run.

    Returns:
        steps: int64 (records,), from 1.
        recorded: by quantity, and by the name of a matrix with its part ("encoder.W_Q"), of each
            step and layer: (records, layers). gradient_norm is the Frobenius norm of the batch's
            gradient before clipping; drift is |W - W0| / |W0| after the step, where W0 is the
            initial matrix: not finite if that is zero.

    Raises:
        RunError: the file is missing or empty.
    """
    lines = read_metrics(Path(path))
    if not lines:
        raise RunError(f"{path} holds no dynamics; a run with run.dynamics_every writes some")

    # every record has the same names
    recorded: dict[str, dict[str, Tensor]] = {quantity: {} for quantity in QUANTITIES}
    for quantity, values in recorded.items():
        for name in lines[0][quantity]:
            values[name] = torch.tensor([line[quantity][name] for line in lines])
    return torch.tensor([line["step"] for line in lines]), recorded
