"""The study of what occurs together: a planted likeness is found and its absence is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from studies import kinds, tyres_and_roads
from studies.kinds import TOGETHER, WHOLE, Kinds


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
    near = parts.together[TOGETHER].clamp(-3, 3) if planted else appearance[0]
    monkeypatch.setattr(kinds, "residual_stream", Planted(parts, near))
    cosines = parts.cosines(trained, trained.model.encoder, WHOLE)
    found = tyres_and_roads.association(cosines[0], parts.together[TOGETHER], appearance)
    if planted:
        assert found.correlation > 0.6
        assert found.p < 0.01
    else:
        assert abs(found.correlation) < 0.2


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
    logits = parts.logits(trained, trained.model.encoder, WHOLE)[0]
    assert logits.argmax() == wheel * len(asked) + road
    assert logits[wheel, grass] < logits[wheel, road] / 10
