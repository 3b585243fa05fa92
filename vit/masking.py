"""Which patches are masked: noise -> argsort -> ids_keep, ids_masked, ids_restore, mask.

The recipe of MAE (He et al. 2022): the patches with the smallest noise stay visible, so a kind of
mask is just a kind of noise. Masks are made outside the model, with a generator of their own, and
passed to it as an argument.

Letters: B batch, L patches, K visible patches.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor


class Mask(NamedTuple):
    """The patches that the encoder sees, and those that are masked.

    Attributes:
        ids_keep: int64 (B, K), the visible patches, in the order in which the encoder gets them.
        ids_masked: int64 (B, L - K), the masked patches.
        ids_restore: int64 (B, L), for each patch of the grid its index in (visible, masked): undoes
            the shuffle.
        mask: float32 (B, L) in grid order, 1 = masked, 0 = visible.
    """

    ids_keep: Tensor
    ids_masked: Tensor
    ids_restore: Tensor
    mask: Tensor

    def to(self, device: torch.device | str) -> Mask:
        """Return the same mask on another device."""
        return Mask(*(part.to(device) for part in self))


def num_keep(num_patches: int, mask_ratio: float) -> int:
    """Return how many of `num_patches` stay visible: rounded, but at least one and never all."""
    if num_patches < 2 or not 0 < mask_ratio < 1:
        raise ValueError(
            f"cannot mask {mask_ratio} of {num_patches} patches: "
            "need 2 patches and a ratio between 0 and 1"
        )
    visible = round(num_patches * (1 - mask_ratio))
    return min(max(visible, 1), num_patches - 1)


def mask_from_noise(noise: Tensor, keep: int) -> Mask:
    """Keep the `keep` patches with the smallest noise visible, and mask the others.

    Args:
        noise: (B, L), one value per patch.
        keep: K, from 1 to L - 1.
    """
    # sorting the noise shuffles the patches; sorting the shuffle gives its inverse
    ids_shuffle = noise.argsort(dim=1, stable=True)  # (B, L)
    ids_restore = ids_shuffle.argsort(dim=1)  # (B, L)
    return Mask(
        ids_keep=ids_shuffle[:, :keep],  # (B, K)
        ids_masked=ids_shuffle[:, keep:],  # (B, L - K)
        ids_restore=ids_restore,
        mask=(ids_restore >= keep).float(),
    )


def random_noise(batch: int, grid_size: tuple[int, int], generator: Generator) -> Tensor:
    """Draw independent noise (B, L) for every patch, as MAE does."""
    return torch.rand(batch, math.prod(grid_size), generator=generator)


def block_noise(batch: int, grid_size: tuple[int, int], generator: Generator) -> Tensor:
    """Draw noise (B, L) that masks one rectangle per image, at a random position.

    The rectangle's aspect is random too, from 1:2 to 2:1. The masked patches are those nearest to a
    random centre, by a distance whose circles are rectangles. A rectangle that crosses the border
    is cut there and grows on the other sides, so the count stays exact.
    """
    rows, columns = grid_size
    draws = torch.rand(batch, 3, generator=generator)

    # the rectangle: its centre in patches, and how much higher than wide it is, all (B, 1)
    centre_y = draws[:, 0:1] * rows - 0.5
    centre_x = draws[:, 1:2] * columns - 0.5
    aspect = 2 ** (2 * draws[:, 2:3] - 1)  # from 1/2 to 2

    # the largest of two scaled distances is constant on a rectangle of that aspect
    y = (torch.arange(rows) - centre_y) / aspect.sqrt()  # (B, rows)
    x = (torch.arange(columns) - centre_x) * aspect.sqrt()  # (B, columns)
    distance = torch.maximum(y.abs()[:, :, None], x.abs()[:, None, :])  # (B, rows, columns)

    # the smallest noise stays visible, so the nearest patches get the largest
    return -distance.flatten(1)  # (B, L)


def grid_noise(batch: int, grid_size: tuple[int, int], generator: Generator) -> Tensor:
    """Draw noise (B, L) that masks a regular pattern, shifted by a random offset per image.

    The pattern is that of ordered dithering (Bayer 1973): mask ratio 0.75 keeps one patch of each
    2 x 2, 0.5 a chequerboard, and any other ratio is spread as uniformly as possible.
    """
    # Bayer's matrix, doubled until it covers the grid: the order in which patches stay visible
    size = 1
    order = torch.zeros(1, 1)
    while size < max(grid_size):
        top = torch.cat([4 * order, 4 * order + 2], dim=1)
        bottom = torch.cat([4 * order + 3, 4 * order + 1], dim=1)
        order = torch.cat([top, bottom])  # (2 size, 2 size)
        size *= 2

    # the matrix repeats without a seam, so a shift is a remainder
    offsets = torch.randint(size, (batch, 2), generator=generator)
    rows = (torch.arange(grid_size[0]) + offsets[:, 0:1]) % size  # (B, rows)
    columns = (torch.arange(grid_size[1]) + offsets[:, 1:2]) % size  # (B, columns)
    return order[rows[:, :, None], columns[:, None, :]].flatten(1)  # (B, L)


NOISE = {"random": random_noise, "block": block_noise, "grid": grid_noise}


def make_mask(
    kind: str, batch: int, grid_size: tuple[int, int], mask_ratio: float, generator: Generator
) -> Mask:
    """Draw a mask for a batch of images, on the CPU so that every device gets the same.

    Args:
        kind: "random", "block" or "grid".
        batch: B.
        grid_size: (rows, columns) of patches.
        mask_ratio: the fraction of patches to mask, between 0 and 1.
        generator: the only source of randomness, on the CPU.

    Raises:
        ValueError: another kind.
    """
    if kind not in NOISE:
        raise ValueError(f"the kinds of masks are {', '.join(NOISE)}, got {kind!r}")
    with torch.device("cpu"):
        noise = NOISE[kind](batch, grid_size, generator)  # (B, L)
    return mask_from_noise(noise, num_keep(math.prod(grid_size), mask_ratio))


def take(x: Tensor, ids: Tensor) -> Tensor:
    """Take some patches of each image.

    Args:
        x: (B, L, D).
        ids: int64 (B, K), indices of patches.

    Returns:
        (B, K, D), in the order of `ids`.
    """
    return x.take_along_dim(ids[:, :, None], 1)


def keep_visible(x: Tensor, mask: Mask) -> Tensor:
    """Leave out the masked patches: (B, L, D) in grid order -> (B, K, D) in that of `ids_keep`."""
    return take(x, mask.ids_keep)


def restore_order(x: Tensor, mask: Mask) -> Tensor:
    """Put (visible, masked) patches (B, L, D) back into grid order (B, L, D)."""
    return take(x, mask.ids_restore)
