"""Attention against causes: agreement is found where it is planted, and none where there is none."""

from dataclasses import replace

import pytest
import torch

from vit.studies.analysis.causes import ATTENTION, GRADIENT, HEAD_MEASURES
from vit.studies.attention_or_cause import NEARNESS, TOP, Asked, ask, head_correlations, scored, study, weigh


def planted(guesses: dict[str, torch.Tensor], effect: torch.Tensor) -> Asked:
    numbers = torch.zeros(len(effect), dtype=torch.int64)
    return Asked(numbers, numbers, numbers, guesses, effect, -effect, effect.exp())


def test_agreement_that_is_planted_is_found_and_chance_is_none():
    torch.manual_seed(0)
    effect, near, chance = torch.rand(3, 3000, 16)
    found = scored(planted({NEARNESS: near, "it": effect**3, "near it": effect + 3 * near, "chance": chance}, effect))
    assert found["it"].tolist() == pytest.approx([1, 1, 1, -1, 1], abs=1e-4)
    assert found["chance"].tolist() == pytest.approx([0, 0, TOP / 16, 0, 0], abs=0.02)
    assert 0.15 < found["near it"][0] < 0.45 < 0.7 < found["near it"][1]  # nearness hides it
    assert found[NEARNESS][1].isnan()


def test_nearness_alone_is_told_from_attention():
    torch.manual_seed(0)
    near = torch.rand(3000, 16)
    attention, effect = (near + torch.rand(3000, 16) for _ in range(2))
    found = scored(planted({NEARNESS: near, "attention": attention}, effect))
    assert found["attention"][0] > 0.4
    assert abs(found["attention"][1]) < 0.05


def test_hidden_patches_are_asked_about_visible_ones(trained):
    asked = ask(trained, trained.model, 6)
    assert len(asked.image) == 6 * 4
    assert asked.image.tolist() == sorted(asked.image.tolist())
    assert asked.visible.shape == (24, 16)
    assert not (asked.visible == asked.hidden[:, None]).any()
    assert set(asked.guesses) == {NEARNESS, ATTENTION, "rollout, encoder and decoder", GRADIENT}
    assert all(one.shape == (24, 16) for one in (*asked.guesses.values(), asked.left_out, asked.averaged, asked.error))
    assert asked.left_out.min() >= 0
    assert asked.guesses[NEARNESS].max() <= -1
    assert torch.equal(
        asked.hidden, ask(trained, trained.initial, 6).hidden
    )  # the same are asked about before training


def test_a_head_that_is_silent_is_not_missed(trained):
    trained.model.encoder.attention(1).W_O.data[:32] = 0
    found = weigh(trained, trained.model, 32)
    assert found.shape == (8, len(HEAD_MEASURES) + 1)  # two layers of three, and one of two
    assert found[3, -2:].abs().max() < 1e-6
    assert found[[i for i in range(8) if i != 3]][:, -2].min() > 0
    assert found[:, -1].abs().max() > 1e-4


def test_correlations_over_heads_are_of_ranks():
    measures = torch.rand(9, 5)
    measures[:, 0], measures[:, 3] = measures[:, -1] ** 2, -measures[:, -1]
    found = head_correlations(measures)
    assert float(found[0]) == pytest.approx(1)
    assert float(found[3]) == pytest.approx(-1)


def test_of_one_head_there_is_no_correlation(one_seed):
    model = replace(one_seed.config.model, depth=1, num_heads=1)
    heads = study(replace(one_seed, config=replace(one_seed.config, model=model))).tables[1]
    assert [row[2].values for row in heads.rows] == [(0.0,)] * len(HEAD_MEASURES)
