"""How well hidden patches are filled in, compared with two baselines that learn nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vit.data.draws import make_generator
from vit.device import Compute
from vit.encoder import eval_mode
from vit.evaluate.features import EvaluationError, Prepare, batches
from vit.inputs import Images, Normalization, to_float
from vit.mae import MaskedAutoencoder, masked_patch_loss
from vit.masking import Mask, make_mask
from vit.patches import patchify, unpatchify

TEST_SEED = (
    20_220_612  # of the fixed test mask, which hides the same patches for every run and model
)


def fixed_mask(
    kind: str, start: int, batch: int, grid_size: tuple[int, int], mask_ratio: float
) -> Mask:
    """Return the mask of test images `start` to `start + batch`, which is always the same."""
    return make_mask(
        kind, batch, grid_size, mask_ratio, make_generator(TEST_SEED, "test mask", start)
    )


@torch.no_grad()
def score_reconstruction(
    model: MaskedAutoencoder,
    images: Images,
    prepare: Prepare,
    kind: str,
    mask_ratio: float,
    compute: Compute,
    batch_size: int = 256,
) -> dict[str, float]:
    """Return the losses over the hidden patches of test images, under the fixed test mask.

    All are in the model's own target space, and so comparable with each other. An image's mask depends on `batch_size`,
    which is part of the protocol.

    Returns:
        The model's "loss", and those of two baselines: "mean_of_visible_patches" (per image) and "nearest_visible_patch".

    Raises:
        EvaluationError: the loss is nan or infinite.
    """
    grid_size = model.encoder.patch_embed.grid_size
    sums, start = torch.zeros(3, dtype=torch.float64), 0
    for inputs in batches(
        images, prepare, compute, f"{kind} masks, {mask_ratio:.0%} hidden", batch_size
    ):
        mask = fixed_mask(kind, start, len(inputs), grid_size, mask_ratio).to(compute.device)
        with eval_mode(model), compute.autocast():
            prediction = model(inputs, mask)  # (B, L, P)
        targets = model.targets(inputs)
        guesses = (
            prediction,
            mean_visible(targets, mask),
            nearest_visible(targets, mask, grid_size),
        )
        losses = [masked_patch_loss(guess, targets, mask.mask).item() for guess in guesses]
        sums += torch.tensor(losses, dtype=torch.float64) * len(inputs)
        start += len(inputs)
    if not bool(sums.isfinite().all()):
        raise EvaluationError(
            "the loss on hidden patches is nan or infinite: these weights cannot fill them in"
        )
    names = ("loss", "mean_of_visible_patches", "nearest_visible_patch")
    return dict(zip(names, (sums / len(images)).tolist(), strict=True))


def mean_visible(targets: Tensor, mask: Mask) -> Tensor:
    """Return the mean of each image's visible patches for every patch: (B, L, P) -> (B, L, P)."""
    visible = 1 - mask.mask[:, :, None]
    return ((targets * visible).sum(1, keepdim=True) / visible.sum(1, keepdim=True)).expand_as(
        targets
    )


def nearest_visible(targets: Tensor, mask: Mask, grid_size: tuple[int, int]) -> Tensor:
    """Return the nearest visible patch for every patch, of equally near ones the first: (B, L, P) -> (B, L, P)."""
    distance = grid_distances(grid_size, targets.device)  # (L, L)
    few = max(
        2**24 // distance.numel(), 1
    )  # images at a time: a whole batch's (B, L, L) may be gigabytes
    hidden = [part[:, None, :] > 0 for part in mask.mask.split(few)]
    nearest = torch.cat(
        [distance.masked_fill(part, torch.inf).argmin(-1) for part in hidden]
    )  # (B, L)
    return targets.gather(1, nearest[:, :, None].expand_as(targets))


def grid_distances(grid_size: tuple[int, int], device: torch.device) -> Tensor:
    """Return the distance in patches between any two patches of a grid: float32 (L, L)."""
    rows, columns = (torch.arange(n, device=device, dtype=torch.float32) for n in grid_size)
    places = torch.cartesian_prod(rows, columns)  # (L, 2)
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")


@dataclass(frozen=True)
class Reconstruction:
    """Pictures of a reconstruction, all float32 (B, C, H, W) from 0 to 1.

    Attributes:
        original: the input.
        filled: the visible patches as they were, the hidden ones as the model fills them in.
        hidden: bool (B, 1, H, W), the pixels that the model did not see.
        from_normalized: whether the model predicts normalised patches, whose brightness and contrast are estimated.
    """

    original: Tensor
    filled: Tensor
    hidden: Tensor
    from_normalized: bool


@torch.no_grad()
def reconstruct(
    model: MaskedAutoencoder, images: Tensor, normalize: Normalization, mask: Mask, compute: Compute
) -> Reconstruction:
    """Fill in the hidden patches of some images, as pictures.

    A model that predicts normalised patches does not predict their brightness and contrast. Taking the true patch's would
    be cheating, so they are estimated from the visible patches, weighted by 1 / distance^2.
    """
    embed = model.encoder.patch_embed
    original = to_float(images.to(compute.device), embed.image_size)
    inputs, mask = normalize(original), mask.to(compute.device)
    with eval_mode(model), compute.autocast():
        prediction = model(inputs, mask).float()
    patches = patchify(inputs, embed.patch_size)  # (B, L, P)
    if model.norm_pix_loss:
        mean, deviation = estimate_statistics(patches, mask, embed.grid_size)
        prediction = prediction * deviation + mean
    hidden = mask.mask[:, :, None]
    filled = unpatchify(
        torch.where(hidden > 0, prediction, patches), embed.patch_size, embed.grid_size
    )
    hidden_pixels = (
        unpatchify(hidden.expand_as(patches), embed.patch_size, embed.grid_size)[:, :1] > 0
    )
    filled = normalize.invert(filled).clamp(0, 1)
    return Reconstruction(original.cpu(), filled.cpu(), hidden_pixels.cpu(), model.norm_pix_loss)


def estimate_statistics(
    patches: Tensor, mask: Mask, grid_size: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Estimate mean and deviation of every patch from the visible ones around it: (B, L, P) -> twice (B, L, 1)."""
    statistics = torch.stack([patches.mean(-1), patches.std(-1)], dim=-1)  # (B, L, 2)
    closeness = 1 / grid_distances(grid_size, patches.device).square().clamp(min=0.25)
    weights = closeness * (1 - mask.mask[:, None, :])  # (B, L, L)
    estimate = weights @ statistics / weights.sum(-1, keepdim=True)
    return estimate[..., :1], estimate[..., 1:]
