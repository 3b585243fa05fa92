"""The study of what occurs together: a planted likeness is found and its absence is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from studies import kinds
from studies.kinds import COMPANY, RED_BALL, WHOLE, Kinds
from studies.tyres_and_roads import orders_of, with_red_balls_for
from vit.scenes import PART_NAMES, draw_scenes, scene_indices


class Planted:
    """A model whose tokens are not computed but given: of each kind, a vector that is near those of what occurs with it."""

    def __init__(self, parts: Kinds, near: Tensor):
        values, vectors = torch.linalg.eigh(near.double())
        # (K, K), products as near as they can be to `near`
        self.of = vectors * values.clamp(min=0).sqrt()
        self.labels, self.done = parts.labels, 0

    def __call__(self, encoder: object, inputs: Tensor, alone: bool) -> Tensor:
        labels = self.labels[self.done : self.done + len(inputs)]
        self.done += len(inputs)
        return self.of[labels.clamp(min=0)][None]  # (1, B, L, K)


@pytest.mark.parametrize("planted", [True, False])
def test_a_planted_likeness_is_found_and_its_absence_is_not(trained, parts, monkeypatch, planted):
    appearance = parts.appearance(trained, WHOLE)
    company = parts.together[COMPANY]
    near = company if planted else appearance[0]
    monkeypatch.setattr(kinds, "residual_stream", Planted(parts, near))
    tokens = parts.ends(trained, trained.model.encoder, WHOLE)
    gain, joint = orders_of(parts, tokens, appearance)[0, [1, 3]].tolist()
    if planted:
        assert min(gain, joint) > 0.7 * float(company.std())
    else:
        assert max(abs(gain), abs(joint)) < 0.1


def test_a_planted_request_is_found(trained, parts, monkeypatch):
    """Wheels ask for roads, and nothing else asks for anything: all but the names is made up."""
    wheel, road, grass = (parts.names.index(name) for name in ("wheel", "road", "grass"))
    asked = torch.zeros(len(parts.names), len(parts.names), dtype=torch.float64)
    asked[wheel, road] = 1
    queries, keys = Planted(parts, torch.eye(len(asked))), Planted(parts, torch.eye(len(asked)))
    queries.of, keys.of = torch.eye(len(asked), dtype=torch.float64), asked.T
    found = [lambda *seen, side=side: side(*seen) for side in (queries, keys)]
    monkeypatch.setattr(
        kinds, "queries_and_keys", lambda *seen: torch.stack([side(*seen) for side in found])
    )
    scores = parts.scores(trained, trained.model.encoder, WHOLE)[0]
    assert scores.argmax() == wheel * len(asked) + road
    assert scores[wheel, grass] < scores[wheel, road] / 10


def test_red_balls_take_the_place_of_half_of_the_wheels_and_nothing_else_changes(one_seed):
    data, changed = one_seed.data(), one_seed.data(with_red_balls_for(one_seed, "wheel"))
    usual, images = data.train.images, changed.train.images
    wheels = draw_scenes(scene_indices(len(usual), "train"), 0)[2] == PART_NAMES.index("wheel")
    differ = (images != usual).any(1)
    assert torch.equal(differ, wheels & differ.any((1, 2))[:, None, None])  # all of an image's
    with_wheels = wheels.any(2).any(1)
    assert 0.3 < differ.any(2).any(1)[with_wheels].float().mean() < 0.7
    red, green, blue = images.transpose(0, 1)[:, differ].float()
    assert (red - torch.maximum(green, blue)).min() > 100
    assert changed.content_hash != data.content_hash
    assert torch.equal(changed.test.images, data.test.images)
    # and tests show them as a kind of their own, never with a wheel
    shown = kinds.parts_of_scenes(one_seed.config.model, data, "wheel")
    ball, wheel = (shown.labels == shown.names.index(name) for name in (RED_BALL, "wheel"))
    assert not (ball.any(1) & wheel.any(1)).any()
