"""One loss for all matrices."""

from dataclasses import replace

import pytest

from vit.studies import StudyConfig, who_trains_them
from vit.studies.experiment import W_Q_FROZEN
from vit.studies.who_trains_them import BY_LAYER, MATRICES, loss_of, pull_of, study


def test_every_matrix_is_pulled_and_moves_but_for_what_is_frozen(one_seed):
    pull = pull_of(one_seed.models(), 32)
    for name in BY_LAYER:
        assert pull.gradient[name].shape == (1, 3, 2)  # seeds, moments, layers
        assert (pull.gradient[name] > 100 * pull.gradient["b_K"]).all(), name
        assert (pull.moved[name] > 1e-3).all(), name
    assert (pull.gradient["W_E"] > 0).all()
    assert (pull.moved["positions"] == 0).all()  # they are fixed
    frozen = pull_of(one_seed.models(W_Q_FROZEN), 32)
    assert (frozen.moved["W_Q"] == 0).all()
    assert (frozen.gradient["W_Q"] > 0).all()  # it would be pulled
    assert (frozen.moved["W_K"] > 1e-3).all()


def test_the_loss_is_that_of_the_model_s_scores(trained):
    assert loss_of(trained) == pytest.approx(trained.scores["loss"])


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "counted"), [(10**6, 256), (50, 50)])
def test_the_study_measures_the_images_that_there_are(one_seed, monkeypatch, asked, counted):
    monkeypatch.setattr(who_trains_them, "FROZEN", (W_Q_FROZEN,))
    monkeypatch.setattr(who_trains_them, "MOST_IMAGES", 1000)  # there are 256
    results = study(replace(one_seed, study=StudyConfig([0], asked)))
    matrices, pairs, biases, arms = results.tables
    assert matrices.title.endswith(f"; loss of {counted} test images")
    assert [row[0] for row in matrices.rows] == list(MATRICES)
    assert [row[0] for row in biases.rows] == ["b_Q", "b_K", "b_V"]
    assert [row[0] for row in arms.rows] == ["all learn", "W_Q frozen"]
    assert arms.rows[1][2].mean == pytest.approx(arms.rows[1][1].mean - arms.rows[0][1].mean)
    assert len(pairs.rows[0]) == len(pairs.columns)
    positions = dict((row[0], row) for row in matrices.rows)["positions"]
    assert positions[4].mean > 0  # of the models that learn them
    assert set(results.pictures) == {"gradients", "frozen"}
