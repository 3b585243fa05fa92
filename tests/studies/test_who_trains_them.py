"""One loss for all matrices."""

from dataclasses import replace

import pytest
import torch

from vit.studies import who_trains_them
from vit.studies.arms import W_Q_FROZEN, learn_arm
from vit.studies.finding import seeds
from vit.studies.who_trains_them import BY_LAYER, MATRICES, answer, faintest, loss_of, pull_of, study


def test_every_matrix_is_pulled_and_moves_but_for_what_is_frozen(laboratory, one_seed):
    pull = pull_of([laboratory.learn(one_seed.training, 0)], 32)
    for name in BY_LAYER:
        assert pull.gradient[name].shape == (1, 3, 2)  # seeds, moments, layers
        assert (pull.gradient[name] > 100 * pull.gradient["b_K"]).all(), name
        assert (pull.moved[name] > 1e-3).all(), name
    assert (pull.gradient["W_E"] > 0).all()
    assert (pull.moved["positions"] == 0).all()  # they are fixed
    frozen = pull_of(learn_arm(laboratory, one_seed, W_Q_FROZEN), 32)
    assert (frozen.moved["W_Q"] == 0).all()
    assert (frozen.gradient["W_Q"] > 0).all()  # it would be pulled
    assert (frozen.moved["W_K"] > 1e-3).all()


def test_what_only_rounding_pulls_at_is_named():
    gradient = {name: torch.full((1, 3, 2), 1e-4) for name in MATRICES} | {"b_K": torch.full((1, 3, 2), 1e-10)}
    gradient["W_K"][0, 0, 1] = 1e-5
    assert faintest(gradient) == ("W_K, is some 100,000", "")
    gradient["W_O"][0, 2, 0] = 2e-10
    assert faintest(gradient) == ("W_O, is some 2", "W_O")


def test_the_loss_is_that_of_the_model_s_scores(learned):
    assert loss_of(learned) == pytest.approx(learned.scores.loss)


def test_the_study_says_what_was_measured(laboratory, one_seed, monkeypatch):
    monkeypatch.setattr(who_trains_them, "FROZEN", (W_Q_FROZEN,))
    finding = study(laboratory, one_seed)
    matrices, biases, arms = finding.tables
    assert matrices.title.endswith("; loss of 48 test images")
    assert [row[0] for row in matrices.rows] == list(MATRICES)
    assert [row[0] for row in biases.rows] == ["b_Q", "b_K", "b_V"]
    assert [row[0] for row in arms.rows] == ["all learn", "W_Q frozen"]
    positions = dict((row[0], row) for row in matrices.rows)["positions"]
    assert positions[4].mean > 0  # of the models that learn them
    assert finding.answer.startswith(
        "One loss trains all of them, in one backward pass: even the weakest gradient, on "
    )
    assert "most is lost with W_Q frozen (" in finding.answer
    assert set(finding.pictures) == set(finding.captions) == {"gradients", "frozen"}


def test_the_answer_follows_the_figures():
    pulls = seeds([0.12, 0.13]), seeds([0.5, 0.3])
    lost = {"MLP frozen": seeds([0.05, 0.06]), "W_O frozen": seeds([0.01, -0.01])}
    ways = seeds([0.15, 0.16], share=True), seeds([0.08, 0.09], share=True)
    said = answer("W_K, is some 400", "", *pulls, ways, seeds([0.65, 0.66]), lost)
    assert said.startswith(
        "One loss trains all of them, in one backward pass: even the weakest gradient, on W_K, is some 400"
    )
    assert (
        "gradients 0.12 ± 0.01 times as strong as those of W_V and W_O at the start, 0.40 ± 0.14 times at the" in said
    )
    assert "they move by 15.5% ± 0.7 of it, W_V and W_O by 8.5% ± 0.7: " in said
    assert said.endswith(
        "lost with MLP frozen (+0.055 ± 0.007 on a loss of 0.655 ± 0.007), nothing clear with W_O frozen."
    )
    missed = answer("W_O, is some 2", "W_O", *pulls, ways, seeds([0.65]), {"W_O frozen": seeds([0.01, -0.01])})
    assert missed.startswith(
        "One loss trains all of them but W_O, in one backward pass: the weakest gradient, on W_O, is some 2"
    )
    assert missed.endswith("start, nothing clear is lost with any of them.")


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "counted"), [(10**6, 256), (50, 50)])
def test_the_images_that_there_are_are_counted(laboratory, one_seed, monkeypatch, asked, counted):
    monkeypatch.setattr(who_trains_them, "FROZEN", (W_Q_FROZEN,))
    monkeypatch.setattr(who_trains_them, "MOST_IMAGES", 1000)  # there are 256
    matrices = study(laboratory, replace(one_seed, images=asked)).tables[0]
    assert matrices.title.endswith(f"; loss of {counted} test images")
