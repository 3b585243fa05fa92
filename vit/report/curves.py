"""The training curves of a run, which depend on its objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vit.figures import Curve
from vit.metrics import BASELINES, MAIN, MEASURES, Scores
from vit.training.callbacks import VALIDATION
from vit.training.objectives import CLASSES, Objective

IN_TRAINING = {
    ("reconstruction", "loss"): "loss",
    ("head", "cross_entropy"): "loss",
    ("head", "accuracy"): "train_accuracy",
}
"""What a step logs, on augmented images, of the scores in VALIDATION: by method and measure."""


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
    contrast = settings["reconstruct.contrast"]
    methods = CLASSES.get(settings["train.objective"], Objective).measures
    curves = []
    for val_key, method, score in VALIDATION:
        key = IN_TRAINING.get((method, score), "")
        # a curve of held-out images alone needs a run that has measured them
        is_known = key or any(val_key in line for line in metrics)
        if method not in methods or not is_known:
            continue
        # with a contrast, the loss of a step is a sum
        if contrast and key == "loss":
            key = "masked_loss"

        # the score at the end, and its baselines
        lines = {}
        if method in scores:
            row = scores[method][0]
            lines[f"{tested_on} at the end"] = row[score]
            if score == MAIN[method]:
                lines |= {BASELINES[name]: value for name, value in row["baselines"].items()}
        measure = MEASURES[method, score]
        share = measure.kind == "accuracy"
        curves.append(Curve(measure.label, key, val_key, lines, share=share))

    # the accuracy of finding an image's other view, and that of a guess
    if contrast:
        lines = {}
        if data:
            views = 2 * min(settings["train.batch_size"], data["train_images"])
            lines["chance"] = 1 / (views - 1)
        title = "accuracy of finding the other view in the batch"
        curves.insert(1, Curve(title, "pair_accuracy", lines=lines, share=True))
    return curves
