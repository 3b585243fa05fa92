"""Whether two relations between the same things go together, and what is left of it when others are held constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vit.interpret.correlation import ranks


class Association(NamedTuple):
    """How two relations go together.

    Attributes:
        correlation: from -1 to 1.
        p: how often chance gives one as far from 0, or farther.
    """

    correlation: float
    p: float


def association(
    one: Tensor, other: Tensor, given: Sequence[Tensor] = (), permutations: int = 999, seed: int = 0
) -> Association:
    """The rank correlation of two relations over all pairs of K things, with others held constant, and its Mantel test.

    The correlation is Spearman's: of ranks, and with `given`, of what a linear fit of the ranks of those leaves. The K (K - 1)
    / 2 pairs are not independent, as each thing is in K - 1 of them; so chance is what comes of naming the things in another
    order (Mantel 1967; for partial correlations the residuals are permuted, Legendre 2000).

    Args:
        one, other: (K, K), symmetric; the diagonal is not looked at.
        given: relations (K, K) that are held constant.
        permutations: how many orders are tried, beside the true one.
        seed: of the orders.
    """
    count = len(one)
    upper = torch.triu_indices(count, count, 1)
    left, right = (ranks(relation[upper[0], upper[1]].double()) for relation in (one, other))  # (pairs,)
    fitted = torch.stack(
        [torch.ones_like(left), *(ranks(relation[upper[0], upper[1]].double()) for relation in given)], dim=1
    )
    directions, sizes, _ = torch.linalg.svd(fitted, full_matrices=False)
    basis = directions[:, sizes > 1e-9 * sizes[0]]  # (pairs, up to 1 + given)

    def remaining(values: Tensor) -> Tensor:
        return values - (values @ basis) @ basis.T

    left, right = remaining(left), remaining(right)
    square = left.new_zeros(count, count)
    square[upper[0], upper[1]] = square[upper[1], upper[0]] = left
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.arange(count), *(torch.randperm(count, generator=generator) for _ in range(permutations))]
    order = torch.stack(orders)  # (1 + permutations, K)
    found = remaining(square[order[:, upper[0]], order[:, upper[1]]])  # (1 + permutations, pairs)
    lengths = (found.norm(dim=1) * right.norm()).clamp(min=1e-12)
    correlations = (found @ right) / lengths
    as_far = correlations.abs() >= correlations[0].abs() - 1e-12
    return Association(float(correlations[0]), float(as_far.double().mean()))
