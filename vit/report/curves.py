"""The curves of a run, by what its objective measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vit.figures import Curve
from vit.metrics import BASELINES, Scores
from vit.training.objectives import CLASSES, Objective


def curves_of(
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    scores: Scores,
    metrics: Sequence[Mapping[str, Any]],
) -> list[Curve]:
    """Return the curves of a run besides learning rate and gradient norm.

    Curves measured only on held-out images are left out for a run without any.

    Args:
        settings: by "section.key".
        data: `Dataset.facts`; empty if nobody knows.
        scores: what was measured at the end; empty if the run is not finished.
        metrics: lines of metrics.jsonl.
    """
    tested_on = data.get("tested_on", "test images").replace("training ", "")
    end = f"{tested_on} at the end"
    # What the objective measures
    curves: list[Curve] = []
    for measure in CLASSES.get(settings["train.objective"], Objective).measures:
        if measure in CURVES:
            curves += CURVES[measure](settings, end, scores)
    if settings["reconstruct.contrast"]:
        curves.insert(1, other_view_curve(settings, data))
    # A curve of held-out images alone needs a run that has measured them
    measured: set[str] = set()
    for line in metrics:
        measured.update(line)
    return [curve for curve in curves if curve.key or curve.val_key in measured]


def level_lines(scores: Scores, method: str, key: str, end: str) -> dict[str, float]:
    """Return the level lines beside a curve: the measure at the end, and its baselines."""
    if method not in scores:
        return {}
    row = scores[method][0]
    lines = {end: row[key]}
    if key in ("loss", "accuracy"):
        for name, value in row["baselines"].items():
            lines[BASELINES[name]] = value
    return lines


def reconstruction_curves(settings: Mapping[str, Any], end: str, scores: Scores) -> list[Curve]:
    """Return the loss over the masked patches."""
    key = "loss"
    if settings["reconstruct.contrast"]:
        # the loss is then a sum
        key = "masked_loss"
    lines = level_lines(scores, "reconstruction", "loss", end)
    return [Curve("loss over the masked patches", key, "val_loss", lines)]


def other_view_curve(settings: Mapping[str, Any], data: Mapping[str, Any]) -> Curve:
    """Return how often an image's other view is found, beside how often a guess would find it."""
    lines = {}
    if data:
        views = 2 * min(settings["train.batch_size"], data["train_images"])
        lines["by guessing"] = 1 / (views - 1)
    return Curve("other view found among the batch's", "pair_accuracy", lines=lines, share=True)


def knn_curves(settings: Mapping[str, Any], end: str, scores: Scores) -> list[Curve]:
    """Return the accuracy of nearest neighbours, which is measured on held-out images alone."""
    lines = level_lines(scores, "knn", "accuracy", end)
    return [Curve("nearest neighbours", "", "val_knn_accuracy", lines, share=True)]


def head_curves(settings: Mapping[str, Any], end: str, scores: Scores) -> list[Curve]:
    """Return a classifier's cross-entropy and accuracy."""
    loss = level_lines(scores, "head", "cross_entropy", end)
    accuracy = level_lines(scores, "head", "accuracy", end)
    return [
        Curve("cross-entropy", "loss", "val_loss", loss),
        Curve("accuracy", "train_accuracy", "val_accuracy", accuracy, share=True),
    ]


CURVES = {"reconstruction": reconstruction_curves, "knn": knn_curves, "head": head_curves}
"""What each measure has been in training; those without an entry are measured at the end alone."""
