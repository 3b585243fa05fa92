"""Stateless batches: every image once an epoch, and any step by itself."""

import pytest
import torch

from vit.data.draws import batch_indices, epoch_order, steps_per_epoch, make_generator, derive_seed

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
