"""The training curves of a run, which depend on its objective."""

from __future__ import annotations

from vit.figures.curves import Curve
from vit.metrics import BASELINES, MAIN, MEASURES
from vit.report.record import RunRecord
from vit.training.callbacks import VALIDATION
from vit.training.objectives import CLASSES, Objective


def curves_of(record: RunRecord) -> list[Curve]:
    """Return the curves of a run besides learning rate and gradient norm.

    Curves measured only on held-out images are left out for a run without any.
    """
    tested_on = record.tested_on.replace("training ", "")
    contrast = record.settings["reconstruct.contrast"]
    methods = CLASSES.get(record.settings["train.objective"], Objective).measures
    curves = []
    for method, score, val_key, key in VALIDATION:
        # a curve of held-out images alone needs a run that has measured them
        is_known = key or any(val_key in line for line in record.metrics)
        if method not in methods or not is_known:
            continue
        # with a contrast, the loss of a step is a sum
        if contrast and key == "loss":
            key = "masked_loss"

        # the score at the end, and its baselines
        lines = {}
        if method in record.scores:
            row = record.scores[method][0]
            lines[f"{tested_on} at the end"] = row[score]
            if score == MAIN[method]:
                lines |= {BASELINES[name]: value for name, value in row["baselines"].items()}
        measure = MEASURES[method, score]
        share = measure.kind == "accuracy"
        curves.append(Curve(measure.label, key, val_key, lines, share=share))

    # the accuracy of finding an image's other view, and that of a guess
    if contrast:
        lines = {}
        if record.data:
            views = 2 * min(record.settings["train.batch_size"], record.data["train_images"])
            lines["chance"] = 1 / (views - 1)
        title = "accuracy of finding the other view in the batch"
        curves.insert(1, Curve(title, "pair_accuracy", lines=lines, share=True))
    return curves
