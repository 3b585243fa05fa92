"""summary.json: what a run measured at its end, and all that is needed to compare it with another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torchvision
from torch import Tensor

from vit import __version__
from vit.checkpoints.native import fingerprint
from vit.data.augment import evenly_spaced, to_float
from vit.device import device_name
from vit.evaluate import Options, as_summary, evaluate, has_decoder
from vit.training.run import TrainingRun


def summarize(run: TrainingRun, metrics: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of summary.json.

    Args:
        run: at its last step.
        metrics: lines of metrics.jsonl.
        measured: from `measure_run`.

    Returns:
        Plain values for JSON. The training loss is the mean over the last epoch's lines of `metrics`.
    """
    config, data = run.config, run.data
    last_epoch = [line["loss"] for line in metrics if "loss" in line and line["epoch"] > config.train.epochs - 1]
    return {
        "task": config.train.task,
        "init": config.model.init,
        "init_fingerprint": run.init,
        "fingerprint": fingerprint(run.result),
        "data": data.facts,
        "steps": run.step,
        "epochs": config.train.epochs,
        "final_train_loss": sum(last_epoch) / len(last_epoch) if last_epoch else None,
        **measured,
        "weights": "the average over the steps" if run.average else "those of the last step",
        "images_per_second": config.train.epochs * len(data.train) / run.seconds,
        "seconds": run.seconds,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "device": device_name(run.compute.device),
        "precision": run.compute.precision,
        "threads": torch.get_num_threads(),
        "processes": run.processes.count,
        "seed": config.train.seed,
        "versions": {
            "vit-patch-trainer": __version__,
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "python": sys.version.split()[0],
        },
    }


def measure_run(run: TrainingRun) -> tuple[dict[str, Any], Tensor | None]:
    """Measure a run on its test images.

    Returns:
        The figures by their names in summary.json, and a classifier's logits (N, classes) or None. Losses are means over
        the hidden patches, in the space of the model's targets; `neighbours` is None without labels.

    Raises:
        NoClassifierError: a logit is nan or infinite.
    """
    data, options = run.data, _options(run)
    if not has_decoder(run.result):
        evaluation = evaluate(run.result, data, ["head"], preparation(run), run.compute, options)
        return as_summary(evaluation.figures), evaluation.logits
    methods = ["reconstruction", *(["knn"] if data.train.labelled and data.test.labelled else [])]
    if run.config.train.knn_images:  # the features of the others are not needed
        searched = evenly_spaced(len(data.train), run.config.train.knn_images)
        data = replace(data, train=data.train.subset(searched))
    return as_summary(evaluate(run.result, data, methods, preparation(run), run.compute, options).figures), None


def measure_held_out(run: TrainingRun) -> dict[str, float]:
    """Measure the run as it is on the training images that are held out, for metrics.jsonl."""
    methods = ["reconstruction" if has_decoder(run.result) else "head"]
    options = replace(_options(run), flip=False)
    measured = as_summary(evaluate(run.result, run.data, methods, preparation(run), run.compute, options).figures)
    names = {"held_out_loss": "test_loss", "held_out_accuracy": "test_accuracy"}
    return {name: measured[key] for name, key in names.items() if key in measured}


def _options(run: TrainingRun) -> Options:
    config = run.config
    return Options(masks=((config.mask.kind, config.mask.ratio),), flip=config.classify.test_flip)


def preparation(run: TrainingRun) -> Callable[[Tensor], Tensor]:
    """Return the map from images uint8 (B, C, h, w) to the input of the run's model (B, C, H, W)."""
    return lambda batch: run.normalize(to_float(batch, run.config.model.image_size_2d))
