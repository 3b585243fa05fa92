"""Tables, one-hot vectors and patches."""

import pytest

from studies import one_hot
from studies.one_hot import (
    CHOICES,
    convolution_difference,
    masked_loss,
    one_hot_difference,
    table_errors,
)


def test_both_ways_are_the_same(trained):
    assert one_hot_difference(trained) == 0
    assert convolution_difference(trained) < 1e-5


def test_a_smaller_table_is_worse_and_one_chosen_by_vectors_has_the_smaller_error(
    trained, monkeypatch
):
    monkeypatch.setattr(one_hot, "SIZES", (1, 8, 64))
    last = {}
    for choice in CHOICES:
        rows, errors, losses = table_errors(trained, 48, choice).T.tolist()
        assert rows == [1, 8, 64]
        assert errors == sorted(errors, reverse=True)
        assert errors[0] > 2 * errors[-1] > 0
        assert losses[0] > losses[-1]
        last[choice] = errors[-1]
    assert last["vectors"] < last["pixels"]


def test_the_loss_with_w_e_is_the_model_s_own(trained):
    assert masked_loss(trained, trained.inputs(256)) == pytest.approx(trained.scores["loss"])
