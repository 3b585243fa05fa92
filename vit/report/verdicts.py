"""Whether a model does better than a baseline, or the images are too few to tell.

A difference counts if it exceeds two standard errors: a smaller one may be the choice of images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from vit.metrics import standard_error

Verdict = Literal["better", "worse", "unclear"]


def judge(difference: float, error: float | None) -> Verdict:
    """Judge by how much a model is better than a baseline.

    Args:
        difference: positive if the model is better.
        error: its standard error; None if there are too few images for one.
    """
    if error is None or abs(difference) <= 2 * error:
        return "unclear"
    if difference > 0:
        return "better"
    return "worse"


def judge_pairs(only_model: int, only_other: int) -> Verdict:
    """Judge two classifications of the same images, of which most are right or wrong in both.

    The standard error is that of McNemar's test (1947): if neither was better, each image that only
    one has right would be a toss of a coin.

    Args:
        only_model: the number of images that only the model has right.
        only_other: the number of images that only the baseline has right.
    """
    return judge(only_model - only_other, math.sqrt(only_model + only_other))


def judge_accuracies(model: float, other: float, images: int) -> Verdict:
    """Judge two accuracies on `images` images each, without knowing which images are right."""
    # As if of different images: the error is larger than that of pairs, so it errs to caution. If
    # neither was better, both had the mean accuracy; that of a few images may be 0 or 1 by chance.
    error = math.sqrt(2) * standard_error((model + other) / 2, images)
    return judge(model - other, error)


def loss_verdicts(summary: Mapping[str, Any]) -> dict[str, Verdict]:
    """Judge the loss on masked patches against each guess, by the guess's name in summary.json.

    Empty for a run whose baselines were not measured image by image.
    """
    compared = (summary.get("baselines") or {}).get("reconstruction") or {}
    verdicts = {}
    for name in ("mean_of_visible_patches", "nearest_visible_patch"):
        if name in compared:
            verdicts[name] = judge(compared[name]["mean"], compared[name]["standard_error"])
    return verdicts


def neighbour_verdicts(summary: Mapping[str, Any]) -> dict[str, Verdict]:
    """Judge the accuracy of nearest neighbours against "raw_pixels", "untrained" and "shipped".

    Those that were not measured are left out.
    """
    neighbours = summary.get("neighbours") or {}
    compared = (summary.get("baselines") or {}).get("knn") or {}
    # Image by image, where both classified the same ones
    verdicts = {}
    for name, (only_model, only_other) in compared.get("pairs", {}).items():
        verdicts[name] = judge_pairs(only_model, only_other)

    # More images say more about raw pixels than pairs of some of them
    if "raw_pixel_accuracy" in neighbours and not all_compared(summary):
        model = neighbours["encoder_accuracy"]
        pixels = neighbours["raw_pixel_accuracy"]
        verdicts["raw_pixels"] = judge_accuracies(model, pixels, neighbours["queries"])
    return verdicts


def all_compared(summary: Mapping[str, Any]) -> bool:
    """Return whether the baselines were measured on all images that the run was measured on."""
    neighbours = summary.get("neighbours") or {}
    compared = (summary.get("baselines") or {}).get("knn") or {}
    if "pairs" not in compared:
        return False
    measured = (neighbours.get("queries"), neighbours.get("bank"))
    return measured == (compared["queries"], compared["bank"])


def judge_constant_guess(table: Tensor) -> Verdict:
    """Judge a classifier against always guessing the most common class.

    Args:
        table: confusions, sparse (classes, classes): images by class and prediction.
    """
    labels, predicted = table.indices()
    counts = table.values()
    images = images_by_class(table)

    # The guess is right for the images of the most common class, and for no other
    common = images.argmax()
    right = labels == predicted
    only_model = counts[right & (labels != common)].sum()
    only_guess = counts[~right & (labels == common)].sum()
    return judge_pairs(int(only_model), int(only_guess))


def images_by_class(table: Tensor) -> Tensor:
    """Return the number of images of each class: sparse (classes, classes) -> int64 (classes,)."""
    labels, _ = table.indices()
    images = torch.zeros(len(table), dtype=torch.int64)
    return images.index_add(0, labels, table.values())
