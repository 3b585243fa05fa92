"""A classifier's logits over several views; their accuracy, confusions and calibration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.data import Dataset, ImageSet
from vit.device import Compute
from vit.encoder import VisionTransformer
from vit.errors import one_line, require_finite
from vit.evaluation.features import Prepare, batches
from vit.inputs import Images
from vit.isolation import eval_mode
from vit.mae import Model
from vit.progress import say

DENSE_CLASSES = 100
"""Most classes for a dense confusion matrix; of 10,000 classes it would have 100 million cells."""


def views_of(inputs: Tensor) -> Iterator[Tensor]:
    """Yield six views of images (B, C, H, W): themselves, mirrored, and four shifts by a pixel."""
    yield inputs
    yield inputs.flip(-1)
    # the border repeats the outermost pixels
    height, width = inputs.shape[-2:]
    bordered = F.pad(inputs, (1, 1, 1, 1), mode="replicate")
    for top, left in ((2, 1), (0, 1), (1, 2), (1, 0)):
        yield bordered[..., top : top + height, left : left + width]


def view_logits(encoder: VisionTransformer, inputs: Tensor, views: int) -> Tensor:
    """Return a classifier's logits for the first views of images, float32 (views, B, classes)."""
    # a softmax of bfloat16 logits would be coarse
    chosen = islice(views_of(inputs), views)
    return torch.stack([encoder.forward_head(encoder(view)).float() for view in chosen])


@torch.no_grad()
def head_logits(
    encoder: VisionTransformer,
    images: Images,
    prepare: Prepare,
    compute: Compute,
    views: int = 1,
) -> Tensor:
    """Return the logits (views, N, classes) of a model's own head: see `view_logits`."""
    with eval_mode(encoder), compute.autocast():
        parts = [
            view_logits(encoder, inputs, views).cpu()
            for inputs in batches(images, prepare, compute, "logits")
        ]
    return torch.cat(parts, dim=1)


@torch.no_grad()
def calibrate(
    encoder: VisionTransformer, data: Dataset, prepare: Prepare, compute: Compute
) -> None:
    """Divide a head by its `temperature` on held-out images, if there are some; not a frozen one.

    Its predictions stay the same.
    """
    weights = list(encoder.head.parameters())
    is_free = all(weight.requires_grad for weight in weights)
    if not (data.is_chosen and data.has_classes and is_free):
        return
    test = data.test
    divisor = temperature(head_logits(encoder, test.images, prepare, compute)[0], test.labels)
    for weight in weights:
        weight.div_(divisor)
    say(f"temperature of the head on {data.tested}: {divisor:.2f}; its weights are divided by it")


def temperature(logits: Tensor, labels: Tensor) -> float:
    """Return by what to divide logits, so that they are calibrated (Guo et al. 2017).

    Their cross-entropy is then least, between 0.1 and 10. One image more, which may be of any
    class, counts with them (Platt 1999): few logits that are all right would be made certain.

    Args:
        logits: (N, classes) of images that were not trained on.
    """
    logits = logits.double()
    share = 1 / (len(labels) + 1)
    of_labels = logits.gather(1, labels[:, None]).mean() * (1 - share) + logits.mean() * share
    low = 0.1
    high = 10.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        # where the cross-entropy is least, the mean logit is the same by label and by prediction
        of_predictions = ((logits / middle).softmax(1) * logits).sum(1).mean()
        if of_predictions > of_labels:
            low = middle
        else:
            high = middle
    return middle


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
    require_finite("the logits of some images", logits)
    bins, error = reliability(logits, labels)
    return {
        "accuracy": accuracy(logits, labels),
        "cross_entropy": float(F.cross_entropy(logits, labels)),
        "expected_calibration_error": error,
        "reliability": bins,
        "confusion": confusion(logits, labels),
    }


def confident_mistakes(logits: Tensor, test: ImageSet) -> list[dict[str, Any]]:
    """Return the wrong predictions that the model is surest of, as plain values.

    Returns:
        Up to twelve, the surest first: "image", its number; "file", "" if it has none; "class" and
        "predicted", by name; and the "confidence".
    """
    confidence, predicted = logits.softmax(1).max(1)  # each (N,)
    wrong = (predicted != test.labels).nonzero().flatten()
    surest = wrong[confidence[wrong].argsort(descending=True, stable=True)][:12]
    return [
        {
            "image": image,
            "file": one_line(test.files[image]) if test.files else "",
            "class": test.class_names[int(test.labels[image])],
            "predicted": test.class_names[int(predicted[image])],
            "confidence": float(confidence[image]),
        }
        for image in surest.tolist()
    ]


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the top-1 accuracy."""
    return float((logits.argmax(1) == labels).float().mean())


def confusion(logits: Tensor, labels: Tensor) -> list[list[int]] | dict[str, Any]:
    """Count how often each class (row) was predicted as each class (column), as plain values.

    Returns:
        The rows; above DENSE_CLASSES the cells with a count, as [label, prediction, count].
    """
    classes = logits.shape[1]
    numbers = labels * classes + logits.argmax(1)  # (N,), of each image's cell
    if classes > DENSE_CLASSES:
        cells, counts = numbers.unique(return_counts=True)
        table = torch.stack([cells // classes, cells % classes, counts], dim=1)  # (cells, 3)
        return {"classes": classes, "cells": table.tolist()}
    return numbers.bincount(minlength=classes**2).view(classes, classes).tolist()


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
