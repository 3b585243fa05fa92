"""The contrastive loss, which compares the images of a batch with each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Projector(nn.Sequential):
    """Map features (B, D) to (B, 128), where views are compared; discarded after training.

    As in SimCLR (Chen et al. 2020).

    Args:
        width: D.
    """

    def __init__(self, width: int):
        super().__init__(nn.Linear(width, 512), nn.BatchNorm1d(512), nn.GELU(), nn.Linear(512, 128))


def info_nce(projected: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Find each image's other view among all views of a batch (InfoNCE, van den Oord et al. 2018).

    Args:
        projected: (B, D); rows 2i and 2i + 1 are views of one image; at least two images.
        temperature: divides the cosine similarities.

    Returns:
        The cross-entropy, a scalar (0 is certainty, log(B - 1) guessing), and how often the other
        view is the likeliest.
    """
    # in float32: divided by the temperature, the rounding of bfloat16 would be large
    with torch.autocast(projected.device.type, enabled=False):
        unit = F.normalize(projected.float(), dim=1)
        logits = unit @ unit.T / temperature  # (B, B)
        # no view is its own partner
        logits.fill_diagonal_(-torch.inf)

    # rows 2i and 2i + 1 differ in their last bit
    partner = torch.arange(len(projected), device=projected.device) ^ 1
    accuracy = (logits.argmax(1) == partner).float().mean()
    return F.cross_entropy(logits, partner), accuracy
