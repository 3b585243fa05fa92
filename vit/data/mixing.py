"""Mixup and CutMix for whole batches on the device: each image by its own draws, with the image after it in the batch.

A batch is in random order, so the next image is as good as one that is drawn, and a part of a batch (of one process among
several) needs a single image more than its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit.device import to_device


def mix(images: Tensor, following: Tensor, share: Tensor, box: Tensor) -> Tensor:
    """Mix each image with the one after it.

    Args:
        images: float32 (B, C, H, W).
        following: the image after each, of the same shape.
        share, box: as in `vit.data.draws.Draws`, for these images.

    Returns:
        The mixed images (B, C, H, W).
    """
    device = images.device
    share, box = to_device(share, device), to_device(box, device)
    top, left, bottom, right = box.T[:, :, None]  # (B, 1) each
    rows, columns = (torch.arange(length, device=device) for length in images.shape[-2:])
    in_rows = (rows >= top) & (rows < bottom)  # (B, H)
    in_columns = (columns >= left) & (columns < right)  # (B, W)
    inside = in_rows[:, None, :, None] & in_columns[:, None, None, :]  # (B, 1, H, W)
    blended = torch.lerp(following, images, share[:, None, None, None])
    cut = (bottom > top)[:, :, None, None]  # an empty rectangle is no blending either: its share is 1
    return torch.where(inside, following, torch.where(cut, images, blended))


def mixed_labels(labels: Tensor, following: Tensor, share: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """Return the soft targets of mixed images.

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
