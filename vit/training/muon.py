"""Muon: orthogonalised momentum for matrices, AdamW for the rest.

Jordan et al. 2024, kellerjordan.github.io/posts/muon.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from vit.isolation import held
from vit.training.distributed import Distributed

# Each of the five iterations has its own a, b, c, which brings all singular values nearer to 1 than
# one triple for all (Cesista et al. 2025, leloykun.github.io/ponder/muon-opt-coeffs).
COEFFICIENTS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


class Muon(torch.optim.AdamW):
    """Muon for groups with "use_fallback" false, torch's fused AdamW for the others.

    Updates have AdamW's usual size, 0.2 per weight, so that both share one learning rate (Liu et
    al. 2025, arXiv 2502.16982). Of several processes, each orthogonalises its share of the
    matrices, those of the same shape together.

    Args:
        groups: parameters, each group with "use_fallback"; Muon's are matrices.
        betas: AdamW's; the first is also Muon's momentum, in Nesterov's form.
        dtype: in which the matrices are orthogonalised (see `orthogonalize`); all else is float32.
        dist: the processes, all of which step together.

    Attributes:
        found_inf: a scalar on the device, as in torch's AdamW, so that nothing waits for it; if it
            is 1, nothing is updated.
    """

    found_inf: Tensor | None = None
    # AdamW's own looks for its state in the state of every parameter
    __setstate__ = torch.optim.Optimizer.__setstate__

    def __init__(
        self,
        groups: list[dict[str, Any]],
        betas: tuple[float, float],
        dtype: torch.dtype,
        dist: Distributed,
    ) -> None:
        super().__init__(groups, lr=0.0, betas=betas, weight_decay=0.0, fused=True)
        self.dtype = dtype
        self.dist = dist

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        # A CPU can read it without waiting; a GPU applies it in AdamW and in `_replace`
        if self.found_inf is not None and self.found_inf.device.type == "cpu" and self.found_inf:
            return

        # the matrices of all groups at once, because their shapes decide who computes them
        matrices = [
            (matrix, group)
            for group in self.param_groups
            if not group["use_fallback"]
            for matrix in group["params"]
            if matrix.grad is not None
        ]
        others = [group for group in self.param_groups if group["use_fallback"]]
        with held(self, "param_groups", others):
            super().step()
        if matrices:
            self._muon(matrices)

    def _muon(self, matrices: list[tuple[Tensor, dict[str, Any]]]) -> None:
        # few kernels for all matrices, because a GPU takes longer to launch one per matrix than to
        # compute it
        weights: list[Tensor] = [matrix for matrix, _ in matrices]
        gradients: Any = [matrix.grad for matrix in weights]
        buffers = []
        for matrix in weights:
            state = self.state[matrix]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(matrix)
            buffers.append(state["momentum_buffer"])

        # Nesterov's momentum: the gradient, moved towards the new momentum
        beta = self.defaults["betas"][0]
        momenta = torch._foreach_lerp(buffers, gradients, 1 - beta)
        updates = self._orthogonalized(list(torch._foreach_lerp(gradients, momenta, beta)))

        # weight decay apart from the update (Loshchilov & Hutter 2019)
        kept = [1 - group["lr"] * group["weight_decay"] for _, group in matrices]
        rates = [-group["lr"] * 0.2 * max(matrix.shape) ** 0.5 for matrix, group in matrices]
        new_weights = torch._foreach_mul(weights, kept)
        torch._foreach_add_(new_weights, torch._foreach_mul(updates, rates))
        self._replace(buffers, momenta)
        self._replace(weights, new_weights)

    def _replace(self, values: list[Tensor], new_values: tuple[Tensor, ...] | list[Tensor]) -> None:
        """Copy the new values into the old ones, unless `found_inf` is 1.

        A GPU makes this choice, for all at once; an `if` would wait for it. On a CPU, `step` has
        made it.
        """
        if self.found_inf is not None and self.found_inf.device.type != "cpu":
            old = _flatten_dense_tensors(values)
            new = _flatten_dense_tensors(new_values)
            chosen = torch.where(self.found_inf > 0, old, new)
            new_values = _unflatten_dense_tensors(chosen, values)
        torch._foreach_copy_(values, new_values)

    def _orthogonalized(self, matrices: list[Tensor]) -> list[Tensor]:
        """Return every matrix orthogonalised, each by one of the processes."""
        # this process's share, in stacks of equal shape; zeros for the others'
        updates: list[Tensor] = list(matrices)
        if self.dist.world_size > 1:
            updates = [torch.zeros_like(matrix) for matrix in matrices]
        by_shape = sorted(range(len(matrices)), key=lambda index: matrices[index].shape)
        share = by_shape[self.dist.rank :: self.dist.world_size]
        for _, group in groupby(share, key=lambda index: matrices[index].shape):
            indices = list(group)
            stack = torch.stack([matrices[index] for index in indices])  # (N, rows, columns)
            # lists of tensors are one kernel only if all are laid out alike
            stack = orthogonalize(stack, self.dtype).contiguous()
            for index, update in zip(indices, stack.unbind(), strict=True):
                updates[index] = update
        if self.dist.world_size == 1:
            return updates

        # in one exchange; a sum in which all but one are zeros is exact, as are the updates in
        # `dtype`
        flat = _flatten_dense_tensors(updates).to(self.dtype)
        flat = self.dist.all_reduce_sum(flat).float()
        return list(_unflatten_dense_tensors(flat, matrices))


def orthogonalize(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Return U Vᵀ of each matrix U S Vᵀ by five Newton-Schulz iterations.

    All but the smallest singular values come near 1. An iteration is X <- P X with
    P = a I + b G + c G², G = X Xᵀ. All P are polynomials of the first G, so they commute, and in
    float32 the long side of X is needed only at both ends: in between, G <- P G P. For 192 x 768
    this takes 0.6 of the arithmetic. In bfloat16, the usual choice, such a G would grow with its
    rounding errors, so X is kept: a third of the time on a processor with bfloat16 products, fifty
    times the time on one without; about 3% of the update is rounding.

    Args:
        matrices: (N, rows, columns), of any scale.
        dtype: of the products, float32, bfloat16 or float16.

    Returns:
        Of the same shape, in float32.
    """
    wide = matrices.float()
    tall = wide.shape[-2] > wide.shape[-1]
    if tall:
        wide = wide.mT
    # (N, short, long); no singular value above 1
    wide = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    wide = _iterate_gram(wide) if dtype == torch.float32 else _iterate(wide.to(dtype)).float()
    return wide.mT if tall else wide


def _iterate(x: Tensor) -> Tensor:
    for coefficients in COEFFICIENTS:
        x = _polynomial(x @ x.mT, *coefficients) @ x
    return x


def _iterate_gram(x: Tensor) -> Tensor:
    gram = x @ x.mT  # (N, short, short)
    product = factor = _polynomial(gram, *COEFFICIENTS[0])
    for coefficients in COEFFICIENTS[1:]:
        gram = factor @ gram @ factor
        factor = _polynomial(gram, *coefficients)
        product = factor @ product
    return product @ x


def _polynomial(gram: Tensor, a: float, b: float, c: float) -> Tensor:
    factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal(dim1=-2, dim2=-1).add_(a)
    return factor
