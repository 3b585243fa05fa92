"""How two measures go together: correlations of values or ranks, alone or with others held constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.stats import rankdata
from torch import Tensor


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation along the last dimension of (..., n), from -1 to 1; 0 where one of the two does not vary."""
    return (_unit(a) * _unit(b)).sum(-1)


def partial_correlation(a: Tensor, b: Tensor, given: Tensor) -> Tensor:
    """The correlation of what is left of `a` and `b` once a third measure has explained what it can; likewise."""
    given = _unit(given)
    left = []
    for values in (_unit(a), _unit(b)):
        rest = values - (values * given).sum(-1, keepdim=True) * given
        left.append(torch.where(rest.norm(dim=-1, keepdim=True) > 1e-5, rest, 0.0))  # else it is only rounding
    return correlation(*left)


def _unit(values: Tensor) -> Tensor:
    """Without their mean, and of length 1; zeros where nothing varies beyond rounding."""
    centred = values - values.mean(-1, keepdim=True)
    length = centred.norm(dim=-1, keepdim=True)
    small = 4 * torch.finfo(centred.dtype).eps * values.norm(dim=-1, keepdim=True)
    return torch.where(length > small, centred / length, 0.0)


def ranks(values: Tensor) -> Tensor:
    """Ranks along the last dimension from 0, equal values sharing the mean of theirs; their correlation is Spearman's."""
    return torch.from_numpy(rankdata(values.cpu().numpy(), axis=-1) - 1).to(values)


def top_overlap(a: Tensor, b: Tensor, count: int) -> Tensor:
    """The share of the `count` highest of a (..., n) that are among the `count` highest of b; of random ones, count / n."""
    chosen = [torch.zeros_like(part).scatter(-1, part.topk(count).indices, 1.0) for part in (a, b)]
    return (chosen[0] * chosen[1]).sum(-1) / count


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
    """The rank correlation of two relations (K, K) between K things, with others held constant, and its Mantel test.

    The relations are symmetric, and their diagonals are not looked at. The correlation is Spearman's: of ranks, and with
    `given`, of what a linear fit of the ranks of those leaves. The K (K - 1) / 2 pairs are not independent, as each thing
    is in K - 1 of them; so chance is what comes of permuting the things (Mantel 1967; for partial correlations the
    residuals are permuted, Legendre 2000).

    Ranks say how surely two relations go together and not how much: two models may order all pairs alike, of which one
    tells them well apart and one hardly. That is what the gain is for: the slope of a linear fit to the values, with
    `given` in it.
    """
    count = len(one)
    upper = torch.triu_indices(count, count, 1)
    pairs = torch.stack([values[upper[0], upper[1]].double() for values in (one, other, *given)])  # (2 + given, pairs)

    # the slope
    rise, per = _residuals(pairs[:2], _directions(pairs[2:]))
    # Where `given` explains all of the other relation, what is left of it is rounding, and says nothing.
    free = per.norm() > 1e-9 * (pairs[1] - pairs[1].mean()).norm()
    gain = (rise @ per) / (per @ per) * pairs[1].std(correction=0) if free else torch.zeros(())

    # the correlation of ranks, in the true order and in permuted ones
    ranked = ranks(pairs)
    explained = _directions(ranked[2:])
    left, right = _residuals(ranked[:2], explained)
    square = left.new_zeros(count, count)
    square[upper[0], upper[1]] = square[upper[1], upper[0]] = left
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.arange(count), *(torch.randperm(count, generator=generator) for _ in range(permutations))]
    order = torch.stack(orders)  # (1 + permutations, K)
    found = _residuals(square[order[:, upper[0]], order[:, upper[1]]], explained)  # (1 + permutations, pairs)
    correlations = (found @ right) / (found.norm(dim=1) * right.norm()).clamp(min=1e-12)
    as_far = correlations.abs() >= correlations[0].abs() - 1e-12
    return Association(float(correlations[0]), float(as_far.double().mean()), float(gain))


def _directions(given: Tensor) -> Tensor:
    """Orthonormal rows (up to 1 + n, pairs) that span all linear fits by a constant and by `given` (n, pairs)."""
    fitted = torch.cat([given.new_ones(1, given.shape[1]), given])
    _, sizes, rows = torch.linalg.svd(fitted, full_matrices=False)
    return rows[sizes > 1e-9 * sizes[0]]


def _residuals(values: Tensor, directions: Tensor) -> Tensor:
    """What a linear fit leaves of values (..., pairs)."""
    return values - (values @ directions.T) @ directions
