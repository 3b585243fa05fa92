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
    """How one relation goes with N others."""

    gains: Tensor  # (N,), rise of the one per standard deviation of each other
    joint: Tensor  # (N,), the same, in one fit by all of them
    correlations: Tensor  # (N,), of what the relations held constant leave
    spread: Tensor  # (), standard deviation of what they leave of the one


def association(one: Tensor, others: Sequence[Tensor], given: Sequence[Tensor] = ()) -> Association:
    """Return how a symmetric relation (K, K) goes with others, with those `given` held constant.

    That is, by linear fits to the pairs of different things.
    """
    count = len(one)
    upper = torch.triu_indices(count, count, 1)
    pairs = torch.stack(
        [values[upper[0], upper[1]].double() for values in (one, *others, *given)]
    )  # (1 + N + given, pairs)

    # What linear fits by a constant and by `given` leave
    raw = pairs[: 1 + len(others)]
    fitted = torch.cat([pairs.new_ones(1, pairs.shape[1]), pairs[1 + len(others) :]])
    _, sizes, rows = torch.linalg.svd(fitted, full_matrices=False)
    explained = rows[sizes > 1e-9 * sizes[0]]
    left = raw - (raw @ explained.T) @ explained
    # If they explain all of a relation, the rest is rounding and says nothing
    deviations = raw.std(1, correction=0)
    left[left.std(1, correction=0) <= 1e-9 * deviations] = 0

    left_of_one = left[0]
    left_of_others = left[1:]
    slopes = [torch.linalg.pinv(other[:, None]) @ left_of_one for other in left_of_others]
    joint_slopes = torch.linalg.pinv(left_of_others.T) @ left_of_one
    return Association(
        torch.cat(slopes) * deviations[1:],
        joint_slopes * deviations[1:],
        correlation(left_of_one, left_of_others),
        left_of_one.std(correction=0),
    )
