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


def info_nce(projected: Tensor, temperature: float, views: int = 2) -> tuple[Tensor, Tensor]:
    """Find an image's other views among all views of a batch (InfoNCE, van den Oord et al. 2018).

    Each of the other views is looked for by itself, among the views of all other images: the
    image's remaining views, which are right answers too, stand aside. The loss is the mean.

    Args:
        projected: (B, D); `views` neighbouring rows are views of one image; at least two images.
        temperature: divides the cosine similarities.
        views: V, of each image; two or more.

    Returns:
        The cross-entropy, a scalar (0 is certainty, log(B - V + 1) guessing), and how often the
        view that is looked for is the likeliest.
    """
    # in float32: divided by the temperature, the rounding of bfloat16 would be large
    with torch.autocast(projected.device.type, enabled=False):
        unit = F.normalize(projected.float(), dim=1)
        logits = unit @ unit.T / temperature  # (B, B)

    # rows of the same image, which are no wrong answers
    row = torch.arange(len(projected), device=projected.device)  # (B,)
    image = row // views
    same_image = image[:, None] == image  # (B, B)

    losses = []
    hits = []
    for shift in range(1, views):
        # the view `shift` places further, in a ring of the image's views
        partner = image * views + (row + shift) % views  # (B,)
        aside = same_image.scatter(1, partner[:, None], False)
        answers = logits.masked_fill(aside, -torch.inf)
        losses.append(F.cross_entropy(answers, partner))
        hits.append((answers.argmax(1) == partner).float().mean())
    return torch.stack(losses).mean(), torch.stack(hits).mean()
