"""Attention against causes: agreement is found where it is planted, and none where there is none."""

from dataclasses import replace

import pytest
import torch

from vit.interpret.causes import ATTENTION, GRADIENT
from vit.interpret.heads import HEAD_MEASURES
from vit.studies.attention_or_cause import (
    NEARNESS,
    TOP,
    Asked,
    _answer,
    _verdict,
    ask,
    head_correlations,
    scored,
    study,
    weigh,
)
from vit.studies.finding import StudyError, brief, seeds


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


def test_hidden_patches_are_asked_about_visible_ones(learned):
    asked = ask(learned, learned.model, 6)
    assert len(asked.image) == 6 * 4
    assert asked.image.tolist() == sorted(asked.image.tolist())
    assert asked.visible.shape == (24, 16)
    assert not (asked.visible == asked.hidden[:, None]).any()
    assert set(asked.guesses) == {NEARNESS, ATTENTION, "rollout, encoder and decoder", GRADIENT}
    assert all(one.shape == (24, 16) for one in (*asked.guesses.values(), asked.left_out, asked.averaged, asked.error))
    assert asked.left_out.min() >= 0
    assert asked.guesses[NEARNESS].max() <= -1
    assert torch.equal(
        asked.hidden, ask(learned, learned.initial, 6).hidden
    )  # the same are asked about before training


def test_a_head_that_is_silent_is_not_missed(laboratory, plan):
    learned = laboratory.learn(plan.training, 0)  # a copy of its own, to be changed
    learned.model.encoder.attention(1).W_O.data[:32] = 0
    found = weigh(learned, learned.model, 32)
    assert found.shape == (8, len(HEAD_MEASURES) + 1)  # two layers of three, and one of two
    assert found[3, -2:].abs().max() < 1e-6
    assert found[[i for i in range(8) if i != 3]][:, -2].min() > 0
    assert found[:, -1].abs().max() > 1e-4


def test_correlations_over_heads_are_of_ranks():
    measures = torch.rand(9, 5)
    measures[:, 0], measures[:, 3] = measures[:, -1] ** 2, -measures[:, -1]
    found = head_correlations(measures)
    assert found[0] == pytest.approx(1)
    assert found[3] == pytest.approx(-1)


def test_the_study_says_what_was_measured(laboratory, one_seed):
    finding = study(laboratory, one_seed)
    patches, heads = finding.tables
    assert finding.answer.startswith("Patches ")
    by_name = {row[0]: row[1:] for row in patches.rows}
    assert len(by_name) == 2 * 4
    assert by_name[NEARNESS][1] == ""
    assert f"goes with the attention to it by a rank correlation of {brief(by_name[ATTENTION][0])}," in finding.answer
    assert finding.answer.endswith(f"with the sharpness of its attention by {brief(heads.rows[0][2])}.")
    assert (
        f"goes with attention by {brief(by_name[ATTENTION][4])}, with attention times its gradient by" in finding.answer
    )
    assert all(-1 <= value <= 1 for row in heads.rows for cell in row[1:] for value in cell.values)
    assert set(finding.pictures) == set(finding.captions)


@pytest.mark.parametrize(
    ("values", "noise", "said"),
    [
        ([0.8, 0.82], 0.1, "mostly"),
        ([0.4, 0.42], 0.1, "in part"),
        ([0.2, 0.22], 0.1, "a little"),
        ([0.2, 0.22], 0.3, "not clearly"),
        ([0.07, 0.08], 0.01, "hardly"),
        ([0.01, 0.02], 0.05, "hardly"),
        ([0.07, 0.08], 0.3, "not clearly"),
        ([0.0, 0.0], float("inf"), "not clearly"),
        ([-0.07, -0.08], 0.01, "hardly"),
        ([-0.4, -0.42], 0.1, "rather the opposite"),
        ([-0.4, -0.42], 0.5, "not clearly"),
    ],
)
def test_a_correlation_says_how_far_it_says_yes(values, noise, said):
    assert _verdict(seeds(values), noise) == said


def test_the_answer_follows_the_figures():
    def of(*first: float) -> list[dict[str, torch.Tensor]]:
        guesses = {ATTENTION: [0, 0.2, 0.3, 0.1, 0.05], GRADIENT: [0, 0.1, 0.1, 0.1, 0.47], NEARNESS: [0.0] * 5}
        found = [{name: torch.tensor(values) for name, values in guesses.items()} for _ in first]
        for one, value in zip(found, first, strict=True):
            one[ATTENTION][0], one[NEARNESS][0] = value, 0.03
        return found

    said = _answer(of(0.07, 0.09), of(0.35, 0.37), seeds([0.5, 0.52]), 0.1)
    assert said.startswith("Patches hardly, heads of the encoder in part: ")
    assert (
        "goes with the attention to it by a rank correlation of 0.08 ± 0.01, with its nearness by 0.03 ± 0.00" in said
    )
    assert "equal nearness by 0.20 ± 0.00 (with random weights 0.36 ± 0.01, 0.03 ± 0.00, 0.20 ± 0.00). " in said
    assert "filled in goes with attention by 0.05 ± 0.00, with attention times its gradient by 0.47 ± 0.00. " in said
    assert said.endswith("with the sharpness of its attention by 0.51 ± 0.01.")
    assert _answer(of(0.2, 0.6), of(0.1, 0.1), seeds([0.1, 0.3]), 0.3).startswith(
        "Patches not clearly, heads of the encoder not clearly: "
    )
    assert "random weights 0.10 ± 0.00, 0.03 ± 0.00, 0.20" in _answer(
        of(0.6, 0.6), of(0.1, 0.1), seeds([0.1, 0.1]), 0.3
    )


def test_too_few_visible_patches_are_refused(laboratory, plan):
    mask = replace(plan.training.mask, ratio=0.95)
    with pytest.raises(StudyError, match=r"3 visible patches are too few to rank; lower mask.ratio"):
        study(laboratory, replace(plan, training=replace(plan.training, mask=mask)))


def test_of_one_head_nothing_is_clear(laboratory, one_seed):
    model = replace(one_seed.training.model, depth=1, num_heads=1)
    finding = study(laboratory, replace(one_seed, training=replace(one_seed.training, model=model)))
    assert ", heads of the encoder not clearly: " in finding.answer
