"""The same patch elsewhere: in other images, at other places, and what becomes of its token there."""

from __future__ import annotations

import torch
from torch import Tensor

from vit.encoder import VisionTransformer
from vit.interpret.stream import residual_stream
from vit.patches import patchify, unpatchify

BATCH = 250


def paste(inputs: Tensor, patches: Tensor, places: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Images with one patch each replaced.

    Args:
        inputs: (B, C, H, W); left as they are.
        patches: (B, P), what is put in.
        places: int64 (B,), where: the number of a patch in row order.
        patch_size: (p, q) in pixels.

    Returns:
        (B, C, H, W).
    """
    (height, width), (p, q) = inputs.shape[-2:], patch_size
    cut = patchify(inputs, patch_size).clone()  # (B, L, P)
    cut[torch.arange(len(cut)), places] = patches
    return unpatchify(cut, patch_size, (height // p, width // q))


def pasted_tokens(encoder: VisionTransformer, inputs: Tensor, patches: Tensor, places: Tensor) -> Tensor:
    """The tokens of patches that are pasted into images, before the first block and after each one.

    Args:
        encoder: put into eval mode and back.
        inputs, patches, places: as in `paste`, normalised.

    Returns:
        (depth + 1, B, D).
    """
    found = []
    for start in range(0, len(inputs), BATCH):
        part = slice(start, start + BATCH)
        tokens = residual_stream(
            encoder, paste(inputs[part], patches[part], places[part], encoder.patch_embed.patch_size)
        )
        found.append(tokens[:, torch.arange(tokens.shape[1]), places[part]])
    return torch.cat(found, dim=1)
