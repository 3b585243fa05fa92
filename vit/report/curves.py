"""The training curves of a run, which depend on its objective."""

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
        data: `Dataset.facts`; empty if unknown.
        scores: what was measured at the end; empty if the run is not finished.
        metrics: lines of metrics.jsonl.
    """
    tested_on = data.get("tested_on", "test images").replace("training ", "")

    def level_lines(method: str, key: str) -> dict[str, float]:
        """Return the measure at the end, and its baselines."""
        if method not in scores:
            return {}
        row = scores[method][0]
        lines = {f"{tested_on} at the end": row[key]}
        if key in ("loss", "accuracy"):
            lines |= {BASELINES[name]: value for name, value in row["baselines"].items()}
        return lines

    # with a contrast, the loss is a sum
    contrast = settings["reconstruct.contrast"]
    masked_loss = "masked_loss" if contrast else "loss"
    neighbours = level_lines("knn", "accuracy")
    loss = level_lines("reconstruction", "loss")
    accuracy = level_lines("head", "accuracy")
    curves_by_measure = {
        "reconstruction": [Curve("loss on masked patches", masked_loss, "val_loss", loss)],
        "knn": [Curve("nearest neighbours", "", "val_knn_accuracy", neighbours, share=True)],
        "head": [
            Curve("cross-entropy", "loss", "val_loss", level_lines("head", "cross_entropy")),
            Curve("accuracy", "train_accuracy", "val_accuracy", accuracy, share=True),
        ],
    }
    curves: list[Curve] = []
    for measure in CLASSES.get(settings["train.objective"], Objective).measures:
        curves += curves_by_measure.get(measure, [])

    # the accuracy of finding an image's other view, and that of a guess
    if contrast:
        lines = {}
        if data:
            views = 2 * min(settings["train.batch_size"], data["train_images"])
            lines["chance"] = 1 / (views - 1)
        title = "accuracy of finding the other view in the batch"
        curves.insert(1, Curve(title, "pair_accuracy", lines=lines, share=True))

    # a curve of held-out images alone needs a run that has measured them
    measured: set[str] = set()
    for line in metrics:
        measured.update(line)
    return [curve for curve in curves if curve.key or curve.val_key in measured]
