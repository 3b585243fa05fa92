"""What the attention of each head is like, on average over what a model is run on."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from vit.attention import MultiHeadSelfAttention
from vit.encoder import eval_mode
from vit.interpret.layers import AttentionError, intercept_attention
from vit.interpret.measures import attention_entropy

HEAD_MEASURES = ("sharpness", "on other tokens", "strongest weight", "what it writes")


@torch.no_grad()
def head_measures(model: nn.Module, run: Callable[[], object]) -> Tensor:
    """Means over all images and tokens, head by head.

    Args:
        model: one of ours, or a part of it; put into eval mode and back.
        run: runs it, any number of times.

    Returns:
        (heads of all layers, 4), in the order of `HEAD_MEASURES`: how far the entropy of a token's weights is below that of
        even ones, in bits; the share of its attention that goes to other tokens; its largest weight; the length of the vector
        that the head adds to it.

    Raises:
        AttentionError: the attention is not one of ours.
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
