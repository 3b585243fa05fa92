"""Which training images have labels, and which are held out to choose by: fixed by a seed, and spread over the classes."""

from __future__ import annotations

import torch
from torch import Tensor

from vit.data.draws import make_generator


def spread_over_classes(labels: Tensor, count: int, seed: int, purpose: str) -> Tensor:
    """Choose some of the images, of each class its share: bool (N,), `count` of them True.

    A larger count of the same seed and purpose holds all of a smaller one.

    Args:
        labels: int64 (N,).
        count: from 0 to N.
        seed: decides which.
        purpose: two purposes of one seed draw independently.
    """
    if not 0 <= count <= len(labels):
        raise ValueError(f"{count} of {len(labels)} images cannot be taken")
    # Rank each image within its class by chance, as a share of the class: from 0 to below 1.
    order = torch.randperm(len(labels), generator=make_generator(seed, purpose, 0))
    rank = torch.empty(len(labels))
    for label in labels.unique():
        members = order[labels[order] == label]
        rank[members] = (torch.arange(len(members)) + 0.5) / len(members)
    # Take the lowest ranks of all classes; where two are equal, the image drawn first.
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    chosen = sorted(range(len(labels)), key=lambda i: (float(rank[i]), int(place[i])))[:count]
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[chosen] = True
    return mask
