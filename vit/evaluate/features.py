"""Features of a frozen encoder, layer by layer, and the baseline: the pixels themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.device import Compute
from vit.encoder import VisionTransformer, eval_mode

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
    """Return the mean of the patch tokens of whole, unmasked images, after some of the blocks.

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
    found = torch.empty(
        len(numbers), len(images), encoder.config.embed_dim
    )  # whole at once: parts to be joined take it twice
    done = 0

    def keep(number: int, tokens: Tensor) -> None:
        mean = tokens[:, encoder.num_prefix_tokens :].float().mean(dim=1)
        for place in (place for place, wanted in enumerate(numbers) if wanted == number):
            found[place, done : done + len(mean)] = mean

    def hook(number: int, block: nn.Module, inputs: object, tokens: Tensor) -> None:
        keep(number, tokens)

    with eval_mode(encoder), ExitStack() as undo:
        for number in set(numbers) - {depth - 1}:
            undo.callback(encoder.blocks[number].register_forward_hook(partial(hook, number)).remove)
        for batch in images.split(batch_size):
            inputs = prepare(batch.to(compute.device))
            with compute.autocast():
                tokens = encoder(inputs)
            keep(depth - 1, tokens)
            done += len(batch)
    return found


def pixel_features(images: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Return the pixels as features: uint8 (N, C, h, w) -> float32 (N, C h w).

    Images larger than 32 x 32 are shrunk to it: that keeps the features small and helps the baseline.

    Args:
        images: may be mapped from a disk: they are read in parts.
        chosen: int64 (M,), only these; None for all.
    """
    size = (min(images.shape[-2], 32), min(images.shape[-1], 32))
    numbers = torch.arange(len(images)) if chosen is None else chosen
    return torch.cat([_shrunk(images[part], size).flatten(1) for part in numbers.split(1024)])


def _shrunk(images: Tensor, size: tuple[int, int]) -> Tensor:
    """All of each image, whatever its shape: nothing is cut off that a model sees."""
    pixels = images.float() / 255
    if pixels.shape[-2:] == size:
        return pixels
    return F.interpolate(pixels, size, mode="bilinear", antialias=True, align_corners=False)


def standardised(train: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Standardise features (N, D) in every dimension, and others by the statistics of the first.

    Like a BatchNorm without weights before a probe: otherwise the common part and a few large dimensions make all
    features alike. A dimension that is constant in `train` carries no information and becomes 0.
    """
    centre, spread = train.mean(0), train.std(0, correction=0)
    varies = spread > 1e-5 * centre.abs().clamp(min=1)
    scale = torch.where(varies, 1 / spread.clamp(min=1e-12), 0)
    return tuple((features - centre).mul_(scale) for features in (train, *others))
