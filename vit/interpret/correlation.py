"""How two measures go together: correlations along the last dimension, of values or of ranks, with a third held constant."""

from __future__ import annotations

import torch
from torch import Tensor


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation along the last dimension; 0 where one of the two does not vary.

    Args:
        a, b: (..., n), of shapes that broadcast.

    Returns:
        (...), from -1 to 1.
    """
    a, b = (_unit(part) for part in (a, b))
    return (a * b).sum(-1)


def partial_correlation(a: Tensor, b: Tensor, given: Tensor) -> Tensor:
    """The correlation of what is left of `a` and of `b` once a third measure has explained what it can; likewise.

    Args:
        a, b, given: (..., n), of shapes that broadcast.
    """
    given = _unit(given)
    return correlation(*(_left(_unit(part), given) for part in (a, b)))


def ranks(values: Tensor) -> Tensor:
    """Ranks along the last dimension from 0, equal values sharing the mean of theirs: (..., n) -> the same.

    The correlation of ranks is Spearman's. Every value is compared with every other: meant for up to some
    thousand.
    """
    one, other = values[..., :, None], values[..., None, :]
    below, equal = (one > other).sum(-1), (one == other).sum(-1)
    return (below + (equal - 1) / 2).to(values)


def top_overlap(a: Tensor, b: Tensor, count: int) -> Tensor:
    """The share of the `count` highest of a that are among the `count` highest of b; of random ones, count / n.

    Args:
        a, b: (..., n), of the same shape.
    """
    chosen = [torch.zeros_like(part).scatter(-1, part.topk(count).indices, 1.0) for part in (a, b)]
    return (chosen[0] * chosen[1]).sum(-1) / count


def _unit(values: Tensor) -> Tensor:
    """Without their mean, and of length 1; zeros where nothing varies beyond rounding."""
    centred = values - values.mean(-1, keepdim=True)
    length = centred.norm(dim=-1, keepdim=True)
    small = 4 * torch.finfo(centred.dtype).eps * values.norm(dim=-1, keepdim=True)
    return torch.where(length > small, centred / length, 0.0)


def _left(values: Tensor, given: Tensor) -> Tensor:
    """What is left of unit `values` without their part along the unit `given`; zeros where that is nothing but rounding."""
    left = values - (values * given).sum(-1, keepdim=True) * given
    return torch.where(left.norm(dim=-1, keepdim=True) > 1e-5, left, 0.0)
