"""Laws of a step's draws: every image once an epoch, any step by itself, each purpose by itself.

And: the rows of several processes make up the batch of one.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from vit.config import (
    AugmentConfig,
    ClassifyConfig,
    Config,
    ModelConfig,
    ReconstructConfig,
    TrainConfig,
    changed,
)
from vit.data.draws import (
    Draws,
    batch_indices,
    draw_jitter,
    draw_step,
    epoch_order,
    make_generator,
    seeded_weights,
)
from vit.training.distributed import Distributed

CASES = [(1, 8), (8, 8), (7, 3), (31, 7), (10, 1)]


@pytest.mark.parametrize(("count", "batch_size"), CASES)
def test_every_image_comes_exactly_once_an_epoch_and_any_step_can_be_made_alone(count, batch_size):
    config = Config(train=TrainConfig(seed=5, batch_size=batch_size))
    steps = config.steps_per_epoch(count)
    in_sequence = [batch_indices(config, step, count) for step in range(3 * steps)]
    for epoch in range(3):
        batches = in_sequence[epoch * steps : (epoch + 1) * steps]
        assert sorted(torch.cat(batches).tolist()) == list(range(count))
        assert all(len(batch) == batch_size for batch in batches[:-1])
        assert 1 <= len(batches[-1]) <= batch_size
    for step in reversed(range(3 * steps)):
        epoch_order.cache_clear()
        assert torch.equal(batch_indices(config, step, count), in_sequence[step])


@pytest.mark.parametrize(("count", "batch_size"), [(8, 8), (31, 7), (5, 16)])
def test_batches_whose_images_are_compared_are_all_as_large(count, batch_size):
    """Those that do not fill a batch are left out, other ones in each epoch."""
    config = Config(
        augment=AugmentConfig(views=2),
        reconstruct=ReconstructConfig(contrast=0.1),
        train=TrainConfig(batch_size=batch_size),
    )
    steps = config.steps_per_epoch(count)
    assert steps == max(count // batch_size, 1)
    seen = set()
    for epoch in range(20):
        batches = [batch_indices(config, epoch * steps + step, count) for step in range(steps)]
        assert {len(batch) for batch in batches} == {min(count, batch_size)}
        images = torch.cat(batches).tolist()
        assert len(set(images)) == len(images)
        seen |= set(images)
    assert seen == set(range(count))


def test_weights_follow_from_the_seed_in_two_threads_at_once_and_touch_nobodys_numbers():
    def weights(seed: int) -> torch.Tensor:
        with seeded_weights(seed):
            return torch.cat([torch.nn.Linear(64, 64).weight for _ in range(20)])

    expected = [weights(seed) for seed in range(2)]
    before = torch.get_rng_state()
    with ThreadPoolExecutor(2) as threads:
        built = list(threads.map(weights, [0, 1] * 20))
    for number, made in enumerate(built):
        assert torch.equal(made, expected[number % 2])
    assert torch.equal(torch.get_rng_state(), before)


# --- the draws of a whole step --------------------------------------------------------------------

EVERYTHING = Config(
    model=ModelConfig(image_size=16, patch_size=4, depth=3, drop_path=0.2),
    augment=AugmentConfig(rand_augment=2, color_jitter=0.4, grayscale=0.2, shuffle="within"),
    classify=ClassifyConfig(mixup=0.8, cutmix=1.0, drop_patches=0.5),
    train=TrainConfig(objective="classify", batch_size=8),
)
PADDED = changed(EVERYTHING, {"augment.crop": "pad"})


def same(first: Draws, second: Draws) -> list[str]:
    """The fields that are equal to the bit."""
    names = []
    for name, a, b in zip(Draws._fields, first, second, strict=True):
        if (a is None and b is None) or (a is not None and torch.equal(a, b)):
            names.append(name)
    return names


def drawn(draws: Draws) -> set[str]:
    return {name for name, values in draws._asdict().items() if values is not None}


def test_every_draw_has_a_row_per_image_and_nothing_is_drawn_unasked():
    for settings, unasked in ((EVERYTHING, {"shift"}), (PADDED, {"crop"})):
        draws = draw_step(settings, 0, 20, masked=True)
        assert {len(values) for values in draws if values is not None} == {8}
        # a single process has no place among several
        assert drawn(draws) == set(Draws._fields) - unasked - {"place"}
    nothing = Config(augment=AugmentConfig(crop="none"))
    assert drawn(draw_step(nothing, 0, 20, False)) == {"indices", "flip"}
    read = draws.for_model()
    assert drawn(read) == {"mask_noise", "drop_path"}
    assert torch.equal(read.mask_noise, draws.mask_noise)


def test_each_step_has_its_own_draws():
    first, second = (draw_step(EVERYTHING, step, 20, masked=True) for step in (3, 4))
    # equal is only what is off
    assert set(same(first, second)) <= {"shift", "place"}


def test_switching_one_thing_on_changes_no_other():
    plain = draw_step(changed(EVERYTHING, {"classify": ClassifyConfig()}), 3, 20, masked=False)
    all_drawn = draw_step(EVERYTHING, 3, 20, masked=True)
    on = {"partner", "share", "box", "mask_noise"}
    assert set(Draws._fields) - set(same(plain, all_drawn)) == on
    switches = {"model.drop_path": 0.0, "augment.shuffle": "none", "augment.grayscale": 0.0}
    less = changed(EVERYTHING, switches | {"augment.color_jitter": 0.0})
    off = {"shuffle", "drop_path", "jitter"}
    assert set(Draws._fields) - set(same(draw_step(less, 3, 20, True), all_drawn)) == off


# --- several views of an image --------------------------------------------------------------------


@pytest.mark.parametrize("views", [1, 3])
def test_views_of_an_image_stand_beside_each_other_and_are_drawn_apart(views):
    changes = {"train.objective": "reconstruct", "classify": ClassifyConfig()}
    settings = changed(EVERYTHING, changes | {"augment.views": views})
    # the four images that remain of an epoch
    draws = draw_step(settings, 2, 20, masked=True)
    assert settings.images_per_step == 8 * views
    images = batch_indices(settings, 2, 20)
    assert torch.equal(draws.indices.view(4, views), images[:, None].expand(-1, views))
    for rows in (draws.crop, draws.mask_noise, draws.drop_path.flatten(1)):
        assert len(rows.unique(dim=0)) == 4 * views


def test_colours_are_jittered_in_most_images_and_grey_in_some():
    factors = draw_jitter(20_000, 0.4, 0.2, make_generator(0, "jitter"))
    grey = factors[:, 2] == 0
    jittered = (factors[:, :2] != 1).all(1)
    for chosen, share in ((grey, 0.2), (jittered, 0.8), (grey & jittered, 0.16)):
        assert chosen.float().mean().item() == pytest.approx(share, abs=0.01)
    low, high = factors[~grey].aminmax()
    assert (low.item(), high.item()) == pytest.approx((0.6, 1.4), abs=1e-3)
    assert (draw_jitter(9, 0.0, 0.0, make_generator(0, "jitter")) == 1).all()


# --- several processes ----------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 2], ids=["whole batch", "the 4 images that remain"])
@pytest.mark.parametrize("count", [3, 8])
def test_shards_of_several_processes_make_up_the_whole_batch(step, count):
    draws = draw_step(EVERYTHING, step, 20, masked=True)
    batch = len(draws.indices)
    parts = []
    for rank in range(count):
        part = draws.shard(rank, count)
        # one more is mixed into the last one; the batch's last gets the first
        assert torch.equal(part.indices[1:], part.partner[:-1])
        assert (part.place[:, 1] == batch).all()
        # without a place are rows of others, of which who has none of its own computes one
        is_own = part.place[:, 0] >= 0
        assert len(is_own) == max(is_own.sum(), 1) + 1
        parts.append(part.rows(is_own))
    assert max(len(part.place) for part in parts) == Distributed(0, count).largest_shard(batch)
    whole = draws._replace(place=torch.tensor([[row, batch] for row in range(batch)]))
    joined = Draws(
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in drawn(whole)}
    )
    assert same(joined, whole) == list(Draws._fields)
