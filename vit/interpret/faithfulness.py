"""Whether a map is faithful: what happens to a score as the patches of a map are taken or given.

Letters: B images, C channels, H x W pixels, S steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vit.errors import AttentionError
from vit.interpret.gradients import scores_of


class Faithfulness(NamedTuple):
    """The curves of deletion and insertion (Petsiuk et al. 2018, RISE), and the areas below them.

    A map that names the patches that matter has a small area of deletion and a large one of
    insertion. Only maps of the same model, images and baseline can be compared.

    Attributes:
        shares: (S + 1,), the share of the patches deleted or inserted, from 0 to 1.
        deletion: (B, S + 1), the score as the highest patches are deleted first.
        insertion: (B, S + 1), the score as the highest patches are inserted first.
        deletion_area: (B,), the mean score along the curve.
        insertion_area: (B,).
    """

    shares: Tensor
    deletion: Tensor
    insertion: Tensor
    deletion_area: Tensor
    insertion_area: Tensor


@torch.no_grad()
def faithfulness(
    run: Callable[[Tensor], Tensor],
    inputs: Tensor,
    maps: Tensor,
    score: int | Callable[[Tensor], Tensor],
    steps: int = 32,
    baseline: Tensor | None = None,
) -> Faithfulness:
    """Delete and insert the patches of each image in the order of its map, the highest first.

    Args:
        run: from inputs to a result, twice per step; a model in eval mode.
        inputs: (B, C, H, W), normalised.
        maps: (B, rows, columns), of any scale; only their order counts. Of equal patches, the first
            in reading order comes first.
        score: a class, for its probability, if `run` returns logits (B, classes); else a function
            from what it returns to one score per image (B,).
        steps: S, of about the same number of patches each; at most as many as there are patches.
        baseline: what stands where a patch is deleted, or not yet inserted: an image that
            broadcasts to the inputs, e.g. these blurred; None for 0, the mean colour.

    Raises:
        AttentionError: shapes do not fit, a map is nan, or there is no step or class.
    """
    # What can be ordered
    if maps.ndim != 3 or inputs.ndim != 4 or len(maps) != len(inputs):
        raise AttentionError(
            f"maps are (images, rows, columns), one per image; got {tuple(maps.shape)} for inputs "
            f"of {tuple(inputs.shape)}"
        )
    rows, columns = maps.shape[1:]
    height, width = inputs.shape[2:]
    if height % rows or width % columns:
        raise AttentionError(
            f"a map of {rows} x {columns} patches does not divide {height} x {width} pixels"
        )
    if bool(maps.isnan().any()):
        raise AttentionError("the maps are nan in places, as under a mask: they have no order")
    if steps < 1:
        raise AttentionError(f"steps are at least 1, got {steps}")

    # The rank of each patch, and how many patches are taken after each step
    patches = rows * columns
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)  # (B, L)
    ranks = order.argsort(dim=1).to(inputs.device)
    counts = torch.linspace(0, patches, min(steps, patches) + 1).round().to(inputs.device)
    if baseline is None:
        baseline = torch.zeros((), device=inputs.device)
    baseline = baseline.to(inputs).expand_as(inputs)

    # The score as each patch is one or the other
    deletion = []
    insertion = []
    for count in counts:
        taken = (ranks < count).view(-1, 1, rows, columns)
        taken = taken.repeat_interleave(height // rows, 2).repeat_interleave(width // columns, 3)
        deletion.append(_scores(run(torch.where(taken, baseline, inputs)), score, len(inputs)))
        insertion.append(_scores(run(torch.where(taken, inputs, baseline)), score, len(inputs)))
    shares = counts.cpu() / patches
    deleted = torch.stack(deletion, dim=1).float().cpu()
    inserted = torch.stack(insertion, dim=1).float().cpu()
    return Faithfulness(
        shares=shares,
        deletion=deleted,
        insertion=inserted,
        deletion_area=torch.trapezoid(deleted, shares),
        insertion_area=torch.trapezoid(inserted, shares),
    )


def _scores(result: Tensor, score: int | Callable[[Tensor], Tensor], images: int) -> Tensor:
    """Return one score per image (B,): the probability of a class, or what a function says."""
    scores = scores_of(result, score, images)
    if callable(score):
        return scores
    return result.float().softmax(dim=1)[:, score]
