"""The loss beside the filling in of patches: it compares the images of a batch with each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Projector(nn.Sequential):
    """Features (B, D) -> (B, 128), in which views are compared, and thrown away with training (SimCLR, Chen et al. 2020).

    Args:
        width: D.
    """

    def __init__(self, width: int):
        super().__init__(nn.Linear(width, 512), nn.BatchNorm1d(512), nn.GELU(), nn.Linear(512, 128))


def info_nce(projected: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Find the other view of each image among those of all images of the batch (InfoNCE, van den Oord et al. 2018).

    Args:
        projected: (B, D), of which rows 2i and 2i + 1 are views of one image; at least two images.
        temperature: what the cosines are divided by.

    Returns:
        The cross-entropy, a scalar from 0 (found with certainty; log(B - 1) is guessing), and how often the other view is the
        likeliest.
    """
    with torch.autocast(projected.device.type, enabled=False):
        unit = F.normalize(projected.float(), dim=1)
        logits = (unit @ unit.T / temperature).fill_diagonal_(-torch.inf)  # (B, B); no view is its own partner
    partner = torch.arange(len(projected), device=projected.device) ^ 1
    return F.cross_entropy(logits, partner), (logits.argmax(1) == partner).float().mean()
