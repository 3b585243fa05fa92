"""What a run leaves besides its model: a summary, and a few images to show it at work."""

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
    """Return all facts about a finished run, for comparison with others.

    Args:
        run: at its last step.
        metrics: lines of metrics.jsonl.
        measured: scores, from `vit.train.measure`.

    Returns:
        Plain values for JSON. The training loss is the mean over the last epoch's lines of
        `metrics`; images per second count each view.
    """
    config = run.config
    data = run.data

    # the loss of the last epoch: single steps differ by their images; other lines are callbacks'
    losses = []
    for line in metrics:
        if "lr" in line and "loss" in line and line["epoch"] > config.train.epochs - 1:
            losses.append(line["loss"])
    final_loss = None
    if losses:
        final_loss = sum(losses) / len(losses)

    # in words, for whoever opens the file
    weights = "those of the last step"
    if run.ema is not None:
        weights = "the average over the steps"
    # seen in training, each view counted; the steps of an epoch may leave images out
    count = len(data.train)
    seen = min(config.steps_per_epoch(count) * config.train.batch_size, count)
    images = config.train.epochs * seen * config.augment.views
    return {
        "objective": config.train.objective,
        "init": config.model.init,
        "init_content_hash": run.init_hash,
        "content_hash": weights_hash(run.result),
        "data": data.facts,
        "steps": run.step,
        "epochs": config.train.epochs,
        "final_train_loss": final_loss,
        **measured,
        "weights": weights,
        "images_per_second": images / run.seconds,
        "seconds": run.seconds,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "device": device_name(run.compute.device),
        "precision": run.compute.precision,
        "threads": torch.get_num_threads(),
        "processes": run.dist.world_size,
        "seed": config.train.seed,
        "versions": versions(),
    }


def sample_images(data: Dataset) -> SampleImages:
    """Return some test images, spread over the classes, which a run keeps and its pictures show."""
    samples = data.test.subset(data.test.showcase(SAMPLES))
    return SampleImages(
        samples.images[:], samples.label_names, list(samples.class_names), data.facts
    )
