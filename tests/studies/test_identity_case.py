"""Attention without W_Q, W_K and W_V."""

import pytest

from studies.identity_case import by_layer

MEASURES = ("own share", "correlation", "symmetry", "entropy")


def test_identity_is_symmetric_and_looks_at_itself(one_seed):
    (plain,), (usual,) = (one_seed.models(arm) for arm in ("Q = K = V = X", "all learn"))
    found = {
        name: dict(zip(MEASURES, by_layer(one, model.encoder, 48).unbind(1), strict=True))
        for name, one, model in (
            ("plain", plain, plain.model),
            ("plain at first", plain, plain.initial),
            ("random", usual, usual.initial),
        )
    }
    assert found["plain at first"]["symmetry"].tolist() == pytest.approx([1, 1], abs=1e-5)
    assert (found["plain at first"]["own share"] > 4 / 65).all()
    # a random W_Q W_K^T knows nothing of similarity: the control
    assert (found["random"]["own share"] < 2 / 65).all()
    assert (found["random"]["symmetry"].abs() < 0.5).all()
    assert (found["plain"]["correlation"] > found["random"]["correlation"] + 0.3).all()
