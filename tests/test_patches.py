"""Patches: the oracles are loops over windows, a convolution, MAE's and timm's position tables."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from small import close
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from torch.testing import assert_close

from vit.config import ViTConfig
from vit.patches import PatchEmbed, patchify, position_table, sincos_positions, unpatchify

# channels, (rows, columns), (p, q)
SHAPES = [
    (3, (4, 4), (4, 4)),
    (1, (2, 5), (3, 3)),
    (4, (3, 2), (2, 5)),
    (2, (1, 6), (7, 1)),
    (5, (1, 1), (2, 3)),
]


def random_images(channels: int, grid: tuple[int, int], patch: tuple[int, int]) -> torch.Tensor:
    return torch.randn(2, channels, grid[0] * patch[0], grid[1] * patch[1])


def random_layer(channels: int, grid: tuple[int, int], patch: tuple[int, int]) -> PatchEmbed:
    size = (grid[0] * patch[0], grid[1] * patch[1])
    return PatchEmbed(
        ViTConfig(image_size=size, patch_size=patch, channels=channels, embed_dim=8, num_heads=1)
    )


@pytest.mark.parametrize(("channels", "grid", "patch"), SHAPES)
def test_patches_are_the_images_windows_row_by_row_and_unpatchify_inverts_patchify(
    channels, grid, patch
):
    images, (p, q) = random_images(channels, grid, patch), patch
    patches = patchify(images, patch)
    assert patches.shape == (2, math.prod(grid), channels * math.prod(patch))
    for index, (row, column) in enumerate(itertools.product(range(grid[0]), range(grid[1]))):
        window = images[:, :, row * p : (row + 1) * p, column * q : (column + 1) * q]
        assert torch.equal(patches[:, index], window.flatten(1))
    assert torch.equal(unpatchify(patches, patch, grid), images)


@pytest.mark.parametrize(("channels", "grid", "patch"), SHAPES)
def test_linear_map_is_the_strided_convolution(channels, grid, patch):
    layer = random_layer(channels, grid, patch).double()
    images = random_images(channels, grid, patch).double()
    convolution = (
        F.conv2d(images, layer.proj.weight, layer.proj.bias, stride=patch)
        .flatten(2)
        .transpose(1, 2)
    )
    close(layer(patchify(images, patch)), convolution, 1e-12)


@torch.no_grad()
@pytest.mark.parametrize(("channels", "grid", "patch"), SHAPES)
def test_w_e_is_the_matrix_that_the_layer_applies(channels, grid, patch):
    layer = random_layer(channels, grid, patch)
    patches = patchify(random_images(channels, grid, patch), patch)
    assert layer.W_E.shape == (channels * math.prod(patch), 8)
    assert_close(layer(patches), patches @ layer.W_E + layer.proj.bias)
    # a view: from here on only the first value of a patch counts, for feature 3
    layer.W_E.zero_()[0, 3] = 1.0
    assert_close(layer(patches) - layer.proj.bias, F.pad(patches[..., :1], (3, 4)))


def test_timms_table_has_the_same_quarters_in_another_order():
    ours, timms = sincos_positions((3, 5), 24), build_sincos2d_pos_embed([3, 5], 24)
    sin_y, sin_x, cos_y, cos_x = timms.chunk(4, dim=1)
    close(ours, torch.cat([sin_x, cos_x, sin_y, cos_y], dim=1))
    assert not torch.allclose(ours, timms, atol=0.1)


def test_prefix_tokens_have_no_place_in_the_sincos_table_and_the_learned_one_learns():
    table, learned = position_table("sincos", (2, 3), 2, 8), position_table("learned", (2, 3), 2, 8)
    assert (table.requires_grad, learned.requires_grad) == (False, True)
    assert not table[0, :2].any()
    assert torch.equal(table[0, 2:], sincos_positions((2, 3), 8))
    assert learned.shape == (1, 8, 8)
