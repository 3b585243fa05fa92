"""The residual stream: the tokens that enter the first block, and what each block makes of them."""

from __future__ import annotations

import torch
from torch import Tensor

from vit.encoder import VisionTransformer, eval_mode


@torch.no_grad()
def residual_stream(encoder: VisionTransformer, inputs: Tensor, alone: bool = False) -> Tensor:
    """The patch tokens of images before the first block and after each one, without the final norm.

    Args:
        encoder: put into eval mode and back.
        inputs: normalised images (B, C, H, W).
        alone: each patch is seen by itself, at its place, as if all others were hidden: nothing of what lies around it can
            come in. Costs little, because two tokens (a class token and the patch) attend to each other only.

    Returns:
        (depth + 1, B, L, D).
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
    return torch.stack(found).unflatten(1, (batch, -1)).flatten(2, 3)  # (depth + 1, B, L, D)
