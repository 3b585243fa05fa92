"""What is near what: clusters of patches or tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def clusters(points: Tensor, count: int, seed: int = 0, rounds: int = 25) -> tuple[Tensor, Tensor]:
    """Centres that lie near all points: k-means (Lloyd 1982), begun with k-means++ (Arthur and Vassilvitskii 2007).

    Args:
        points: float32 (n, P).
        count: of centres; fewer where there are fewer different points.
        seed: of the beginning.
        rounds: at most.

    Returns:
        Centres (k, P), and for each point the number of its centre, int64 (n,).
    """
    generator = torch.Generator().manual_seed(seed)
    centres = points[torch.randint(len(points), (1,), generator=generator)]
    distance = (points - centres).square().sum(1)  # (n,)
    while len(centres) < count and bool((distance > 0).any()):
        # Several at once where many are wanted: the beginning matters less then, and takes as long as all the rest.
        chosen = torch.multinomial(distance, max(1, min(count - len(centres), count // 16)), True, generator=generator)
        added = points[chosen.unique()]
        centres = torch.cat([centres, added])  # (k so far, P)
        distance = torch.minimum(distance, torch.cdist(points, added).square().amin(1))
    nearest = torch.cdist(points, centres).argmin(1)
    for _ in range(rounds):
        members = nearest.bincount(minlength=len(centres)).to(points)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(members[:, None] > 0, sums / members.clamp(min=1)[:, None], centres)
        before, nearest = nearest, torch.cdist(points, centres).argmin(1)
        if torch.equal(before, nearest):
            break
    return centres, nearest
