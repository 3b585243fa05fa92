"""What makes tokens differ, where everything is tried with everything else: the variance split exactly."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor


def variance_shares(values: Tensor, factors: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """The shares of the variance that each factor makes by itself, and that only arise from several together.

    The classical split of a full factorial design (Fisher 1925), summed over the dimensions of the vectors: its terms are at
    right angles to each other, so the shares sum to one. ("patch",) is what the mean over all else still varies by;
    ("patch", "place") what the two do together beyond the sum of what each does.

    Args:
        values: (levels of the first factor, of the second, ..., D), one vector for every combination.
        factors: their names.

    Returns:
        For every set of factors, in the order of `factors`, the smaller sets first, a share from 0 to 1; all 0 where nothing
        varies.
    """
    values = values.cpu().double()  # not every device has float64
    axes = range(len(factors))
    terms: dict[tuple[int, ...], Tensor] = {(): values.mean(tuple(axes), keepdim=True)}
    for size in range(1, len(factors) + 1):
        for chosen in combinations(axes, size):
            averaged = tuple(axis for axis in axes if axis not in chosen)
            mean = values.mean(averaged, keepdim=True) if averaged else values
            smaller = [term for others, term in terms.items() if set(others) < set(chosen)]
            terms[chosen] = mean - torch.stack([term.expand_as(mean) for term in smaller]).sum(0)
    whole = (values - terms.pop(())).square().sum().clamp(min=torch.finfo(values.dtype).tiny)
    combined = values[..., 0].numel()
    return {
        tuple(factors[axis] for axis in chosen): float(term.square().sum() * (combined / term[..., 0].numel()) / whole)
        for chosen, term in terms.items()
    }
