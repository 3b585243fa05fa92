"""What training does to every weight matrix: its gradient, how far it moves and turns, and its stable rank.

Here are the measures, and the file that a run leaves; `vit.interpret.recorder` records them during training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vit.atomic import replacing
from vit.errors import UserError

FORMAT = "vit-patch-trainer/dynamics/1"
QUANTITIES = ("gradient_norm", "update_ratio", "drift", "cosine", "stable_rank")
SQUARINGS = 12  # in `stable_rank`: to the power of 4096, beyond which float32 gains nothing


class DynamicsError(UserError):
    """A file without dynamics, or without a requested matrix or quantity; the message is one line."""


@dataclass(frozen=True)
class Matrix:
    """A weight matrix of a model.

    Attributes:
        part: "encoder" or "decoder".
        name: W_Q, W_K, W_V, W_O, fc1 or fc2 of a layer; W_E, pos_embed, head, embed or pred outside the layers.
        layer: from 0; None outside the layers.
    """

    part: str
    name: str
    layer: int | None = None


@dataclass(frozen=True)
class Dynamics:
    """The records of a training run: row i was recorded at step `steps[i]`. Norms are Frobenius norms.

    Attributes:
        steps: int64 (records,), from 1.
        matrices: that were recorded.
        recorded: float32 arrays by name.
            Per matrix (records, matrices): gradient_norm, of the whole batch's gradient before clipping; update_ratio,
            |W after - W before| / |W before| of that one step; and of the weights after it: drift, |W - W0| / |W0| where W0
            is the matrix at the start; cosine, of the angle between W and W0; stable_rank. Values relative to a matrix of
            zeros are not finite.
            Per part, e.g. "encoder": encoder.products (records, layers, h), `product_drift` per head;
            encoder.bias_gradients and encoder.bias_norms (records, layers, 3), of the biases of queries, keys and values.
            The keys' bias adds the same to all logits of a query, which softmax cancels: its gradient is 0, and the record is
            rounding, unless queries and keys are normalised (`qk_norm`).
    """

    steps: Tensor
    matrices: tuple[Matrix, ...]
    recorded: dict[str, Tensor]

    def of(self, quantity: str, name: str, part: str = "encoder") -> Tensor:
        """Return a quantity of all matrices of one name, from the first layer to the last: (records, layers).

        Raises:
            DynamicsError: there is no such quantity or matrix.
        """
        if quantity not in QUANTITIES:
            raise DynamicsError(f"no quantity of a matrix is called {quantity!r}; choose from {', '.join(QUANTITIES)}")
        return self.recorded[quantity][:, places(self.matrices, name, part)]

    def frozen(self, name: str, part: str = "encoder") -> Tensor:
        """Return in which layers the matrix of this name never got a gradient: bool (layers,).

        Raises:
            DynamicsError: there is no such matrix.
        """
        return (self.of("gradient_norm", name, part) == 0).all(0)

    def names(self, part: str = "encoder") -> set[str]:
        """Return the names of the matrices of a part."""
        return {matrix.name for matrix in self.matrices if matrix.part == part}


def places(matrices: Sequence[Matrix], name: str, part: str) -> list[int]:
    """Return the indices of the matrices of one name among `matrices`, from the first layer to the last.

    Raises:
        DynamicsError: there are none.
    """
    found = {matrix.layer or 0: at for at, matrix in enumerate(matrices) if (matrix.part, matrix.name) == (part, name)}
    if not found:
        there = ", ".join(sorted({f"{matrix.part} {matrix.name}" for matrix in matrices}))
        raise DynamicsError(f"no matrix {name!r} was recorded in the {part}; it has {there}")
    return [found[layer] for layer in sorted(found)]


def stable_rank(matrices: Tensor) -> Tensor:
    """Return |W|_F^2 / |W|_2^2: over how many directions a matrix is spread, 1 to its rank (Rudelson & Vershynin 2007).

    |W|_2^2 is the largest eigenvalue of the Gram matrix W W^T or W^T W. Its 4096th power (twelve squarings), scaled to trace
    1, is the projection onto the eigenvector, up to rounding; eigenvalues within a 4096th of the largest contribute too, and
    the result is within 0.2%. torch's own eigenvalues are as fast on a CPU, but would wait for a GPU.

    Args:
        matrices: (n, rows, columns).

    Returns:
        (n,); nan for a matrix of zeros.
    """
    gram = matrices @ matrices.mT if matrices.shape[1] <= matrices.shape[2] else matrices.mT @ matrices
    power = gram / _trace(gram)
    for _ in range(SQUARINGS):
        power = power @ power
        power = power / _trace(power)
    return (_trace(gram) / _trace(power @ gram)).flatten()


def product_drift(query: Tensor, key: Tensor, first_query: Tensor, first_key: Tensor) -> Tensor:
    """Return |P - P0| / |P0| of P = W_Q W_K^T per head: how far the product moves, on which the logits depend.

    W_Q and W_K alone are not determined: W_Q A and W_K A^-T have the same product for every invertible A (d, d), so each
    can move without effect. P - P0 is (W_Q - W0_Q) W_K^T + W0_Q (W_K - W0_K)^T, a product of (D, 2d) and (2d, D): rounding
    does not swallow small movements, and the norm needs no (D, D).

    Args:
        query, key: (..., d, D), a head's columns of W_Q and W_K, transposed.
        first_query, first_key: likewise, at the start of training.

    Returns:
        (...).
    """
    left = torch.cat([query - first_query, first_query], dim=-2)  # (..., 2d, D)
    right = torch.cat([key, key - first_key], dim=-2)
    moved = _product_square(left, right).clamp(min=0)  # rounding may make it negative if the two parts cancel
    return (moved / _product_square(first_query, first_key)).sqrt()


def _product_square(left: Tensor, right: Tensor) -> Tensor:
    """Return |A^T B|_F^2 = <A A^T, B B^T>: A and B (..., r, D) -> (...)."""
    return ((left @ left.mT) * (right @ right.mT)).sum((-2, -1))


def _trace(matrices: Tensor) -> Tensor:
    """Return the traces: (n, m, m) -> (n, 1, 1)."""
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]


def write_dynamics(path: Path, dynamics: Dynamics) -> None:
    """Write the records for `read_dynamics`, whole or not at all."""
    names = [[matrix.part, matrix.name, matrix.layer] for matrix in dynamics.matrices]
    about = json.dumps({"format": FORMAT, "matrices": names})  # one entry: safetensors writes several in any order
    content = save({"steps": dynamics.steps} | dynamics.recorded, metadata={"dynamics": about})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_dynamics(path: str | Path) -> Dynamics:
    """Read the dynamics.safetensors of a run.

    Raises:
        DynamicsError: the file is missing, damaged or of another kind.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            recorded = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
    except OSError as error:
        raise DynamicsError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise DynamicsError(f"{path} is damaged, or not a safetensors file: {error}") from error
    if "dynamics" not in metadata:
        raise DynamicsError(f"{path} holds no dynamics; a run with run.dynamics_every writes some")
    try:
        about = json.loads(metadata["dynamics"])
        if about["format"] != FORMAT:
            raise DynamicsError(f"{path} is of the format {about['format']!r}; this version reads {FORMAT}")
        matrices = tuple(Matrix(part, name, layer) for part, name, layer in about["matrices"])
        steps = recorded.pop("steps")
        sizes = [recorded[name].shape[1] for name in QUANTITIES]
    except (LookupError, TypeError, ValueError) as error:
        raise DynamicsError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    if set(sizes) != {len(matrices)} or {len(values) for values in recorded.values()} != {len(steps)}:
        raise DynamicsError(f"{path} is damaged: its tensors do not fit together")
    return Dynamics(steps, matrices, recorded)
