"""Which patches are hidden: one recipe, noise -> argsort -> ids_keep, ids_restore, mask (He et al. 2022).

A kind of mask is just a kind of noise: the patches with the smallest values are kept. Masks are made outside the model,
with a generator of their own, and passed to it as an argument.

Letters: B batch, L patches, K kept patches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import repeat
from torch import Generator, Tensor


class Mask(NamedTuple):
    """The patches that the encoder sees, and those that are hidden.

    Attributes:
        ids_keep: int64 (B, K), the visible patches in the order in which the encoder gets them.
        ids_restore: int64 (B, L), the index in (kept, hidden) of each patch of the grid: undoes the shuffle.
        mask: float32 (B, L) in grid order, 1 = hidden, 0 = visible.
    """

    ids_keep: Tensor
    ids_restore: Tensor
    mask: Tensor

    @property
    def ids_hidden(self) -> Tensor:
        """int64 (B, L - K): the hidden patches."""
        return self.ids_restore.argsort(dim=1)[:, self.ids_keep.shape[1] :]

    def to(self, device: torch.device | str) -> Mask:
        """Return the same mask on another device."""
        return Mask(*(part.to(device) for part in self))


def num_keep(num_patches: int, mask_ratio: float) -> int:
    """Return how many of `num_patches` stay visible: rounded, but at least one and never all.

    Raises:
        ValueError: there are fewer than 2 patches, or the ratio is not between 0 and 1.
    """
    if num_patches < 2 or not 0 < mask_ratio < 1:
        raise ValueError(
            f"cannot hide {mask_ratio} of {num_patches} patches: need 2 patches and a ratio between 0 and 1"
        )
    return min(max(round(num_patches * (1 - mask_ratio)), 1), num_patches - 1)


def mask_from_noise(noise: Tensor, keep: int) -> Mask:
    """Keep the `keep` patches with the smallest noise.

    Args:
        noise: (B, L), one value per patch.
        keep: K, from 1 to L - 1.
    """
    ids_shuffle = noise.argsort(dim=1, stable=True)
    ids_restore = ids_shuffle.argsort(dim=1)
    return Mask(ids_shuffle[:, :keep], ids_restore, (ids_restore >= keep).float())


def random_noise(batch: int, grid_size: tuple[int, int], generator: Generator) -> Tensor:
    """Draw independent noise for every patch, as MAE does: (B, L)."""
    return torch.rand(batch, grid_size[0] * grid_size[1], generator=generator)


def block_noise(batch: int, grid_size: tuple[int, int], generator: Generator) -> Tensor:
    """Draw noise that hides one rectangle per image, of random place and shape (aspect 1:2 to 2:1): (B, L).

    The hidden patches are those nearest to a random centre, by a distance whose circles are rectangles. A rectangle that
    crosses the border is cut there and grows elsewhere, so the count stays exact.
    """
    rows, columns = grid_size
    draws = torch.rand(batch, 3, generator=generator)
    aspect = 2 ** (2 * draws[:, 2] - 1)  # (B,), height / width, 1/2 to 2
    y = (torch.arange(rows) - (draws[:, :1] * rows - 0.5)) / aspect[:, None].sqrt()  # (B, rows)
    x = (torch.arange(columns) - (draws[:, 1:2] * columns - 0.5)) * aspect[
        :, None
    ].sqrt()  # (B, columns)
    return -torch.maximum(y.abs()[:, :, None], x.abs()[:, None, :]).flatten(1)  # (B, L)


def grid_noise(batch: int, grid_size: tuple[int, int], generator: Generator) -> Tensor:
    """Draw noise that hides a regular pattern, shifted by a random offset per image: (B, L).

    The pattern is that of ordered dithering (Bayer 1973): mask ratio 0.75 keeps one patch of each 2 x 2, 0.5 a chequerboard,
    and any other ratio is spread as evenly as possible.
    """
    size = 1
    order = torch.zeros(1, 1)
    while size < max(grid_size):
        order = torch.cat(
            [torch.cat([4 * order, 4 * order + 2], 1), torch.cat([4 * order + 3, 4 * order + 1], 1)]
        )
        size *= 2
    offsets = torch.randint(size, (batch, 2), generator=generator)
    rows = (torch.arange(grid_size[0]) + offsets[:, :1]) % size  # (B, rows)
    columns = (torch.arange(grid_size[1]) + offsets[:, 1:]) % size  # (B, columns)
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
        mask_ratio: the share of patches to hide, between 0 and 1.
        generator: the only source of randomness.
    """
    return mask_from_noise(
        NOISE[kind](batch, grid_size, generator), num_keep(grid_size[0] * grid_size[1], mask_ratio)
    )


def take(x: Tensor, ids: Tensor) -> Tensor:
    """Take some patches of each image: (B, L, D) in grid order -> (B, K, D) in the order of `ids` (B, K)."""
    return x.gather(1, repeat(ids, "b k -> b k d", d=x.shape[-1]))


def keep_visible(x: Tensor, mask: Mask) -> Tensor:
    """Leave out the hidden patches: (B, L, D) in grid order -> (B, K, D) in the order of `ids_keep`."""
    return take(x, mask.ids_keep)


def restore_order(x: Tensor, mask: Mask) -> Tensor:
    """Put (kept, hidden) (B, L, D) back into grid order (B, L, D)."""
    return take(x, mask.ids_restore)
