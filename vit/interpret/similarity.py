"""What is near what: clusters of patches or tokens, and how alike groups of tokens are."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
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
    generator = torch.Generator(points.device).manual_seed(seed)
    centres = points[torch.randint(len(points), (1,), generator=generator, device=points.device)]
    distance = (points - centres).square().sum(1)  # (n,)
    while len(centres) < count and bool((distance > 0).any()):
        # Several at once where many are wanted: the beginning matters less then, and takes as long as all the rest.
        chosen = torch.multinomial(distance, max(1, min(count - len(centres), count // 16)), True, generator=generator)
        added = points[chosen].unique(dim=0)
        centres = torch.cat([centres, added])  # (k so far, P)
        # Not by a matrix product, in which equal points are not exactly 0 apart, and would be centres twice.
        apart = torch.cdist(points, added, compute_mode="donot_use_mm_for_euclid_dist")
        distance = torch.minimum(distance, apart.square().amin(1))
    nearest = torch.cdist(points, centres).argmin(1)
    for _ in range(rounds):
        members = nearest.bincount(minlength=len(centres)).to(points)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(members[:, None] > 0, sums / members.clamp(min=1)[:, None], centres)
        before, nearest = nearest, torch.cdist(points, centres).argmin(1)
        if torch.equal(before, nearest):
            break
    return centres, nearest


def group_means(batches: Iterable[Tensor], labels: Tensor, count: int) -> Tensor:
    """The mean token of each group of patches, beyond what is typical of the places where they lie; in two halves.

    From every token the mean token of its place is taken away, over all images. Even and odd images are averaged apart, so
    that two means can be compared which have no image in common.

    Args:
        batches: (S, B, L, D), S tokens of each patch, of all images one after another.
        labels: int64 (n, L), the group of each patch from 0, -1 for none.
        count: K, of groups.

    Returns:
        float64 (S, 2, K, D); nan where a half has no patch of a group.
    """
    half = torch.arange(len(labels))[:, None] % 2
    groups = torch.where(labels < 0, 2 * count, labels + count * half)  # (n, L), the last for patches of no group
    sums, places, done = [], [], 0
    for tokens in batches:
        into = groups[done : done + tokens.shape[1]].flatten().to(tokens.device)
        empty = tokens.new_zeros(len(tokens), 2 * count + 1, tokens.shape[3])
        sums.append(empty.index_add_(1, into, tokens.flatten(1, 2))[:, :-1].cpu().double())
        places.append(tokens.sum(1).cpu().double())
        done += tokens.shape[1]
    typical = torch.stack(places).sum(0) / done  # (S, L, D)
    lie = torch.stack([torch.bincount(column, minlength=2 * count + 1)[:-1] for column in groups.T], dim=1).double()
    beyond = torch.stack(sums).sum(0) - lie @ typical  # (S, 2 K, D)
    return (beyond / lie.sum(1)[:, None]).unflatten(1, (2, count))


def group_cosines(means: Tensor) -> Tensor:
    """The cosine between any two groups, each about the mean of all groups, across the halves of `group_means`.

    Args:
        means: (S, 2, K, D).

    Returns:
        (S, K, K), symmetric; on the diagonal, how well the two halves agree on a group.
    """
    unit = F.normalize(means - means.mean(2, keepdim=True), dim=-1)
    cosines = unit[:, 0] @ unit[:, 1].transpose(1, 2)
    return (cosines + cosines.transpose(1, 2)) / 2
