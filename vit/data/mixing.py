"""Mixup and CutMix for whole batches on the device: each image by its own draws, with the image after it in the batch.

A batch is in random order, so the next image is as good as one that is drawn, and a part of a batch (of one process among
several) needs a single image more than its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from vit.data.batches import to_device


class Mixing(NamedTuple):
    """What happens to each image of a batch; on the CPU.

    Attributes:
        share: float32 (B,), what an image keeps of itself: of its values, or of its area.
        box: int64 (B, 4): top, left, bottom and right, in pixels, of the rectangle that comes from the next image; all 0
            where the two are blended instead.
    """

    share: Tensor
    box: Tensor

    def of(self, part: slice | Tensor) -> Mixing:
        """The draws of some of the images."""
        return Mixing(self.share[part], self.box[part])


def draw_mixing(batch: int, size: tuple[int, int], mixup: float, cutmix: float, generator: Generator) -> Mixing:
    """Draw for a batch.

    Args:
        batch: B.
        size: (H, W) of the images.
        mixup: alpha of Mixup's Beta(alpha, alpha) (Zhang et al. 2018), from which the share is drawn; 0: never.
        cutmix: likewise of CutMix (Yun et al. 2019); with both, each image has either with probability 1/2. The rectangle has
            the image's shape and its middle anywhere; what lies outside is cut off, and the share is of what is left.
        generator: the only source of chance.
    """
    cut = torch.rand(batch, generator=generator) < (0.5 if mixup and cutmix else float(cutmix > 0))
    blended, kept = beta(mixup, batch, generator), beta(cutmix, batch, generator)
    middle = torch.rand(batch, 2, generator=generator)
    half = (1 - kept).sqrt()[:, None] / 2
    edges = torch.cat([middle - half, middle + half], dim=1).clamp(0, 1)  # (B, 4), as fractions
    box = (edges * torch.tensor([*size, *size])).round().long() * cut[:, None]
    area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
    return Mixing(torch.where(cut, 1 - area / (size[0] * size[1]), blended), box)


def beta(alpha: float, count: int, generator: Generator) -> Tensor:
    """Draws from Beta(alpha, alpha), as a ratio of gammas: float32 (count,), all 1 where alpha is 0.

    (torch's own distribution takes no generator.)
    """
    if not alpha:
        return torch.ones(count)
    one, other = torch._standard_gamma(torch.full((2, count), alpha, dtype=torch.float64), generator=generator)
    return (one / (one + other)).float()


def mix(images: Tensor, following: Tensor, mixing: Mixing) -> Tensor:
    """Apply what was drawn.

    Args:
        images: float32 (B, C, H, W).
        following: the image after each, likewise.
        mixing: for these images.

    Returns:
        The mixed images (B, C, H, W).
    """
    device = images.device
    share, box = to_device(mixing.share, device), to_device(mixing.box, device)
    top, left, bottom, right = box.T[:, :, None]  # (B, 1) each
    rows, columns = (torch.arange(length, device=device) for length in images.shape[-2:])
    in_rows = (rows >= top) & (rows < bottom)  # (B, H)
    in_columns = (columns >= left) & (columns < right)  # (B, W)
    inside = in_rows[:, None, :, None] & in_columns[:, None, None, :]  # (B, 1, H, W)
    blended = torch.lerp(following, images, share[:, None, None, None])
    cut = (bottom > top)[:, :, None, None]  # an empty rectangle is no blending either: its share is 1
    return torch.where(inside, following, torch.where(cut, images, blended))


def mixed_labels(labels: Tensor, following: Tensor, share: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """What a classifier is to say of mixed images.

    Args:
        labels: int64 (B,), of the images.
        following: int64 (B,), of the image after each.
        share: float32 (B,), what each kept of itself.
        classes: K.
        smoothing: share that is spread over all classes (Szegedy et al. 2016).

    Returns:
        float32 (B, K), each row a distribution.
    """
    own, other = (torch.nn.functional.one_hot(values, classes).float() for values in (labels, following))
    return torch.lerp(other, own, share[:, None]) * (1 - smoothing) + smoothing / classes
