"""Accuracy, confusion matrix and calibration of a classifier's logits."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.data import ImageSet
from vit.device import Compute
from vit.encoder import VisionTransformer
from vit.errors import TrainingError, one_line
from vit.evaluation.features import Prepare, batches
from vit.inputs import Images
from vit.isolation import eval_mode
from vit.mae import Model

DENSE_CLASSES = 100
"""Most classes for a dense confusion matrix; of 10,000 classes it would have 100 million cells."""


@torch.no_grad()
def head_logits(
    encoder: VisionTransformer,
    images: Images,
    prepare: Prepare,
    compute: Compute,
) -> Tensor:
    """Return the logits (N, classes) of a model's own head."""
    # float32 from here on: a softmax of bfloat16 logits would be coarse
    parts = []
    with eval_mode(encoder), compute.autocast():
        for inputs in batches(images, prepare, compute, "logits"):
            parts.append(encoder.forward_head(encoder(inputs)).float().cpu())
    return torch.cat(parts)


def why_no_classifier(model: Model) -> str:
    """Return why a model does not choose between classes; "" if it does."""
    classes = model.encoder.config.num_classes
    if not classes:
        return "it has no classification head; use a classifier, or fine-tune it"
    # a loaded head may say that it is for several labels at once; a single output is a regression
    kind = model.origin.problem_type if model.origin else ""
    if kind or classes == 1:
        return f"its head is for {kind or 'one output'}, no choice between classes"
    return ""


def classification_metrics(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return accuracy, cross-entropy, calibration and confusion as plain values."""
    if not bool(logits.isfinite().all()):
        raise TrainingError(
            "the logits of some images are nan or infinite: these weights cannot classify"
        )
    bins, error = reliability(logits, labels)
    return {
        "accuracy": accuracy(logits, labels),
        "cross_entropy": float(F.cross_entropy(logits, labels)),
        "expected_calibration_error": error,
        "reliability": bins,
        "confusion": confusion(logits, labels),
    }


def confident_mistakes(logits: Tensor, test: ImageSet, most: int = 12) -> list[dict[str, Any]]:
    """Return the wrong predictions that the model is surest of, as plain values.

    Returns:
        Up to `most`, the surest first: "image", its number; "file", "" if it has none; "class" and
        "predicted", by name; and the "confidence".
    """
    confidence, predicted = logits.softmax(1).max(1)  # each (N,)
    wrong = (predicted != test.labels).nonzero().flatten()
    surest = wrong[confidence[wrong].argsort(descending=True, stable=True)][:most]
    mistakes = []
    for image in surest.tolist():
        mistakes.append(
            {
                "image": image,
                "file": one_line(test.files[image]) if test.files else "",
                "class": test.class_names[int(test.labels[image])],
                "predicted": test.class_names[int(predicted[image])],
                "confidence": float(confidence[image]),
            }
        )
    return mistakes


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the top-1 accuracy."""
    return float((logits.argmax(1) == labels).float().mean())


def confusion(logits: Tensor, labels: Tensor) -> list[list[int]] | dict[str, Any]:
    """Count how often each class (row) was predicted as each class (column), as plain values.

    Returns:
        The rows; above DENSE_CLASSES the cells with a count, as [label, prediction, count].
    """
    classes = logits.shape[1]
    pairs = torch.stack([labels, logits.argmax(1)])  # (2, N)
    if classes > DENSE_CLASSES:
        cells, counts = pairs.unique(dim=1, return_counts=True)
        return {"classes": classes, "cells": torch.cat([cells, counts[None]]).T.tolist()}
    table = torch.zeros(classes, classes, dtype=torch.int64)
    return table.index_put(tuple(pairs), torch.tensor(1), accumulate=True).tolist()


def read_confusion(plain: Any) -> Tensor:
    """Return a `confusion` as a tensor (classes, classes); above DENSE_CLASSES it is sparse."""
    if not isinstance(plain, dict):
        return torch.tensor(plain)
    cells = torch.tensor(plain["cells"]).T  # (3, cells)
    size = (plain["classes"], plain["classes"])
    # a file may name cells outside of the table, which torch must check
    return torch.sparse_coo_tensor(cells[:2], cells[2], size, check_invariants=True).coalesce()


def reliability(
    logits: Tensor, labels: Tensor, bins: int = 15
) -> tuple[dict[str, list[Any]], float]:
    """Return confidence against accuracy, and the expected calibration error.

    Naeini et al. 2015: images are grouped by confidence into bins of equal width from 0 to 1. The
    error is the mean distance between confidence and accuracy, weighted by count.

    Returns:
        By name, a value per bin, as JSON holds them: the mean "confidence" and the "accuracy", None
        for empty bins, and the "count" of images. Then the error.
    """
    confidence, predicted = logits.softmax(1).max(1)  # each (N,)
    index = (confidence * bins).long().clamp(max=bins - 1)  # (N,), each image's bin
    correct = (predicted == labels).double()

    # per bin, all (bins,): nan where it is empty, 0 / 0
    count = torch.bincount(index, minlength=bins)
    mean_accuracy = torch.bincount(index, weights=correct, minlength=bins) / count
    mean_confidence = torch.bincount(index, weights=confidence.double(), minlength=bins) / count

    # an empty bin counts nothing
    distance = (mean_accuracy - mean_confidence).abs().nan_to_num()
    error = (distance * count).sum() / len(labels)
    by_name = {
        "confidence": _none_for_nan(mean_confidence),
        "accuracy": _none_for_nan(mean_accuracy),
        "count": count.tolist(),
    }
    return by_name, float(error)


def _none_for_nan(values: Tensor) -> list[float | None]:
    """Return values (bins,) as JSON holds them, which has no nan."""
    # in float32, whose shorter digits suffice for a page
    return [None if math.isnan(value) else value for value in values.float().tolist()]
