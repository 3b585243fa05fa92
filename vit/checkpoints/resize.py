"""Weights for images of another size, patches of another size, or other channels: by timm's functions."""

from __future__ import annotations

from timm.layers import resample_abs_pos_embed, resample_patch_embed
from timm.models import adapt_input_conv
from torch import Tensor


def resize_positions(table: Tensor, new: tuple[int, int], old: tuple[int, int], num_prefix_tokens: int) -> Tensor:
    """A position table (1, prefix + L, D) for another grid, bicubic with antialiasing; the prefix's rows stay.

    DINOv2's own code shifts the grid by a tenth of a patch and does not antialias: its tables come out differently there.

    Args:
        table: float.
        new, old: (rows, columns).
        num_prefix_tokens: rows before the patches'.
    """
    return resample_abs_pos_embed(table.float(), list(new), list(old), num_prefix_tokens=num_prefix_tokens)


def resize_kernels(weight: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Patch kernels (D, C, p, q) for another patch size, so that resized patches give nearly the same embedding.

    Beyer et al. 2023, "FlexiViT": the pseudo-inverse of the resizing of the image.
    """
    return resample_patch_embed(weight.float(), list(patch_size))


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """Patch kernels (D, 3, p, q) for another number of channels: for one, summed; for more, repeated and scaled."""
    return adapt_input_conv(channels, weight.float())


def adapt_statistics(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """A mean or deviation a channel for another number of channels: for one, their mean; for more, repeated."""
    if channels == len(values):
        return values
    if channels == 1:
        return (sum(values) / len(values),)
    return tuple(values[i % len(values)] for i in range(channels))
