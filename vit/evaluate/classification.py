"""Accuracy, confusion matrix and calibration of a classifier's logits."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.device import Compute
from vit.encoder import VisionTransformer, eval_mode
from vit.evaluate.features import EvaluationError, Prepare, batches
from vit.inputs import Images

DENSE_CLASSES = 100
"""Most classes for a dense confusion matrix; a larger one is sparse, since 10,000 classes make 100 million cells."""


@torch.no_grad()
def head_logits(
    encoder: VisionTransformer,
    images: Images,
    prepare: Prepare,
    compute: Compute,
    flip: bool = False,
    batch_size: int = 256,
) -> Tensor:
    """Return the logits of a model's own head; with `flip`, averaged over each image and its mirror image."""
    parts = []
    with eval_mode(encoder), compute.autocast():
        for inputs in batches(images, prepare, compute, "logits", batch_size):
            logits = encoder.forward_head(encoder(inputs)).float()  # (B, classes)
            if flip:
                logits = (logits + encoder.forward_head(encoder(inputs.flip(-1))).float()) / 2
            parts.append(logits.cpu())
    return torch.cat(parts)


def classification_metrics(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return accuracy, cross-entropy, expected calibration error and confusion as plain values.

    Raises:
        EvaluationError: a logit is nan or infinite.
    """
    if not bool(logits.isfinite().all()):
        raise EvaluationError(
            "the logits of some images are nan or infinite: these weights cannot classify"
        )
    return {
        "accuracy": accuracy(logits, labels),
        "cross_entropy": float(F.cross_entropy(logits, labels)),
        "expected_calibration_error": reliability(logits, labels)[1],
        "confusion": plain_confusion(confusion(logits, labels)),
    }


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the top-1 accuracy."""
    return float((logits.argmax(1) == labels).float().mean())


def confusion(logits: Tensor, labels: Tensor) -> Tensor:
    """Count how often each class (row) was taken for each (column): int64 (classes, classes), sparse above DENSE_CLASSES."""
    return _counts(
        torch.stack([labels, logits.argmax(1)]), torch.ones_like(labels), logits.shape[1]
    )


def plain_confusion(table: Tensor) -> list[list[int]] | dict[str, Any]:
    """Return a confusion matrix as plain values for JSON: its rows, or its cells as [label, prediction, count]."""
    if not table.is_sparse:
        return table.tolist()
    cells = torch.cat([table.indices(), table.values()[None]])  # (3, cells)
    return {"classes": len(table), "cells": cells.T.tolist()}


def read_confusion(plain: Any) -> Tensor:
    """Invert `plain_confusion`."""
    if isinstance(plain, dict):
        cells = torch.tensor(plain["cells"], dtype=torch.int64).view(-1, 3)
        return _counts(cells[:, :2].T, cells[:, 2], plain["classes"])
    return torch.tensor(plain)


def _counts(cells: Tensor, counts: Tensor, classes: int) -> Tensor:
    """Sum `counts` (N,) of `cells` (2, N) in a table (classes, classes)."""
    table = torch.sparse_coo_tensor(
        cells, counts, (classes, classes), check_invariants=True
    ).coalesce()
    return table.to_dense() if classes <= DENSE_CLASSES else table


def reliability(
    logits: Tensor, labels: Tensor, bins: int = 15
) -> tuple[dict[str, list[Any]], float]:
    """Return confidence against accuracy, in bins of equal width from 0 to 1, and the expected calibration error.

    Returns:
        by name, a value per bin, as JSON holds them: the mean "confidence" and the "accuracy", None for empty bins, and
        the "count" of images; and the mean distance of the first two, weighted by count (Naeini et al. 2015).
    """
    confidence, predicted = logits.softmax(1).max(1)
    index = (confidence * bins).long().clamp(max=bins - 1)  # (N,)
    count = torch.bincount(index, minlength=bins)
    right = torch.bincount(index, weights=(predicted == labels).double(), minlength=bins) / count
    mean_confidence = torch.bincount(index, weights=confidence.double(), minlength=bins) / count
    error = ((right - mean_confidence).abs().nan_to_num() * count).sum() / len(labels)
    shares = {"confidence": mean_confidence.float().tolist(), "accuracy": right.float().tolist()}
    plain = {
        name: [None if math.isnan(x) else x for x in values] for name, values in shares.items()
    }
    return plain | {"count": count.tolist()}, float(error)
