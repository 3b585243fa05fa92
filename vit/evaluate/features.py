"""What a frozen encoder makes of images, layer by layer, and what it is compared with: the pixels themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn

from vit.data.augment import to_float
from vit.encoder import VisionTransformer, eval_mode
from vit.training.device import Compute

Prepare = Callable[[Tensor], Tensor]
"""uint8 (B, C, h, w) -> the model's input (B, C, H, W)."""


@torch.no_grad()
def encoder_features(
    encoder: VisionTransformer,
    images: Tensor,
    prepare: Prepare,
    compute: Compute,
    layers: Sequence[int] = (-1,),
    batch_size: int = 256,
) -> Tensor:
    """The mean of the patch tokens of whole, unmasked images, after some of the blocks.

    The class token is not used: masked reconstruction leaves it untrained.

    Args:
        encoder: on the device of `compute`; put into eval mode and back.
        images: uint8 (N, C, h, w).
        prepare: for the encoder.
        compute: device and precision.
        layers: numbers of the blocks, negative from the last; what the last one gives goes through the final norm.
        batch_size: images at a time.

    Returns:
        float32 (layers, N, D) on the CPU.
    """
    depth = len(encoder.blocks)
    numbers = [layer % depth for layer in layers]
    pooled: dict[int, list[Tensor]] = {number: [] for number in numbers}

    def keep(number: int, tokens: Tensor) -> None:
        pooled[number].append(tokens[:, encoder.num_prefix_tokens :].float().mean(dim=1).cpu())

    def hook(number: int, block: nn.Module, inputs: object, tokens: Tensor) -> None:
        keep(number, tokens)

    with eval_mode(encoder), ExitStack() as undo:
        for number in set(numbers) - {depth - 1}:
            undo.callback(encoder.blocks[number].register_forward_hook(partial(hook, number)).remove)
        for batch in images.split(batch_size):
            inputs = prepare(batch.to(compute.device))
            with compute.autocast():
                tokens = encoder(inputs)
            if depth - 1 in pooled:
                keep(depth - 1, tokens)
    return torch.stack([torch.cat(pooled[number]) for number in numbers])


def pixel_features(images: Tensor) -> Tensor:
    """The baseline's features: the pixels themselves, uint8 (N, C, h, w) -> float32 (N, C h w).

    Images larger than 32 x 32 are shrunk to it: that keeps the bank small and helps the baseline.
    """
    size = (min(images.shape[-2], 32), min(images.shape[-1], 32))
    return torch.cat([to_float(batch, size).flatten(1) for batch in images.split(1024)])


def standardised(bank: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Features (N, D) with mean 0 and deviation 1 in every dimension of the bank, and others by the bank's statistics.

    As a BatchNorm without weights does in front of a probe: else the common part and a few large dimensions make all
    features alike.
    """
    centre, spread = bank.mean(0), bank.std(0).clamp(min=1e-6)
    return tuple((features - centre).div_(spread) for features in (bank, *others))
