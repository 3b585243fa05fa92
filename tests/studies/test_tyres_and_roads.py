"""The study of what occurs together: a planted likeness is found and its absence is not."""

import pytest
import torch
from torch import Tensor

from studies import kinds
from studies.kinds import COMPANY, RED_BALL, WHOLE, Kinds, group_means
from studies.tyres_and_roads import orders_of, with_red_balls_for
from vit.scenes import PART_NAMES, draw_scenes, scene_indices


def means_of(parts: Kinds, vectors: Tensor) -> Tensor:
    """The means of kinds whose tokens all are the vector (K, D) of their kind."""
    return group_means([vectors[parts.labels.clamp(min=0)][None]], parts.labels, len(vectors))


@pytest.mark.parametrize("planted", [True, False])
def test_a_planted_likeness_is_found_and_its_absence_is_not(trained, parts, planted):
    appearance = parts.appearance(trained, WHOLE)
    company = parts.together[COMPANY]
    values, vectors = torch.linalg.eigh((company if planted else appearance[0]).double())
    # (K, K), products as near as they can be to what is planted
    means = means_of(parts, vectors * values.clamp(min=0).sqrt())
    gain, joint = orders_of(parts, means, appearance)[0, [1, 3]].tolist()
    if planted:
        assert min(gain, joint) > 0.7 * float(company.std())
    else:
        assert max(abs(gain), abs(joint)) < 0.1


def test_red_balls_take_the_place_of_half_of_the_wheels_and_nothing_else_changes(one_seed):
    data, changed = one_seed.data(), one_seed.data(with_red_balls_for(one_seed, "wheel"))
    usual, images = data.train.images, changed.train.images
    wheels = draw_scenes(scene_indices(len(usual), "train"), 0)[2] == PART_NAMES.index("wheel")
    differ = (images != usual).any(1)
    replaced = differ.any((1, 2))
    assert torch.equal(differ, wheels & replaced[:, None, None])  # all of an image's
    assert 0.3 < replaced[wheels.any((1, 2))].float().mean() < 0.7
    red, green, blue = images.transpose(0, 1)[:, differ].float()
    assert (red - torch.maximum(green, blue)).min() > 100
    assert torch.equal(changed.test.images, data.test.images)
    # and tests show them as a kind of their own, never with a wheel
    shown = kinds.parts_of_scenes(one_seed.config.model, data, "wheel")
    ball, wheel = (shown.labels == shown.names.index(name) for name in (RED_BALL, "wheel"))
    assert not (ball.any(1) & wheel.any(1)).any()
