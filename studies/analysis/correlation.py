"""How two measures are related: correlations, alone or with other measures held constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.stats import rankdata
from torch import Tensor


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return Pearson's correlation along the last dimension; 0 if one of the two does not vary."""
    return (_unit(a) * _unit(b)).sum(-1)


def partial_correlation(a: Tensor, b: Tensor, given: Tensor) -> Tensor:
    """Return the correlation of the residuals of `a` and `b` after linear fits by a third."""
    given = _unit(given)
    left = []
    for values in (_unit(a), _unit(b)):
        rest = values - (values * given).sum(-1, keepdim=True) * given
        left.append(
            torch.where(rest.norm(dim=-1, keepdim=True) > 1e-5, rest, 0.0)
        )  # else it is only rounding
    return correlation(*left)


def _unit(values: Tensor) -> Tensor:
    """Return values centred and scaled to length 1; zeros if nothing varies beyond rounding."""
    centred = values - values.mean(-1, keepdim=True)
    length = centred.norm(dim=-1, keepdim=True)
    small = 4 * torch.finfo(centred.dtype).eps * values.norm(dim=-1, keepdim=True)
    return torch.where(length > small, centred / length, 0.0)


def ranks(values: Tensor) -> Tensor:
    """Return ranks along the last dimension from 0; equal values share the mean of theirs."""
    return torch.from_numpy(rankdata(values.cpu().numpy(), axis=-1) - 1).to(values)


def top_overlap(a: Tensor, b: Tensor, count: int) -> Tensor:
    """Return the share of the `count` highest of a (..., n) that b has too; by chance count / n."""
    chosen = [torch.zeros_like(part).scatter(-1, part.topk(count).indices, 1.0) for part in (a, b)]
    return (chosen[0] * chosen[1]).sum(-1) / count


class Association(NamedTuple):
    """The association of two relations."""

    correlation: float  # of ranks
    p: float  # how often permutations give a correlation as far from 0
    gain: float  # rise of the one per standard deviation of the other


def association(
    one: Tensor, other: Tensor, given: Sequence[Tensor] = (), permutations: int = 999
) -> Association:
    """Return how two symmetric relations (K, K) are related, with others held constant.

    The correlation is Spearman's, partial with `given`. Pairs are not independent, as each thing is
    in K - 1 of them; so p is that of a Mantel test, which permutes the things (Mantel 1967; of
    residuals, Legendre 2000). The correlation of ranks says how surely they are related; the gain,
    the slope of a linear fit to the values, says how much.
    """
    count = len(one)
    upper = torch.triu_indices(count, count, 1)
    pairs = torch.stack(
        [values[upper[0], upper[1]].double() for values in (one, other, *given)]
    )  # (2 + given, pairs)

    # The slope
    rise, per = _residuals(pairs[:2], _directions(pairs[2:]))
    # If `given` explains all of the other relation, its residuals are rounding and say nothing
    free = per.norm() > 1e-9 * (pairs[1] - pairs[1].mean()).norm()
    gain = (rise @ per) / (per @ per) * pairs[1].std(correction=0) if free else torch.zeros(())

    # The correlation of ranks, in the true order and in permuted ones
    ranked = ranks(pairs)
    explained = _directions(ranked[2:])
    left, right = _residuals(ranked[:2], explained)
    square = left.new_zeros(count, count)
    square[upper[0], upper[1]] = square[upper[1], upper[0]] = left
    generator = torch.Generator().manual_seed(0)
    orders = [
        torch.arange(count),
        *(torch.randperm(count, generator=generator) for _ in range(permutations)),
    ]
    order = torch.stack(orders)  # (1 + permutations, K)
    permuted = _residuals(
        square[order[:, upper[0]], order[:, upper[1]]], explained
    )  # (1 + permutations, pairs)
    correlations = (permuted @ right) / (permuted.norm(dim=1) * right.norm()).clamp(min=1e-12)
    as_far = correlations.abs() >= correlations[0].abs() - 1e-12
    return Association(float(correlations[0]), float(as_far.double().mean()), float(gain))


def _directions(given: Tensor) -> Tensor:
    """Return orthonormal rows that span all linear fits by a constant and by `given` (n, pairs)."""
    fitted = torch.cat([given.new_ones(1, given.shape[1]), given])
    _, sizes, rows = torch.linalg.svd(fitted, full_matrices=False)
    return rows[sizes > 1e-9 * sizes[0]]


def _residuals(values: Tensor, directions: Tensor) -> Tensor:
    """Return the residuals of values (..., pairs) after a linear fit."""
    return values - (values @ directions.T) @ directions
