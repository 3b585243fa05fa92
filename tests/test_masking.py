"""Masks: the laws that hold for all kinds (counts, order, seeds), and the law of each kind."""

import math

import pytest
import torch
from scipy import ndimage
from tiny import seeded
from torch import Tensor

from vit.masking import NOISE, keep_visible, make_mask, num_keep, restore_order, take

GRIDS = [(1, 2), (8, 8), (4, 7)]
RATIOS = [0.01, 0.6, 0.99]


def hidden(kind: str, grid: tuple[int, int], ratio: float, batch: int = 6) -> Tensor:
    """bool (B, rows, columns)."""
    return make_mask(kind, batch, grid, ratio, seeded()).mask.view(batch, *grid) > 0


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", NOISE)
def test_every_image_hides_the_stated_count(kind, grid, ratio):
    count = math.prod(grid)
    keep = num_keep(count, ratio)
    mask = make_mask(kind, 6, grid, ratio, seeded())
    assert set(mask.mask.unique().tolist()) == {0.0, 1.0}
    assert (mask.mask.sum(1) == count - keep).all()
    assert mask.ids_keep.shape == (6, keep)
    visible = torch.ones(6, count).scatter_(1, mask.ids_keep, 0)
    assert torch.equal(visible, mask.mask)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("count", [2, 3, 10, 64, 196])
def test_num_keep_rounds_but_never_keeps_none_or_all(count, ratio):
    keep, exact = num_keep(count, ratio), count * (1 - ratio)
    assert 1 <= keep <= count - 1
    assert abs(keep - exact) <= 0.5 or keep in (1, count - 1)


@pytest.mark.parametrize(("count", "ratio"), [(1, 0.5), (4, 0.0), (4, 1.0), (4, math.nan)])
def test_nothing_to_hide_or_to_see_is_refused(count, ratio):
    with pytest.raises(ValueError, match="cannot mask"):
        num_keep(count, ratio)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", NOISE)
def test_shuffled_patches_return_to_their_places(kind, grid):
    mask = make_mask(kind, 6, grid, 0.6, seeded())
    x = torch.randn(6, math.prod(grid), 3)
    parts = [keep_visible(x, mask), take(x, mask.ids_masked)]
    assert torch.equal(restore_order(torch.cat(parts, dim=1), mask), x)


@pytest.mark.parametrize("kind", NOISE)
def test_a_seed_is_a_mask_and_each_image_has_its_own(kind):
    first, again, other = (make_mask(kind, 6, (8, 8), 0.6, seeded(seed)) for seed in (3, 3, 4))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not torch.equal(first.mask, other.mask)
    assert len(hidden(kind, (8, 8), 0.6, batch=16).flatten(1).unique(dim=0)) > 8


def test_random_hides_every_patch_equally_often_and_independently_of_the_others():
    batch, ratio = 4_000, 0.75
    flat = hidden("random", (4, 4), ratio, batch).flatten(1).float()  # (4000, 16)
    assert (flat.mean(0) - ratio).abs().max() < 5 * math.sqrt(ratio * (1 - ratio) / batch)
    # a fixed count of 16 makes it -1 / 15, not 0
    correlation = torch.corrcoef(flat.T).fill_diagonal_(-1 / 15)
    assert (correlation + 1 / 15).abs().max() < 5 / math.sqrt(batch)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.75])
@pytest.mark.parametrize("grid", [(8, 8), (4, 7), (1, 10), (16, 2)])
def test_block_hides_one_rectangle_up_to_a_last_unfinished_line(grid, ratio):
    for region in hidden("block", grid, ratio, batch=50):
        assert ndimage.label(region)[1] == 1  # connected
        rows, columns = (region.any(dim).nonzero().flatten() for dim in (1, 0))
        height, width = int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1
        assert height * width - region.sum() < max(height, width)


def test_block_reaches_every_patch_and_grid_has_every_offset():
    often = hidden("block", (6, 6), 0.4, batch=500).float().mean(0)
    assert 0.1 < often.min() <= often.max() < 0.9
    kept = (~hidden("grid", (8, 8), 0.75, batch=64))[:, :2, :2]
    assert (kept.float().mean(0) > 0.1).all()


@pytest.mark.parametrize("grid", [(8, 8), (16, 8), (4, 4)])
def test_grid_at_three_quarters_keeps_one_of_every_two_by_two(grid):
    for region in hidden("grid", grid, 0.75):
        windows = (~region).unfold(0, 2, 2).unfold(1, 2, 2)  # (rows / 2, columns / 2, 2, 2)
        assert (windows.sum((-2, -1)) == 1).all()
