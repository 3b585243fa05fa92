"""summary.json: what a run came to, and all that is needed to compare it with another."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import torchvision
from torch import Tensor

from vit import __version__
from vit.checkpoints.native import fingerprint
from vit.data.augment import evenly_spaced, to_float
from vit.device import device_name
from vit.evaluate.classification import accuracy, head_logits, reliability, worth
from vit.evaluate.features import encoder_features, pixel_features
from vit.evaluate.neighbours import K, neighbour_accuracy
from vit.evaluate.reconstruction import score_reconstruction
from vit.mae import MaskedAutoencoder
from vit.training.run import TrainingRun


def summarize(run: TrainingRun, metrics: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]) -> dict[str, Any]:
    """All there is to know about a finished run.

    Args:
        run: at its last step.
        metrics: lines of metrics.jsonl.
        measured: from `measure_reconstruction` or `measure_classification`.

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


def measure_reconstruction(run: TrainingRun) -> dict[str, Any]:
    """What a pretraining came to on its test images.

    Returns:
        Plain values. Losses are means over the hidden patches, in the space of the model's targets; accuracies go from 0 to
        1; `neighbours` is None without labels.
    """
    config, data = run.config, run.data
    kind, ratio = config.mask.kind, config.mask.ratio
    model = cast(MaskedAutoencoder, run.result)
    scores = score_reconstruction(model, data.test.images, preparation(run), kind, ratio, run.compute)
    return {
        "test_loss": scores.model,
        "test_loss_of_baselines": {
            "mean_of_visible_patches": scores.mean_visible,
            "nearest_visible_patch": scores.nearest_visible,
        },
        "test_mask": {"kind": kind, "ratio": ratio, "fixed": True},
        "neighbours": score_neighbours(run) if data.train.labelled and data.test.labelled else None,
    }


def measure_classification(run: TrainingRun) -> tuple[dict[str, Any], Tensor]:
    """What a classifier came to on its test images: plain values, accuracies from 0 to 1, and its logits (N, classes).

    Raises:
        NoClassifierError: a logit is nan or infinite.
    """
    test, encoder = run.data.test, run.result.encoder
    logits = head_logits(encoder, test.images, preparation(run), run.compute)
    found, bins = worth(logits, test.labels), reliability(logits, test.labels)
    measured = {
        "test_accuracy": found["accuracy"],
        "test_loss": found["cross_entropy"],
        "test_calibration_error": found["expected_calibration_error"],
        "test_confusion": found["confusion"],
        "test_reliability": {
            "confidence": _plain(bins.confidence), "accuracy": _plain(bins.accuracy), "count": bins.count.tolist(),
        },
    }  # fmt: skip
    if run.config.classify.test_flip:
        flipped = head_logits(encoder, test.images, preparation(run), run.compute, flip=True)
        measured["test_accuracy_with_flip"] = accuracy(flipped, test.labels)
    return measured, logits


def _plain(values: Tensor) -> list[float | None]:
    """(n,) as JSON can hold it: None where there is no number."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def measure_held_out(run: TrainingRun) -> dict[str, float]:
    """What the run has come to so far, on the training images that are held out, for metrics.jsonl."""
    if run.config.train.task == "classify":
        logits = head_logits(run.result.encoder, run.data.test.images, preparation(run), run.compute)
        found = worth(logits, run.data.test.labels)
        return {"held_out_loss": found["cross_entropy"], "held_out_accuracy": found["accuracy"]}
    mask, model = run.config.mask, cast(MaskedAutoencoder, run.result)
    scores = score_reconstruction(model, run.data.test.images, preparation(run), mask.kind, mask.ratio, run.compute)
    return {"held_out_loss": scores.model}


def preparation(run: TrainingRun) -> Callable[[Tensor], Tensor]:
    """From images uint8 (B, C, h, w) to the input of the run's model (B, C, H, W)."""
    return lambda batch: run.normalize(to_float(batch, run.config.model.image_size_2d))


def score_neighbours(run: TrainingRun) -> dict[str, Any]:
    """Nearest neighbours by the frozen encoder's features, and by the pixels themselves, on the same images."""
    train, test = run.data.train, run.data.test
    chosen = evenly_spaced(len(train), run.config.train.knn_images)
    bank, labels = train.images[chosen], train.labels[chosen]

    def accuracy(bank_features: torch.Tensor, query_features: torch.Tensor) -> float:
        return neighbour_accuracy(bank_features, labels, query_features, test.labels)

    prepare, encoder = preparation(run), run.result.encoder
    learned = [encoder_features(encoder, images, prepare, run.compute)[0] for images in (bank, test.images)]
    return {
        "k": K,
        "bank": len(bank),
        "queries": len(test),
        "encoder_accuracy": accuracy(*learned),
        "raw_pixel_accuracy": accuracy(pixel_features(bank), pixel_features(test.images)),
    }
