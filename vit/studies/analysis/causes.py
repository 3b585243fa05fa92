"""What the filling in of a hidden patch rests on: by attention, and by taking visible patches away, one after the other.

And what the attention of each head is like, to hold beside what is lost without it.

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
    """What happens to each patch when a visible one is taken away, both (B, L, K).

    Attributes:
        change: mean squared change of what is predicted for the patch.
        error: by how much its mean squared error grows; negative where it is filled in better without.
    """

    change: Tensor
    error: Tensor


@torch.no_grad()
def removal_effects(
    model: MaskedAutoencoder, inputs: Tensor, mask: Mask, how: Literal["left out", "mean patch"] = "left out"
) -> Effects:
    """Take away each visible patch in turn, and see what becomes of the reconstruction of images (B, C, H, W), normalised.

    "left out": the patch is hidden from the encoder like the others; "mean patch": the mean of the image's visible patches
    stands in its place, and no token goes missing. The mask leaves two patches visible at least.
    """
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
    """Return the mask that hides a visible patch as well: the one at `number`, 0 to K - 1, of `ids_keep`; K is 2 or more."""
    visible = mask.ids_keep.shape[1]
    noise = mask.ids_restore.float()
    return mask_from_noise(noise.masked_fill(noise == number, visible - 0.5), visible - 1)


ATTENTION, GRADIENT = "attention, last decoder layer", "gradient × attention, decoder"


def attended_patches(model: MaskedAutoencoder, inputs: Tensor, mask: Mask, hidden: Tensor) -> dict[str, Tensor]:
    """How much of each visible patch goes into filling in hidden patches (B, J), as attention has it: (B, J, K), by name.

    `ATTENTION`: the weights of the last decoder layer, mean over heads. The rollout through decoder and encoder.
    `GRADIENT`: relevance through the decoder (Chefer, Gur and Wolf 2021) for how right the patch is filled in. Where the
    decoder has several layers, also their mean, and its own rollout. Visible patches are in the mask's order.
    """
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
    rests = []
    for patch in hidden.unbind(1):
        score = partial(_right_at, targets=model.targets(inputs), patch=patch)
        rests.append(relevance(model.decoder, inputs, score, lambda x: model(x, mask))[every, prefix + patch])
    found[GRADIENT] = torch.stack(rests, 1).gather(2, visible)
    return found


def _right_at(filled: Tensor, targets: Tensor, patch: Tensor) -> Tensor:
    """How right the reconstruction (B, L, P) is at one patch of each image: minus its squared error, (B,)."""
    return -(filled - targets).square().mean(-1)[torch.arange(len(filled), device=filled.device), patch]


HEAD_MEASURES = ("sharpness", "on other tokens", "strongest weight", "what it writes")


@torch.no_grad()
def head_measures(model: nn.Module, run: Callable[[], object]) -> Tensor:
    """Return `HEAD_MEASURES` of all heads of a model of ours: (heads, 4), means over what `run` shows it.

    How far the entropy of a token's weights is below that of even ones, in bits; the share of its attention that goes to
    other tokens; its largest weight; the length of the vector that the head adds to it. An AttentionError refuses other
    models' attention.
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
