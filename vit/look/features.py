"""Measures of patch features: their main directions as colours, and tokens that are no objects.

Letters: B images, N tokens (prefix tokens, then patches), L patches, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.errors import require_finite

# The fraction of each component's values at either end that gets the same colour
CLIPPED = 0.01
# A normal distribution's standard deviation, in median absolute deviations
DEVIATIONS = 1.4826


def pca_colours(features: Tensor) -> Tensor:
    """Return a colour for each patch: patches with similar features get similar colours.

    Red, green and blue are the first three principal components over all patches of all images, as
    in DINOv2's figures (Oquab et al. 2024), so images are compared only within one call.

    Args:
        features: (B, L, D), patches of a last layer, e.g. those of `embed(..., patches=True)`.

    Returns:
        float32 (B, L, 3) on the CPU, from 0 to 1. A component that does not exist is 0.5
        everywhere.

    Raises:
        TrainingError: the features are not finite.
    """
    require_finite("the features", features)

    # In double precision, so that a weak third component is no rounding; on the CPU, because
    # Apple's GPUs have none
    rows = features.detach().flatten(0, 1).cpu().double()  # (B L, D)
    rows = rows - rows.mean(0)
    directions, values, _ = torch.linalg.svd(rows, full_matrices=False)
    exists = values > 1e-9 * values[:1].clamp(min=1e-300)
    projected = (directions * values * exists)[:, :3]  # (B L, up to 3)
    projected = F.pad(projected, (0, 3 - projected.shape[1]))  # (B L, 3)

    # A component's sign is arbitrary: the patch furthest from the mean is bright
    furthest = projected.gather(0, projected.abs().argmax(0, keepdim=True))  # (1, 3)
    projected = projected * torch.where(furthest < 0, -1.0, 1.0)

    # From 0 to 1, without the few that would leave the others pale
    low = projected.quantile(CLIPPED, dim=0)
    high = projected.quantile(1 - CLIPPED, dim=0)
    spread = high - low
    colours = (projected - low) / spread.where(spread > 0, 1.0)
    colours = colours.where(spread > 0, 0.5).clamp(0, 1)
    return colours.float().unflatten(0, features.shape[:2])


def artifact_scores(tokens: Tensor, num_prefix_tokens: int) -> Tensor:
    """Return how far the norm of each patch's token lies above the median, in deviations.

    Large models put a few tokens of extreme length on patches without content and keep facts about
    the whole image there; in maps of attention they look like objects (Darcet et al. 2024, "Vision
    transformers need registers"). Lengths spread around their median by about 1, so such tokens
    stand out by 10 and more.

    Args:
        tokens: (B, N, D), after a layer, before the model's last norm, which makes lengths equal.
        num_prefix_tokens: class token and registers, which are left out.

    Returns:
        float32 (B, L) on the CPU: (length - median) / deviation, over all patches of all images;
        the deviation is 1.4826 times the median absolute deviation. If half of the lengths or more
        are equal to the median, 0 for these, and infinity or minus infinity for the others.
    """
    # In double precision too
    lengths = tokens.detach()[:, num_prefix_tokens:].cpu().double().norm(dim=-1)  # (B, L)
    above = lengths - lengths.median()
    # Rounding is no deviation
    above = above.where(above.abs() > 1e-6 * lengths.median(), 0.0)
    deviation = DEVIATIONS * above.abs().median()
    scores = above / deviation
    return scores.where(above != 0, 0.0).float()
