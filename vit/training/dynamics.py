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
from torch.linalg import vector_norm

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


def matrices_of(model: Model) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield all weight matrices of a model, those of one name from the first layer to the last.

    Yields:
        The name, with its part ("encoder.W_Q"): W_Q, W_K, W_V, W_O, fc1 and fc2 in the layers, and
        W_E, pos_embed, head, embed and pred outside them. The matrix, a view of the parameter that
        holds it, (outputs, inputs) as in torch, which changes no norm. Its gradient, of the same
        shape: zeros where there is none.
    """
    # positions that are not learned are no matrix
    fixed = ["decoder.pos_embed"]
    if model.encoder.config.pos_embed != "learned":
        fixed.append("encoder.pos_embed")
    for part, module in (("encoder", model.encoder), ("decoder", model.decoder)):
        if module is None:
            continue
        for key, parameter in module.named_parameters():
            names = MATRICES.get(re.sub(r"^blocks\.\d+\.", "", key))
            if names is None or f"{part}.{key}" in fixed:
                continue
            # a frozen parameter has none
            slopes = parameter.grad
            if slopes is None:
                slopes = torch.zeros_like(parameter)
            # W_Q, W_K and W_V have a third of the rows each
            matrices = parameter.detach().chunk(len(names))
            gradients = slopes.chunk(len(names))
            for name, matrix, gradient in zip(names, matrices, gradients, strict=True):
                yield f"{part}.{name}", matrix, gradient


# ---- During training ----------------------------------------------------------------------------


class DynamicsRecorder(Callback):
    """Records the dynamics of a model's matrices while it trains; changes nothing, draws nothing.

    It does so in each `run.dynamics_every`-th step, in the last, and in the early 1, 2, 4, 8, ...
    Measurements stay on the device until the file is written: no step waits for them.

    Args:
        path: dynamics.jsonl, written with each checkpoint.
        run: the initial weights of its model are copied.
    """

    name = "dynamics"

    def __init__(self, path: Path, run: Run):
        self._path = path
        self._model = run.model
        self._every = run.config.run.dynamics_every
        self._total = run.total_steps
        self._initial = [matrix.clone() for _, matrix, _ in matrices_of(run.model)]
        # norms at the current step, one per matrix
        self._gradients: list[Tensor] = []
        # step, and (quantities, matrices) on the device
        self._pending: list[tuple[int, Tensor]] = []
        # of the file
        self._content = ""

    def _records(self, step: int) -> bool:
        # a power of two has one bit
        is_early = step < self._every and step & (step - 1) == 0
        return is_early or step % self._every == 0 or step == self._total

    def on_start(self, run: Run) -> None:
        # without the lines of steps after the checkpoint, even if no later step writes
        if self._content:
            self.on_save()

    @torch.no_grad()
    def on_gradient(self, step: int) -> None:
        if self._records(step):
            self._gradients = [vector_norm(gradient) for _, _, gradient in matrices_of(self._model)]

    @torch.no_grad()
    def on_step(self, run: Run, done: Step) -> None:
        if not self._records(done.step):
            return
        # relative to the size of the initial weights
        drifts = []
        for (_, matrix, _), initial in zip(matrices_of(self._model), self._initial, strict=True):
            drifts.append(vector_norm(matrix - initial) / vector_norm(initial))
        values = torch.stack([torch.stack(self._gradients), torch.stack(drifts)])  # (2, matrices)
        self._pending.append((done.step, values))

    def on_save(self) -> None:
        """Write the records so far; waits for the device."""
        # the layers of a matrix in one list, as `matrices_of` yields them
        names = [name for name, _, _ in matrices_of(self._model)]
        for step, values in self._pending:
            record: dict[str, Any] = {"step": step}
            for quantity, row in zip(QUANTITIES, values.tolist(), strict=True):
                record[quantity] = {}
                for name, value in zip(names, row, strict=True):
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
        # a checkpoint is read onto the CPU, and these stay on their device
        torch._foreach_copy_(self._initial, state["first"])


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
