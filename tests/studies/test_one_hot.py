"""Tables, one-hot vectors and patches."""

import pytest

from vit.studies import one_hot
from vit.studies.one_hot import convolution_difference, one_hot_difference, study, table_errors


def test_both_ways_are_the_same(trained):
    assert one_hot_difference(trained) == 0
    assert convolution_difference(trained) < 1e-5


def test_a_smaller_table_is_worse(trained, monkeypatch):
    monkeypatch.setattr(one_hot, "SIZES", (1, 8, 64))
    rows, errors, _ = table_errors(trained, 48).T.tolist()
    assert rows == [1, 8, 64]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 2 * errors[-1] > 0


def test_the_study_gives_the_model_s_own_loss_for_w_e(experiment, trained, monkeypatch):
    monkeypatch.setattr(one_hot, "SIZES", (1, 8))
    rows = study(experiment).tables[1].rows
    assert [row[0] for row in rows[:-1]] == [1, 8]
    assert rows[-1][2].values[0] == pytest.approx(trained.scores["loss"], abs=0.05)  # 48 of its 256 test images
    assert rows[0][2].mean > rows[-1][2].mean
    assert rows[0][3].values == pytest.approx([rows[0][2].values[i] - rows[-1][2].values[i] for i in (0, 1)])
