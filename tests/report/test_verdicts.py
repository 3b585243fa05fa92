"""A difference counts from two standard errors: oracles are McNemar's test and a simulated coin."""

from __future__ import annotations

import math

import pytest
import torch

from vit.metrics import METRICS, standard_error
from vit.report.verdicts import (
    judge,
    judge_accuracies,
    judge_constant_guess,
    judge_pairs,
    loss_verdicts,
    neighbour_verdicts,
)


def test_standard_error_is_the_deviation_of_an_accuracy_over_draws_of_images():
    accuracies = (torch.rand(20_000, 400) < 0.3).float().mean(1)
    assert standard_error(0.3, 400) == pytest.approx(float(accuracies.std()), rel=0.03)


def test_pairs_are_judged_as_by_mcnemar():
    for only_model in range(30):
        for only_other in range(30):
            verdict = judge_pairs(only_model, only_other)
            total = only_model + only_other
            significant = total > 0 and (only_model - only_other) ** 2 / total > 4
            assert (verdict != "unclear") == significant
            assert (verdict == "better") == (significant and only_model > only_other)
    assert judge_pairs(4, 0) == "unclear"  # all of four images are too few


def test_without_pairs_two_accuracies_are_compared():
    error = math.sqrt(2) * standard_error(0.5, 1000)
    assert judge_accuracies(0.5 + 2.1 * error, 0.5, 1000) == "better"
    assert judge_accuracies(0.5, 0.5 + 2.1 * error, 1000) == "worse"
    assert judge_accuracies(0.5 + 1.9 * error, 0.5, 1000) == "unclear"
    assert judge(1.0, None) == "unclear"
    # all of one image right, none by the other: too few to tell
    assert judge_accuracies(1.0, 0.0, 1) == "unclear"
    assert judge_accuracies(1.0, 0.0, 20) == "better"


def test_a_summary_without_pairs_is_judged_by_what_it_has():
    neighbours = {"encoder_accuracy": 0.6, "raw_pixel_accuracy": 0.5, "queries": 1000, "bank": 9}
    assert neighbour_verdicts({"neighbours": neighbours}) == {"raw_pixels": "better"}
    compared = {"queries": 1000, "bank": 9, "pairs": {"raw_pixels": [5, 5], "untrained": [0, 9]}}
    summary = {"neighbours": neighbours, "baselines": {"knn": compared}}
    assert neighbour_verdicts(summary) == {"raw_pixels": "unclear", "untrained": "worse"}
    assert neighbour_verdicts({"neighbours": None}) == {}
    assert loss_verdicts({}) == {}


def test_a_constant_guess_is_compared_image_by_image():
    confusions = torch.tensor([[50, 10, 0], [0, 30, 0], [5, 0, 5]]).to_sparse().coalesce()
    assert judge_constant_guess(confusions) == judge_pairs(30 + 5, 10) == "better"
    assert judge_constant_guess(torch.tensor([[9, 1], [1, 0]]).to_sparse().coalesce()) == "unclear"


@pytest.mark.parametrize(
    ("value", "images", "text"),
    [
        (0.453, 10_000, "45.3% ± 0.5%"),
        (0.5, 100, "50% ± 5%"),
        (1.0, 4, "100% (4 of 4)"),
        (0.0, 4, "0% (0 of 4)"),
        (0.5, 0, "50.0%"),
    ],
)
def test_an_accuracy_is_written_as_exactly_as_its_images_allow(value, images, text):
    assert METRICS["accuracy"].write_with_error(value, images, brief=True) == text
