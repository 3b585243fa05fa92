"""What a hidden patch's reconstruction rests on, by attention and by taking visible patches away; what heads are like.

Letters: B batch, L patches, K visible patches, J hidden patches that are asked about, N tokens (prefix + L or K).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from vit.attention import MultiHeadSelfAttention
from vit.encoder import eval_mode
from vit.interpret.capture import AttentionMaps
from vit.interpret.layers import AttentionError, intercept_attention
from vit.interpret.measures import attention_entropy, attention_rollout, relevance
from vit.mae import MaskedAutoencoder
from vit.masking import Mask, mask_from_noise
from vit.patches import patchify, unpatchify


class Effects(NamedTuple):
    """What happens to each patch's prediction when a visible patch is taken away, (B, L, K) each."""

    change: Tensor  # mean squared
    error: Tensor  # growth of the mean squared error


@torch.no_grad()
def removal_effects(
    model: MaskedAutoencoder, inputs: Tensor, mask: Mask, how: Literal["left out", "mean patch"] = "left out"
) -> Effects:
    """Take away each visible patch of images (B, C, H, W) in turn: hide it as well, or put the visible ones' mean there."""
    embed, targets = model.encoder.patch_embed, model.targets(inputs)
    patches = patchify(inputs, embed.patch_size)  # (B, L, P)
    visible = 1 - mask.mask[:, :, None]
    mean = (patches * visible).sum(1, keepdim=True) / visible.sum(1, keepdim=True)  # (B, 1, P)
    changes, errors = [], []
    with eval_mode(model):
        whole = model(inputs, mask)  # (B, L, P)
        for number in range(mask.ids_keep.shape[1]):
            if how == "left out":
                found = model(inputs, hide_one_more(mask, number))
            else:
                place = mask.ids_keep[:, number, None, None].expand_as(mean)
                found = model(unpatchify(patches.scatter(1, place, mean), embed.patch_size, embed.grid_size), mask)
            changes.append((found - whole).square().mean(-1))
            errors.append((found - targets).square().mean(-1) - (whole - targets).square().mean(-1))
    return Effects(torch.stack(changes, -1), torch.stack(errors, -1))


def hide_one_more(mask: Mask, number: int) -> Mask:
    """Return the mask that also hides the visible patch at `number` of `ids_keep`."""
    visible = mask.ids_keep.shape[1]
    noise = mask.ids_restore.float()
    return mask_from_noise(noise.masked_fill(noise == number, visible - 0.5), visible - 1)


ATTENTION, GRADIENT = "attention, last decoder layer", "gradient × attention, decoder"


def attended_patches(model: MaskedAutoencoder, inputs: Tensor, mask: Mask, hidden: Tensor) -> dict[str, Tensor]:
    """Return how much attention gives visible patches in filling in hidden ones (B, J): (B, J, K) by name, in mask order.

    `ATTENTION` is that of the last decoder layer; `GRADIENT` is relevance (Chefer, Gur and Wolf 2021) for the patch's error.
    """
    # Attention of the decoder, and the rollout through decoder and encoder
    prefix, depth = model.encoder.num_prefix_tokens, len(model.encoder.blocks)
    every = torch.arange(len(inputs), device=inputs.device)
    visible = prefix + mask.ids_keep[:, None].expand(-1, hidden.shape[1], -1)  # (B, J, K), as tokens of the decoder
    at = (every[:, None, None], prefix + hidden[:, :, None], visible)  # of (B, N, N): (B, J, K)
    with eval_mode(model), torch.no_grad(), AttentionMaps(model) as maps:
        model(inputs, mask)
    layers = [maps.weights[number] for number in sorted(maps.weights)]
    found = {ATTENTION: layers[-1].mean(1)[at]}
    decoder = attention_rollout(layers[depth:])
    if len(layers) - depth > 1:  # of one layer, these rank patches alike
        found["attention, mean of decoder layers"] = torch.stack(layers[depth:]).mean((0, 2))[at]
        found["rollout, decoder"] = decoder[at]
    seen = torch.cat([torch.arange(prefix, device=inputs.device).expand(*visible.shape[:2], -1), visible], -1)
    came = decoder[at[0], at[1], seen] @ attention_rollout(layers[:depth])  # (B, J, prefix + K)
    found["rollout, encoder and decoder"] = came[..., prefix:]

    # Relevance, patch by patch
    rests = []
    for patch in hidden.unbind(1):
        score = partial(_right_at, targets=model.targets(inputs), patch=patch)
        rests.append(relevance(model.decoder, inputs, score, lambda x: model(x, mask))[every, prefix + patch])
    found[GRADIENT] = torch.stack(rests, 1).gather(2, visible)
    return found


def _right_at(filled: Tensor, targets: Tensor, patch: Tensor) -> Tensor:
    """Return minus the squared error of one patch of each image: (B,)."""
    return -(filled - targets).square().mean(-1)[torch.arange(len(filled), device=filled.device), patch]


HEAD_MEASURES = ("sharpness", "on other tokens", "strongest weight", "what it writes")


@torch.no_grad()
def head_measures(model: nn.Module, run: Callable[[], object]) -> Tensor:
    """Return `HEAD_MEASURES` of all heads of our models: (heads, 4), means over the tokens that `run` shows.

    In bits below the entropy of even weights; the share of attention to other tokens; the largest weight; the length of the
    vector that the head adds.
    """
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}

    def look(layer: int, weights: Tensor, values: Tensor) -> Tensor:
        name, attention = layers[layer]
        if not isinstance(attention, MultiHeadSelfAttention):
            raise AttentionError(f"{name} ({type(attention).__name__}) does not say what its heads write")
        mixed = weights @ values  # (B, h, N, d)
        written = mixed @ attention.W_O.unflatten(0, (weights.shape[1], -1))  # (B, h, N, D)
        found = (
            math.log2(weights.shape[-1]) - attention_entropy(weights),
            1 - weights.diagonal(dim1=-2, dim2=-1).mean(-1),
            weights.amax(-1).mean(-1),
            written.norm(dim=-1).mean(-1),
        )
        sums[layer] = sums.get(layer, 0) + torch.stack(found, -1).sum(0)  # (h, 4)
        counts[layer] = counts.get(layer, 0) + len(weights)
        return mixed

    with eval_mode(model), intercept_attention(model, look) as layers:
        run()
    return torch.cat([sums[layer] / counts[layer] for layer in sorted(sums)])
