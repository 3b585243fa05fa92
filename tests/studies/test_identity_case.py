"""Attention without W_Q, W_K and W_V."""

import pytest
import torch

from vit.studies.arms import AS_IT_IS, IDENTITY, learn_arm
from vit.studies.finding import brief, seeds
from vit.studies.identity_case import MEASURES, answer, busiest, by_layer, study


def test_identity_is_symmetric_and_looks_at_itself(laboratory, one_seed):
    (plain,), (usual,) = (learn_arm(laboratory, one_seed, arm) for arm in (IDENTITY, AS_IT_IS))
    found = {
        name: dict(zip(MEASURES, by_layer(one, model.encoder, 48).unbind(1), strict=True))
        for name, one, model in (
            ("plain", plain, plain.model), ("plain at first", plain, plain.initial), ("random", usual, usual.initial),
        )
    }  # fmt: skip
    assert found["plain at first"]["symmetry"].tolist() == pytest.approx([1, 1], abs=1e-5)
    assert (found["plain at first"]["own share"] > 4 / 65).all()
    # a random W_Q W_K^T knows nothing of similarity: the control
    assert (found["random"]["own share"] < 2 / 65).all()
    assert (found["random"]["symmetry"].abs() < 0.5).all()
    assert (found["plain"]["correlation"] > found["random"]["correlation"] + 0.3).all()


@pytest.mark.parametrize(
    ("own", "theirs", "said"),
    [
        ([0.097, 0.099], [0.02, 0.021], "A patch looks at what is like it, and so at itself: "),
        ([0.097], [0.02], "A patch looks at what is like it, and so at itself: "),
        ([0.097, 0.099], [0.1, 0.11], "A patch looks at itself no more than with learned matrices: "),
        (
            [0.097, 0.099],
            [0.02, 0.15],
            "A patch looks at itself not clearly more than with learned matrices: ",
        ),  # within the spread
        ([0.05], [0.1], "A patch looks at itself no more than with learned matrices: "),
        ([0.012, 0.013], [0.001, 0.001], "A patch hardly looks at itself: "),
        ([0.01, 0.05], [0.001, 0.001], "A patch does not clearly look at itself: "),  # within the spread
    ],
)
def test_the_answer_follows_the_shares(own, theirs, said):
    lost = {"loss": seeds([0.1]), "neighbours": seeds([0.1])}
    shares = [seeds(values, share=True) for values in (own, theirs)]
    assert answer(*shares, 0.0154, seeds([0.9]), seeds([0.1]), lost).startswith(said)


@pytest.mark.parametrize(("follow", "at_what_is_like_it"), [([0.9, 0.8], True), ([0.3, 0.2], False), ([-0.9], False)])
def test_where_logits_do_not_follow_likeness_it_is_not_said_that_they_do(follow, at_what_is_like_it):
    lost = {"loss": seeds([0.1]), "neighbours": seeds([0.1])}
    own, theirs = seeds([0.097, 0.099], share=True), seeds([0.02, 0.021], share=True)
    said = answer(own, theirs, 0.0154, seeds(follow), seeds([0.1]), lost)
    assert said.startswith("A patch looks at what is like it, ") == at_what_is_like_it
    assert said.startswith("A patch looks at itself more than with learned matrices: ") != at_what_is_like_it


def test_the_answer_has_the_figures_and_the_price():
    lost = {"loss": seeds([-0.02, -0.022]), "neighbours": seeds([-3.0, 2.0])}
    own, theirs = seeds([0.098], share=True), seeds([0.02], share=True)
    said = answer(own, theirs, 0.0154, seeds([0.9003]), seeds([0.14]), lost)
    assert "it gives itself 9.8% of its attention, where learned matrices give 2.0% and an even share is 1.5%. " in said
    assert "correlate by 0.90, learned ones by 0.14. " in said
    assert "the loss over hidden patches is 0.021 ± 0.001 lower, and" in said
    assert said.endswith("neighbours not clearly lower or higher (-0.5 ± 3.5 points).")


@pytest.mark.slow
def test_the_study_shows_and_measures_it(laboratory, one_seed):
    finding = study(laboratory, one_seed)
    attention, price = finding.tables
    assert len(attention.rows) == 4
    assert [row[0] for row in price.rows[:2]] == ["Q = K = V = X", "learned matrices"]
    assert price.rows[2][2].mean == pytest.approx(price.rows[0][2].mean - price.rows[1][2].mean)
    assert set(finding.pictures) == set(finding.captions) == {"maps", "layers"}
    assert f"gives itself {brief(attention.rows[1][1])} of its attention" in finding.answer
    assert f"learned ones by {brief(attention.rows[3][3])}." in finding.answer


def test_the_busiest_patch_lies_off_the_border_where_it_can():
    patches = torch.zeros(2, 64, 3)
    patches[0, 0] = torch.tensor([0.0, 5, 9])  # in the corner
    patches[0, 8 * 2 + 3] = torch.tensor([0.0, 1, 2])
    patches[1, 8 * 6 + 5] = torch.tensor([0.0, 1, 2])
    assert busiest(patches, (8, 8)) == [(2, 3), (6, 5)]
    assert busiest(patches[:1, :2], (1, 2)) == [(0, 0)]
