"""One loss for all matrices."""

import pytest

from vit.studies.who_trains_them import BY_LAYER, pull_of


def test_every_matrix_is_pulled_and_moves_but_for_what_is_frozen(one_seed):
    pull = pull_of(one_seed.models(), 32)
    for name in BY_LAYER:
        assert pull.gradient[name].shape == (1, 3, 2)  # seeds, moments, layers
        assert (pull.gradient[name] > 100 * pull.gradient["b_K"]).all(), name
        assert (pull.moved[name] > 1e-3).all(), name
    assert (pull.gradient["W_E"] > 0).all()
    assert (pull.moved["positions"] == 0).all()  # they are fixed
    frozen = pull_of(one_seed.models("W_Q frozen"), 32)
    assert (frozen.moved["W_Q"] == 0).all()
    assert (frozen.gradient["W_Q"] > 0).all()  # it would be pulled
    assert (frozen.moved["W_K"] > 1e-3).all()


def test_the_loss_is_that_of_the_model_s_scores(trained):
    assert trained.reconstruction().model == pytest.approx(trained.scores["loss"])
