"""Features of a frozen encoder, layer by layer, and their baseline, raw pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.device import Compute
from vit.encoder import VisionTransformer, eval_mode
from vit.errors import UserError
from vit.inputs import Images
from vit.progress import track

Prepare = Callable[[Tensor], Tensor]
"""uint8 (B, C, h, w) -> the model's input (B, C, H, W)."""


def batches(
    images: Images, prepare: Prepare, compute: Compute, what: str, batch_size: int = 256
) -> Iterator[Tensor]:
    """Yield images as a model's input (B, C, H, W), with a progress bar titled `what`."""
    for start in track(range(0, len(images), batch_size), what, unit=" batches"):
        yield prepare(images[start : start + batch_size].to(compute.device))


class EvaluationError(UserError):
    """A measurement that this model and data do not allow; the message is one line."""


@torch.no_grad()
def encoder_features(
    encoder: VisionTransformer,
    images: Images,
    prepare: Prepare,
    compute: Compute,
    layers: Sequence[int] = (-1,),
    batch_size: int = 256,
) -> Tensor:
    """Return the mean of the patch tokens of whole, unmasked images, after some of the blocks.

    The class token is not used: masked reconstruction leaves it untrained.

    Args:
        layers: block numbers; negative ones count from the last, whose tokens go through the final norm.

    Returns:
        Features (layers, N, D).

    Raises:
        EvaluationError: a feature is nan or infinite.
    """
    last = len(encoder.blocks) - 1
    numbers = [layer % (last + 1) for layer in layers]
    # allocated whole, because joining parts at the end takes twice the memory
    features = torch.empty(len(numbers), len(images), encoder.config.embed_dim)
    done = 0

    def keep(number: int, block: nn.Module | None, inputs: object, tokens: Tensor) -> None:
        mean = tokens[:, encoder.num_prefix_tokens :].float().mean(dim=1)  # (B, N, D) -> (B, D)
        for index, wanted in enumerate(numbers):
            if wanted == number:
                features[index, done : done + len(mean)] = mean

    with eval_mode(encoder), compute.autocast(), ExitStack() as hooks:
        for number in set(numbers) - {last}:
            hooks.callback(
                encoder.blocks[number].register_forward_hook(partial(keep, number)).remove
            )
        for inputs in batches(images, prepare, compute, "features", batch_size):
            keep(last, None, inputs, encoder(inputs))
            done += len(inputs)
    if not bool(features.isfinite().all()):
        raise EvaluationError(
            "the features of some images are nan or infinite: these weights are damaged"
        )
    return features


def pixel_features(images: Images, chosen: Tensor | None = None) -> Tensor:
    """Return the pixels as features: uint8 (N, C, h, w) -> float32 (N, C h w).

    Larger images are shrunk to 32 x 32, which keeps the features small and helps the baseline.

    Args:
        images: read in parts, so they may be memory-mapped.
        chosen: int64 (M,), only these; None for all.
    """
    size = (min(images.shape[-2], 32), min(images.shape[-1], 32))
    numbers = torch.arange(len(images)) if chosen is None else chosen
    found = []
    for part in numbers.split(1024):
        pixels = images[part].float() / 255
        if pixels.shape[-2:] != size:
            pixels = F.interpolate(
                pixels, size, mode="bilinear", antialias=True, align_corners=False
            )
        found.append(pixels.flatten(1))
    return torch.cat(found)


def standardised(train: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Standardise every dimension of features (N, D), and of others, by the statistics of the first.

    It acts like a BatchNorm without weights before a probe: without it, the common part and a few large dimensions make all
    features alike. A dimension that is constant in `train` carries no information and becomes 0.
    """
    centre, spread = train.mean(0), train.std(0, correction=0)
    varies = spread > 1e-5 * centre.abs().clamp(min=1)
    scale = torch.where(varies, 1 / spread.clamp(min=1e-12), 0)
    return tuple((features - centre).mul_(scale) for features in (train, *others))
