"""Muon (Jordan et al. 2024): momentum whose matrices are made nearly orthogonal before they are added to the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)
"""Coefficients of the quintic iteration, by its author: singular values end between 0.7 and 1.2, after five steps."""
STEPS = 5
LIKE_ADAMW = 0.2
"""Root mean square of AdamW's updates; Muon's are given the same, so that one learning rate serves both (Liu et al. 2025)."""


class Muon(AdamW):
    """Muon for the groups that say `"muon": True`, AdamW for the others; decoupled weight decay for both.

    The matrices of all layers with one shape are orthogonalised together, as one batch; W_Q, W_K and W_V, which share a fused
    layer, each by itself. As in torch's fused AdamW, nothing is updated while `found_inf` is 1, and nothing waits for it.

    Args:
        groups: parameter groups with "weight_decay"; those of Muon hold 2-D weights, and say in how many matrices, one under
            the other, each of them is to be cut ("matrices").
        lr: learning rate.
        betas: of AdamW; the first is Muon's momentum too.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float]):
        super().__init__(groups, lr=lr, betas=betas, fused=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        Optimizer.__setstate__(self, state)  # AdamW's wants a count of steps in every state, and Muon's have none

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        groups = self.param_groups
        for group in groups:
            if group.get("muon"):
                self._step_matrices(group)
        self.param_groups = [group for group in groups if not group.get("muon")]
        try:
            super().step()
        finally:
            self.param_groups = groups

    def _step_matrices(self, group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for weight in group["params"]:
            if weight.grad is not None:
                by_shape.setdefault(weight.shape, []).append(weight)
        stopped = getattr(self, "found_inf", None)
        for shape, alike in by_shape.items():
            for weight in alike:
                if "momentum" not in self.state[weight]:
                    self.state[weight]["momentum"] = torch.zeros_like(weight)
            gradient = torch.stack([weight.grad for weight in alike])  # type: ignore[misc]  # (n, rows, columns)
            before = torch.stack([self.state[weight]["momentum"] for weight in alike])
            after = torch.lerp(gradient, before, group["betas"][0])
            direction = torch.lerp(gradient, after, group["betas"][0])  # Nesterov's
            rows, columns = shape[0] // group["matrices"], shape[1]
            change = orthogonalised(direction.view(-1, rows, columns)).view(direction.shape)
            change = LIKE_ADAMW * max(rows, columns) ** 0.5 * change
            values = torch.stack(alike)
            change = group["lr"] * (change + group["weight_decay"] * values)
            if stopped is not None:
                change, after = torch.where(stopped > 0, 0.0, change), torch.where(stopped > 0, before, after)
            torch._foreach_copy_([self.state[weight]["momentum"] for weight in alike], list(after))
            torch._foreach_sub_(alike, list(change))


def orthogonalised(matrices: Tensor) -> Tensor:
    """Matrices (n, rows, columns) with nearly the same singular vectors, and singular values near 1, by Newton-Schulz.

    On a GPU in bfloat16, as its author has it: the iteration forgives rounding.
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(STEPS):
        gram = x @ x.mT
        x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    return (x.mT if tall else x).to(matrices.dtype)
