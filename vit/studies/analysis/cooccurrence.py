"""What occurs together, and how much more often than by chance: counted in images, never read from a model.

Letters: n images, L patches, K labels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def patch_labels(labels: Tensor, grid_size: tuple[int, int], share: float = 0.0) -> Tensor:
    """The label that most of a patch's pixels have, the lowest of several: integers (n, H, W) -> int64 (n, L).

    A patch of which no label has at least this `share` of the pixels gets -1.
    """
    (rows, columns), (height, width) = grid_size, labels.shape[1:]
    patches = labels.long().view(-1, rows, height // rows, columns, width // columns)
    patches = patches.transpose(2, 3).flatten(3).flatten(1, 2)  # (n, L, pixels of a patch)
    counts = patches.new_zeros(*patches.shape[:2], int(patches.max()) + 1)
    most, label = counts.scatter_add_(2, patches, torch.ones_like(patches)).max(2)
    return torch.where(most >= share * patches.shape[2], label, -1)


def together_in_images(labels: Tensor, count: int) -> Tensor:
    """How much more often two labels are in one image than if each came by itself: `information` (K, K) of (n, L).

    A label of -1 is none.
    """
    there = torch.stack([(labels == label).any(1) for label in range(count)], dim=1).double()  # (n, K)
    images = there.sum(0)
    return information(there.T @ there, images[:, None] * images / len(labels))


def side_by_side(labels: Tensor, grid_size: tuple[int, int], count: int) -> Tensor:
    """How much more often two labels touch than if they were strewn at random: `information` (K, K) of (n, L).

    They touch left and right, or one above the other, on the grid of patches; a label of -1 is none.
    """
    grid = labels.unflatten(1, grid_size)
    pairs = [(grid[:, 1:], grid[:, :-1]), (grid[:, :, 1:], grid[:, :, :-1])]
    one, other = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
    known = (one >= 0) & (other >= 0)
    met = torch.bincount(one[known] * count + other[known], minlength=count**2).view(count, count).double()
    met = met + met.T
    ends = met.sum(0)
    return information(met, ends[:, None] * ends / met.sum().clamp(min=1))


def information(met: Tensor, expected: Tensor) -> Tensor:
    """Pointwise mutual information in bits (Church and Hanks 1990), drawn towards 0 where few meetings are expected.

    That is log2 of (met + 1) / (expected + 1): two rare things that never met may have had no occasion.
    """
    return ((met + 1) / (expected + 1)).log2()
