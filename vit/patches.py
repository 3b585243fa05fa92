"""Images as sequences of patches: cutting, embedding, and positions.

Letters: B batch, C H W image, p q patch height and width, L = rows x columns patches, D width.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

if TYPE_CHECKING:
    from vit.config import ViTConfig

# The one definition of a patch. A strided convolution flattens its kernel in the same order
# (c p q), so the linear map of a patch and the convolution are the same matrix.
IMAGE_PATTERN = "b c (row p) (column q)"
PATCH_PATTERN = "b (row column) (c p q)"

SINCOS_ORDERS = {
    "mae": "sin x, cos x, sin y, cos y",
    "moco": "sin y, cos y, sin x, cos x",
    "timm": "sin y, sin x, cos y, cos x",
}
"""The columns of a fixed position table, by whose code made it."""


def patchify(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Cut images into patches, row by row.

    Args:
        images: (B, C, H, W), with H and W multiples of p and q.
        patch_size: (p, q) in pixels.

    Returns:
        (B, L, C p q), each patch flattened channel first.
    """
    p, q = patch_size
    return rearrange(images, f"{IMAGE_PATTERN} -> {PATCH_PATTERN}", p=p, q=q)


def unpatchify(patches: Tensor, patch_size: tuple[int, int], grid_size: tuple[int, int]) -> Tensor:
    """Put patches back together: the inverse of `patchify`.

    Args:
        patches: (B, L, C p q) in row order.
        patch_size: (p, q) in pixels.
        grid_size: (rows, columns), whose product is L.

    Returns:
        (B, C, H, W).
    """
    p, q = patch_size
    rows, columns = grid_size
    pattern = f"{PATCH_PATTERN} -> {IMAGE_PATTERN}"
    return rearrange(patches, pattern, p=p, q=q, row=rows, column=columns)


class PatchEmbed(nn.Module):
    """The patch embedding x W_E + b: one linear map, the same for every patch.

    Dosovitskiy et al. 2021, eq. 1. `proj` holds the weights in a convolution's shape (D, C, p, q),
    under timm's and MAE's name. It is applied as the equivalent matrix product, so that masked
    patches are simply left out.

    Args:
        config: `image_size` (H, W), `patch_size` (p, q), `channels` C and `embed_dim` D.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.image_size = config.image_size
        self.patch_size = config.patch_size
        self.grid_size = config.grid_size
        self.num_patches = math.prod(self.grid_size)
        # only the container of the weights, for their names, shapes and initialisation
        self.proj = nn.Conv2d(
            config.channels, config.embed_dim, kernel_size=self.patch_size, stride=self.patch_size
        )

    @property
    def W_E(self) -> Tensor:
        """(C p q, D), a view of `proj.weight`: a patch (1, C p q) becomes patch @ W_E + b."""
        return self.proj.weight.flatten(1).T

    def forward(self, patches: Tensor) -> Tensor:
        """Embed all or some patches from `patchify`: (B, K, C p q) -> (B, K, D)."""
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


def sincos_positions(grid_size: tuple[int, int], embed_dim: int, order: str = "mae") -> Tensor:
    """Compute the fixed 2-D sine-cosine table, whose four parts have a quarter of the width each.

    It is that of Vaswani et al. 2017 along each axis.

    Args:
        grid_size: (rows, columns).
        embed_dim: D, a multiple of 4.
        order: of the parts, one of `SINCOS_ORDERS`. Weights trained with one are wrong with
            another.

    Returns:
        (L, D) float32.
    """
    # from one radian per patch, falling geometrically; in float64, as in MAE
    quarter = embed_dim // 4
    frequencies = 10_000.0 ** (-torch.arange(quarter, dtype=torch.float64) / quarter)

    # the angles of each patch, row by row
    rows = torch.arange(grid_size[0], dtype=torch.float64)
    columns = torch.arange(grid_size[1], dtype=torch.float64)
    y, x = torch.cartesian_prod(rows, columns).T[:, :, None] * frequencies  # (L, D/4) each
    parts = {"sin x": x.sin(), "cos x": x.cos(), "sin y": y.sin(), "cos y": y.cos()}
    return torch.cat([parts[name] for name in SINCOS_ORDERS[order].split(", ")], dim=1).float()


def position_table(
    kind: str, grid_size: tuple[int, int], num_prefix_tokens: int, embed_dim: int
) -> nn.Parameter:
    """Make the position table, a parameter: randomly initialised and learned, or fixed sin-cos.

    A prefix token has no position in the image: its row of the sin-cos table is 0, as in MAE.

    Args:
        kind: "learned", or "sincos" (without a gradient, but saved and loaded like any other
            parameter).
        grid_size: (rows, columns).
        num_prefix_tokens: rows of the table before those of the patches.
        embed_dim: D.

    Returns:
        (1, prefix + L, D).
    """
    if kind == "learned":
        num_tokens = num_prefix_tokens + math.prod(grid_size)
        table = torch.empty(1, num_tokens, embed_dim)
        return nn.Parameter(nn.init.trunc_normal_(table, std=0.02))

    # on "meta", where checkpoints are compared, torch would load its compiler first, for seconds
    device = torch.get_default_device()
    with torch.device("cpu"):
        prefix = torch.zeros(num_prefix_tokens, embed_dim)
        table = torch.cat([prefix, sincos_positions(grid_size, embed_dim)])  # (prefix + L, D)
    return nn.Parameter(table[None].to(device), requires_grad=False)


def grid_distances(
    grid_size: tuple[int, int], device: torch.device, step: tuple[int, int] = (1, 1)
) -> Tensor:
    """Return the distance between the centres of any two patches: float32 (L, L).

    Args:
        grid_size: (rows, columns), whose product is L.
        device: of the result.
        step: the distance between two rows, and between two columns: 1 for distances in patches.
    """
    rows = step[0] * torch.arange(grid_size[0], device=device, dtype=torch.float32)
    columns = step[1] * torch.arange(grid_size[1], device=device, dtype=torch.float32)
    positions = torch.cartesian_prod(rows, columns)  # (L, 2)
    # without the shortcut by a product, whose rounding would break ties between equal distances
    return torch.cdist(positions, positions, compute_mode="donot_use_mm_for_euclid_dist")
