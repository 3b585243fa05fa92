"""What a run leaves besides its model: a summary, for comparison with others, and a few images to show it at work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vit.data import Dataset
from vit.device import device_name
from vit.machine import versions
from vit.runs import SampleImages
from vit.training.run import Run
from vit.weights import weights_hash

SAMPLES = 10
"""How many images a run keeps; for CIFAR-10, one per class."""


def summarize(
    run: Run, metrics: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all facts about a finished run.

    Args:
        run: at its last step.
        metrics: lines of metrics.jsonl.
        measured: of the objective.

    Returns:
        Plain values for JSON. The training loss is the mean over the last epoch's lines of `metrics`; images per second
        count each view.
    """
    config, data = run.config, run.data
    last_epoch = [
        line["loss"]
        for line in metrics
        if "loss" in line and line["epoch"] > config.train.epochs - 1
    ]
    return {
        "objective": config.train.objective,
        "init": config.model.init,
        "init_content_hash": run.init,
        "content_hash": weights_hash(run.result),
        "data": data.facts,
        "steps": run.step,
        "epochs": config.train.epochs,
        "final_train_loss": sum(last_epoch) / len(last_epoch) if last_epoch else None,
        **measured,
        "weights": "the average over the steps" if run.ema else "those of the last step",
        "images_per_second": config.train.epochs
        * len(data.train)
        * config.augment.views
        / run.seconds,
        "seconds": run.seconds,
        "init_seconds": run.init_seconds,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "device": device_name(run.compute.device),
        "precision": run.compute.precision,
        "threads": torch.get_num_threads(),
        "processes": run.dist.world_size,
        "seed": config.train.seed,
        "versions": versions(),
    }


def sample_images(data: Dataset) -> SampleImages:
    """Return some test images, spread evenly over the classes: those that a run keeps, and its pictures show."""
    some = data.test.subset(data.test.showcase(SAMPLES))
    return SampleImages(some.images[:], some.label_names, list(some.class_names), data.facts)
