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
        correlation: of ranks, from -1 to 1.
        p: how often chance gives a correlation as far from 0, or farther.
        gain: by how much the one rises with one standard deviation of the other, in the one's unit.
    """

    correlation: float
    p: float
    gain: float


def association(
    one: Tensor, other: Tensor, given: Sequence[Tensor] = (), permutations: int = 999, seed: int = 0
) -> Association:
    """The rank correlation of two relations over all pairs of K things, with others held constant, and its Mantel test.

    The correlation is Spearman's: of ranks, and with `given`, of what a linear fit of the ranks of those leaves. The K (K - 1)
    / 2 pairs are not independent, as each thing is in K - 1 of them; so chance is what comes of naming the things in another
    order (Mantel 1967; for partial correlations the residuals are permuted, Legendre 2000).

    Ranks say how surely two relations go together and not how much: two models may order all pairs alike, of which one tells
    them well apart and one hardly. That is what the gain is for: the slope of a linear fit to the values, with `given` in it.

    Args:
        one, other: (K, K), symmetric; the diagonal is not looked at.
        given: relations (K, K) that are held constant.
        permutations: how many orders are tried, beside the true one.
        seed: of the orders.
    """
    count = len(one)
    upper = torch.triu_indices(count, count, 1)
    pairs = torch.stack(
        [relation[upper[0], upper[1]].double() for relation in (one, other, *given)]
    )  # (2 + given, pairs)
    rise, per = _left(pairs[:2], _directions(pairs[2:]))
    # Where `given` explains all of the other relation, what is left of it is rounding, and says nothing.
    free = per.norm() > 1e-9 * (pairs[1] - pairs[1].mean()).norm()
    gain = (rise @ per) / (per @ per) * pairs[1].std(correction=0) if free else torch.zeros(())

    ranked = ranks(pairs)
    explained = _directions(ranked[2:])
    left, right = _left(ranked[:2], explained)
    square = left.new_zeros(count, count)
    square[upper[0], upper[1]] = square[upper[1], upper[0]] = left
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.arange(count), *(torch.randperm(count, generator=generator) for _ in range(permutations))]
    order = torch.stack(orders)  # (1 + permutations, K)
    found = _left(square[order[:, upper[0]], order[:, upper[1]]], explained)  # (1 + permutations, pairs)
    lengths = (found.norm(dim=1) * right.norm()).clamp(min=1e-12)
    correlations = (found @ right) / lengths
    as_far = correlations.abs() >= correlations[0].abs() - 1e-12
    return Association(float(correlations[0]), float(as_far.double().mean()), float(gain))


def _directions(given: Tensor) -> Tensor:
    """Orthonormal rows (up to 1 + n, pairs) that span all linear fits by a constant and by `given` (n, pairs)."""
    fitted = torch.cat([given.new_ones(1, given.shape[1]), given])
    _, sizes, rows = torch.linalg.svd(fitted, full_matrices=False)
    return rows[sizes > 1e-9 * sizes[0]]


def _left(values: Tensor, directions: Tensor) -> Tensor:
    """What a linear fit leaves of values (..., pairs)."""
    return values - (values @ directions.T) @ directions
