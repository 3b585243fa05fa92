"""What becomes of a patch's token: in the residual stream, in other images, on average over its kind.

Letters: S stages of the residual stream (before the first block and after each), n or B images, L patches, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.encoder import VisionTransformer, eval_mode
from vit.patches import patchify, unpatchify

BATCH = 250


@torch.no_grad()
def residual_stream(encoder: VisionTransformer, inputs: Tensor, alone: bool = False) -> Tensor:
    """Return the patch tokens of images (B, C, H, W) before the first block and after each: (S, B, L, D), not normed.

    With `alone`, each patch is seen by itself, at its place, as if all others were hidden.
    """
    prefix = encoder.num_prefix_tokens
    with eval_mode(encoder):
        x = encoder.embed(encoder.patchify(inputs))  # (B, prefix + L, D)
        batch, patches = len(x), x.shape[1] - prefix
        if alone:
            heads = x[:, None, :prefix].expand(-1, patches, -1, -1)  # (B, L, prefix, D)
            x = torch.cat([heads, x[:, prefix:, None]], dim=2).flatten(0, 1)  # (B L, prefix + 1, D)
        found = [x[:, prefix:]]
        for block in encoder.blocks:
            x = block(x)
            found.append(x[:, prefix:])
    return torch.stack(found).unflatten(1, (batch, -1)).flatten(2, 3)


def paste(inputs: Tensor, patches: Tensor, places: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Return images (B, C, H, W) with one patch each replaced by `patches` (B, P), at `places` (B,) in row order."""
    (height, width), (p, q) = inputs.shape[-2:], patch_size
    cut = patchify(inputs, patch_size).clone()  # (B, L, P)
    cut[torch.arange(len(cut)), places] = patches
    return unpatchify(cut, patch_size, (height // p, width // q))


def pasted_tokens(encoder: VisionTransformer, inputs: Tensor, patches: Tensor, places: Tensor) -> Tensor:
    """Return the tokens (S, B, D) of patches that are pasted into images; arguments as in `paste`, normalised."""
    found = []
    for part in torch.arange(len(inputs)).split(BATCH):
        images = paste(inputs[part], patches[part], places[part], encoder.patch_embed.patch_size)
        found.append(residual_stream(encoder, images)[:, torch.arange(len(part)), places[part]])
    return torch.cat(found, dim=1)


def variance_shares(values: Tensor, factors: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """Split the variance of vectors (levels of the first factor, of the second, ..., D) into shares, which sum to one.

    A full factorial design (Fisher 1925): ("patch",) is what the mean over all else varies by; ("patch", "place") what the
    two do together beyond the sum of what each does.
    """
    values = values.cpu().double()  # not every device has float64
    axes = range(len(factors))
    terms: dict[tuple[int, ...], Tensor] = {(): values.mean(tuple(axes), keepdim=True)}
    for size in range(1, len(factors) + 1):
        for chosen in combinations(axes, size):
            averaged = tuple(axis for axis in axes if axis not in chosen)
            mean = values.mean(averaged, keepdim=True) if averaged else values
            smaller = [term for others, term in terms.items() if set(others) < set(chosen)]
            terms[chosen] = mean - torch.stack([term.expand_as(mean) for term in smaller]).sum(0)
    whole = (values - terms.pop(())).square().sum().clamp(min=torch.finfo(values.dtype).tiny)
    combined = values[..., 0].numel()
    return {
        tuple(factors[axis] for axis in chosen): float(term.square().sum() * (combined / term[..., 0].numel()) / whole)
        for chosen, term in terms.items()
    }


def group_means(batches: Iterable[Tensor], labels: Tensor, count: int) -> Tensor:
    """Return the mean token of K groups of patches, beyond the mean token of their places: (S, 2, K, D).

    Even and odd images are averaged apart, so that two means have no image in common; nan where a half has no patch of a
    group. The batches (S, B, L, D) are of all images in order; the labels (n, L), -1 for none.
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
    """Return the cosine between any two groups, about the mean of all, across the halves of `group_means`: (S, K, K)."""
    unit = F.normalize(means - means.mean(2, keepdim=True), dim=-1)
    cosines = unit[:, 0] @ unit[:, 1].transpose(1, 2)
    return (cosines + cosines.transpose(1, 2)) / 2
