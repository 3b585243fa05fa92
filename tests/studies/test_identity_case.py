"""Attention without W_Q, W_K and W_V."""

import pytest
import torch

from vit.studies.arms import AS_IT_IS, IDENTITY, learn_arm
from vit.studies.finding import seeds
from vit.studies.identity_case import MEASURES, busiest, by_layer, priced, study


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


def test_a_price_says_whether_it_is_one():
    lost = {"loss": seeds([0.02, 0.021]), "neighbours": seeds([-3.0, 2.0])}
    less = "nearest neighbours are right 0.5 ± 3.5 points less often (within the spread over the seeds)"
    assert priced(lost) == f"the loss over hidden patches is 0.02050 ± 0.00071 higher and {less}"
    lost = {"loss": seeds([-0.02]), "neighbours": seeds([3.0])}
    told = "is 0.0200 lower (of one seed) and nearest neighbours are right 3.00 points more often (of one seed)"
    assert priced(lost).endswith(told)


def test_the_study_shows_and_measures_it(laboratory, one_seed):
    finding = study(laboratory, one_seed)
    attention, price = finding.tables
    assert len(attention.rows) == 4
    assert [row[0] for row in price.rows[:2]] == ["Q = K = V = X", "learned matrices"]
    assert price.rows[2][3].mean == pytest.approx(price.rows[0][3].mean - price.rows[1][3].mean)
    assert set(finding.pictures) == set(finding.captions) == {"maps", "layers"}
    assert str(attention.rows[0][1]) in finding.answer


def test_the_busiest_patch_lies_off_the_border_where_it_can():
    patches = torch.zeros(2, 64, 3)
    patches[0, 0] = torch.tensor([0.0, 5, 9])  # in the corner
    patches[0, 8 * 2 + 3] = torch.tensor([0.0, 1, 2])
    patches[1, 8 * 6 + 5] = torch.tensor([0.0, 1, 2])
    assert busiest(patches, (8, 8)) == [(2, 3), (6, 5)]
    assert busiest(patches[:1, :2], (1, 2)) == [(0, 0)]
