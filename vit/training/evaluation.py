"""Measure the model of a run on its test images: along the way, and at the end."""

from __future__ import annotations

from typing import Any

from vit.evaluate import Options, as_summary, evaluate
from vit.training.run import Run

NEED_LABELS = ("knn", "linear", "head")
"""Methods of `vit.evaluate` that need labels."""


def measure(run: Run, baselines: bool = True) -> dict[str, Any]:
    """Measure `run.result` on `run.data.test` by the methods that the objective names.

    Args:
        run: at the step to be measured.
        baselines: also measure what the k-NN accuracy is compared with, raw pixels. Validation does
            not need them.

    Returns:
        Plain values by their names in summary.json.

    Raises:
        TrainingError: a feature or logit is nan or infinite.
    """
    config = run.config
    data = run.data

    # without labels there is nothing to classify
    methods = list(run.objective.measures)
    if not data.has_classes:
        methods = [method for method in methods if method not in NEED_LABELS]

    # as in training, with the same share of masked patches
    options = Options(
        masks=((config.mask.kind, config.mask.ratio),),
        raw_pixels=baselines,
        knn_images=config.run.knn_images,
    )
    evaluation = evaluate(run.result, data, methods, run.prepare, run.compute, options)
    return as_summary(evaluation.scores)
