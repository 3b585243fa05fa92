"""The draws of a step: every image once an epoch, any step by itself, each purpose apart, and shares of several processes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from vit.config import AugmentConfig, ClassifyConfig, Config, ModelConfig, TrainConfig
from vit.data.draws import (
    Draws,
    batch_indices,
    derive_seed,
    draw_step,
    epoch_order,
    make_generator,
    shard,
    steps_per_epoch,
)

CASES = [(1, 1), (1, 8), (5, 8), (8, 8), (7, 3), (31, 7), (16, 4), (17, 16), (10, 1), (101, 13)]


@pytest.mark.parametrize(("count", "batch_size"), CASES)
def test_every_image_comes_exactly_once_an_epoch(count, batch_size):
    steps = steps_per_epoch(count, batch_size)
    for epoch in range(3):
        batches = [batch_indices(0, epoch * steps + position, count, batch_size) for position in range(steps)]
        assert sorted(torch.cat(batches).tolist()) == list(range(count))
        assert all(len(batch) == batch_size for batch in batches[:-1])
        assert 1 <= len(batches[-1]) <= batch_size


@pytest.mark.parametrize(("count", "batch_size"), CASES)
def test_any_step_can_be_made_alone(count, batch_size):
    steps = range(3 * steps_per_epoch(count, batch_size))
    in_sequence = [batch_indices(5, step, count, batch_size) for step in steps]
    for step in reversed(steps):
        epoch_order.cache_clear()
        assert torch.equal(batch_indices(5, step, count, batch_size), in_sequence[step])


def test_orders_differ_by_epoch_and_by_seed():
    orders = {tuple(epoch_order(seed, epoch, 50).tolist()) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_order_has_no_favourites():
    first_places = torch.stack([epoch_order(0, epoch, 10) for epoch in range(2_000)])[:, 0].bincount()
    assert (first_places - 200).abs().max() < 5 * (2_000 * 0.1 * 0.9) ** 0.5


def test_streams_of_different_seeds_purposes_and_numbers_share_nothing():
    keys = [
        (seed, purpose, number) for seed in (0, 1, 11) for purpose in ("order", "mask", "1") for number in range(20)
    ]
    seeds = {derive_seed(*key) for key in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_stream_repeats_itself():
    one, again, other = (torch.rand(5, generator=make_generator(3, "mask", number)) for number in (7, 7, 8))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


# --- the draws of a whole step ---------------------------------------------------------------------------------------

EVERYTHING = Config(
    model=ModelConfig(image_size=16, patch_size=4, depth=3, drop_path=0.2),
    augment=AugmentConfig(rand_augment=2, erasing=0.5, shuffle="within"),
    classify=ClassifyConfig(mixup=0.8, cutmix=1.0, drop_patches=0.5),
    train=TrainConfig(objective="classify", batch_size=8),
)
PADDED = replace(EVERYTHING, augment=replace(EVERYTHING.augment, crop="pad"))


def same(one: Draws, other: Draws) -> list[str]:
    """The fields that are equal to the bit."""
    pairs = zip(Draws._fields, one, other, strict=True)
    return [name for name, a, b in pairs if (a is None and b is None) or (a is not None and torch.equal(a, b))]


def test_every_draw_has_a_row_per_image():
    drawn = [draw_step(settings, 0, 20, masked=True) for settings in (EVERYTHING, PADDED)]
    for draws in drawn:
        assert {len(values) for values in draws if values is not None} == {8}
    assert all(a is not None or b is not None for a, b in zip(*drawn, strict=True))
    assert [name for name, a, b in zip(Draws._fields, *drawn, strict=True) if a is None or b is None] == [
        "crop",
        "shift",
    ]
    nothing = Config(augment=AugmentConfig(crop="none"))
    assert [name for name, a in zip(Draws._fields, draw_step(nothing, 0, 20, False), strict=True) if a is not None] == [
        "indices",
        "flip",
    ]


@pytest.mark.parametrize("settings", [EVERYTHING, PADDED], ids=["resized", "pad"])
def test_any_step_is_drawn_alone_and_differs_from_the_others(settings):
    one, again, other = (draw_step(settings, step, 20, masked=True) for step in (3, 3, 4))
    assert same(one, again) == list(Draws._fields)
    assert set(same(one, other)) <= {"crop", "shift"}  # whichever is off


def test_switching_one_thing_on_changes_no_other():
    plain = draw_step(replace(EVERYTHING, classify=ClassifyConfig()), 3, 20, masked=False)
    assert set(Draws._fields) - set(same(plain, draw_step(EVERYTHING, 3, 20, masked=True))) == {
        "partner", "share", "box", "mask_noise",
    }  # fmt: skip
    less = replace(EVERYTHING, model=replace(EVERYTHING.model, drop_path=0.0), augment=AugmentConfig())
    less = replace(less, augment=replace(less.augment, rand_augment=2, erasing=0.5))
    changed = set(Draws._fields) - set(same(draw_step(less, 3, 20, True), draw_step(EVERYTHING, 3, 20, True)))
    assert changed == {"shuffle", "drop_path"}


# --- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("images", [1, 2, 3, 10, 256])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_parts_make_up_the_batch_and_are_alike(images, count):
    parts = [shard(images, rank, count) for rank in range(count)]
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(images))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("step", [0, 2], ids=["whole batch", "the 4 images that remain"])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("mixing", [True, False])
def test_shards_of_several_processes_make_up_the_whole_batch(step, count, mixing):
    settings = EVERYTHING if mixing else replace(EVERYTHING, classify=ClassifyConfig(drop_patches=0.5))
    whole = draw_step(settings, step, 20, masked=True)
    batch = len(whole.indices)
    parts = [whole.shard(rank, count) for rank in range(count)]
    sizes = [shard(batch, rank, count).stop - shard(batch, rank, count).start for rank in range(count)]
    assert [len(part.indices) for part in parts] == [
        max(size, 1) + mixing for size in sizes
    ]  # one row is never too few
    own = [part.rows(slice(size)) for part, size in zip(parts, sizes, strict=True)]
    joined = Draws(*(None if values[0] is None else torch.cat(values) for values in zip(*own, strict=True)))
    assert same(joined, whole) == list(Draws._fields)
    if mixing:  # the row behind a process's own is the image that is mixed into its last
        for part in parts:
            assert torch.equal(part.indices[1:], part.partner[:-1])


def test_the_last_image_is_mixed_with_the_first():
    whole = draw_step(EVERYTHING, 0, 20, masked=True)
    assert whole.shard(1, 2).indices.tolist() == [*whole.indices[4:].tolist(), int(whole.indices[0])]
    assert [len(whole.rows(slice(*bounds)).indices) for bounds in pairwise([0, 3, 8])] == [3, 5]


def test_the_model_gets_what_it_reads_and_nothing_else():
    draws = draw_step(EVERYTHING, 0, 20, masked=True)
    read = draws.for_model(torch.device("cpu"))
    assert {name for name, values in read._asdict().items() if values is not None} == {"mask_noise", "drop_path"}
    assert torch.equal(read.mask_noise, draws.mask_noise)
