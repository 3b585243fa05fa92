"""Attention maps of our encoder."""

from __future__ import annotations

import torch
from torch import Tensor

from vit.attention import attention_weights
from vit.encoder import VisionTransformer, eval_mode


@torch.no_grad()
def layer_attention(encoder: VisionTransformer, inputs: Tensor, layer: int = -1) -> Tensor:
    """The attention weights of one layer on whole images.

    Fused kernels never form the weights, so they are computed from the layer's own input, by its own W_Q and W_K.

    Args:
        encoder: left as it was, also when something raises.
        inputs: normalised images (B, C, H, W), on the encoder's device.
        layer: index into the blocks; negative from the last.

    Returns:
        float32 (B, h, N, N): batch, head, query, key; N = prefix + L.
    """
    attention = encoder.attention(layer)
    seen: list[Tensor] = []
    handle = attention.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        with eval_mode(encoder):
            encoder(inputs)
    finally:
        handle.remove()
    q, k, _ = attention.project(seen[0])
    return attention_weights(q, k).float()


def query_map(weights: Tensor, query: int, num_prefix_tokens: int, grid_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """What one query looks at, laid out on the image.

    Args:
        weights: (B, h, N, N).
        query: index of a token, the prefix counted.
        num_prefix_tokens: class token and registers.
        grid_size: (rows, columns).

    Returns:
        maps (B, h, rows, columns), and the mass on the prefix (B, h) that the maps leave out.
    """
    row = weights[:, :, query]  # (B, h, N)
    return row[..., num_prefix_tokens:].unflatten(-1, grid_size), row[..., :num_prefix_tokens].sum(-1)
