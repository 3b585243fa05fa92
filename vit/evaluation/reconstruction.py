"""How well masked patches are reconstructed, compared with two baselines that learn nothing."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vit.data.draws import make_generator
from vit.device import Compute
from vit.errors import require_finite
from vit.evaluation.features import Prepare, batches
from vit.inputs import Images
from vit.isolation import eval_mode
from vit.mae import MaskedAutoencoder, masked_patch_loss
from vit.masking import Mask, make_mask, take
from vit.patches import grid_distances, patchify, unpatchify

TEST_SEED = 20_220_612
"""Of the fixed test mask, which masks the same patches for every run and model."""


def fixed_mask(
    kind: str, start: int, batch: int, grid_size: tuple[int, int], mask_ratio: float
) -> Mask:
    """Return the mask of test images `start` to `start + batch`, which is always the same."""
    generator = make_generator(TEST_SEED, "test mask", start)
    return make_mask(kind, batch, grid_size, mask_ratio, generator)


@torch.no_grad()
def score_reconstruction(
    model: MaskedAutoencoder,
    images: Images,
    prepare: Prepare,
    kind: str,
    mask_ratio: float,
    compute: Compute,
) -> dict[str, float]:
    """Return the mean losses over the masked patches of test images, under the fixed test mask.

    All are in the model's own target space, and so comparable with each other.

    Returns:
        The model's "loss", and those of two baselines that learn nothing:
        "mean_of_visible_patches" (of the image) and "nearest_visible_patch".
    """
    title = f"{kind} masks, {mask_ratio:.0%} masked"
    grid_size = model.encoder.patch_embed.grid_size
    parts = []
    start = 0
    for inputs in batches(images, prepare, compute, title):
        mask = fixed_mask(kind, start, len(inputs), grid_size, mask_ratio).to(compute.device)
        with eval_mode(model), compute.autocast():
            prediction = model(inputs, mask)  # (B, L, P)
        targets = model.targets(inputs)  # (B, L, P)

        # what the model fills in, and the guesses
        guesses = (
            prediction,
            mean_visible(targets, mask),
            nearest_visible(targets, mask, grid_size),
        )
        of_batch = [masked_patch_loss(guess, targets, mask.mask, dim=1) for guess in guesses]
        parts.append(torch.stack(of_batch).cpu())  # (3, B)
        start += len(inputs)

    losses = torch.cat(parts, dim=1)  # (3, N)
    require_finite("the losses on masked patches", losses)
    # in float64, because there may be many images
    loss, mean, nearest = [float(values.mean()) for values in losses.double()]
    return {"loss": loss, "mean_of_visible_patches": mean, "nearest_visible_patch": nearest}


def mean_visible(targets: Tensor, mask: Mask) -> Tensor:
    """Return the mean of each image's visible patches: (B, L, P) -> (B, 1, P)."""
    visible = 1 - mask.mask[:, :, None]  # (B, L, 1)
    return (targets * visible).sum(1, keepdim=True) / visible.sum(1, keepdim=True)


def nearest_visible(targets: Tensor, mask: Mask, grid_size: tuple[int, int]) -> Tensor:
    """Return for every patch the nearest visible one, of equally near ones the first.

    Args:
        targets: (B, L, P).
        mask: of the same B images.
        grid_size: (rows, columns), whose product is L.

    Returns:
        (B, L, P).
    """
    distance = grid_distances(grid_size, targets.device)  # (L, L)
    # some images at a time: a batch's distances (B, L, L) may be gigabytes
    at_once = max(2**24 // distance.numel(), 1)
    parts = []
    for part in mask.mask.split(at_once):
        masked = part[:, None, :] > 0  # (b, 1, L)
        parts.append(distance.masked_fill(masked, torch.inf).argmin(-1))  # (b, L)
    nearest = torch.cat(parts)  # (B, L)
    return take(targets, nearest)


@torch.no_grad()
def reconstruct(model: MaskedAutoencoder, images: Tensor, mask: Mask) -> Tensor:
    """Reconstruct the masked patches of some images, as images to look at.

    A model that predicts normalised patches does not predict their brightness and contrast. Taking
    the true patch's would be cheating, so they are estimated from the visible patches, weighted by
    1 / distance^2.

    Args:
        model: trained or loaded: its `origin` prepares the images, whole.
        images: uint8 (B, C, h, w).
        mask: of these images.

    Returns:
        float32 (B, C, H, W) from 0 to 1, on the CPU: the visible patches as they were, the masked
        ones as the model predicts them.
    """
    embed = model.encoder.patch_embed
    device = next(model.parameters()).device
    origin = replace(model.origin, crop_share=1.0)
    inputs = origin.inputs(images.to(device))
    mask = mask.to(device)
    with eval_mode(model):
        prediction = model(inputs, mask)  # (B, L, P)

    # back from the model's target space to that of its input
    patches = patchify(inputs, embed.patch_size)  # (B, L, P)
    if model.norm_pix_loss:
        mean, deviation = estimate_statistics(patches, mask, embed.grid_size)
        prediction = prediction * deviation + mean

    # visible patches and predictions, put together as an image
    masked = mask.mask[:, :, None] > 0  # (B, L, 1)
    filled = torch.where(masked, prediction, patches)
    filled = unpatchify(filled, embed.patch_size, embed.grid_size)  # (B, C, H, W)
    return model.origin.normalize.invert(filled).clamp(0, 1).cpu()


def estimate_statistics(
    patches: Tensor, mask: Mask, grid_size: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Estimate mean and deviation of every patch from the visible ones around it.

    Args:
        patches: (B, L, P); masked ones are not used.
        mask: of the same B images.
        grid_size: (rows, columns), whose product is L.

    Returns:
        The means and the deviations, each (B, L, 1).
    """
    statistics = torch.stack([patches.mean(-1), patches.std(-1)], dim=-1)  # (B, L, 2)

    # weights of the visible patches; a patch itself counts as half a patch away
    distance = grid_distances(grid_size, patches.device)  # (L, L)
    inverse_square = 1 / distance.square().clamp(min=0.25)
    weights = inverse_square * (1 - mask.mask[:, None, :])  # (B, L, L)
    estimate = weights @ statistics / weights.sum(-1, keepdim=True)  # (B, L, 2)
    return estimate[..., :1], estimate[..., 1:]
