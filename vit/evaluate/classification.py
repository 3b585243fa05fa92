"""What a classifier's logits are worth: accuracy, which classes are mixed up, and whether its confidence can be believed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reliability:
    """Confidence against accuracy, in bins of confidence.

    Attributes:
        confidence: (bins,), the mean in each; nan where it is empty.
        accuracy: (bins,), likewise.
        count: int64 (bins,).
        error: the expected calibration error: the mean distance of the two, weighted by count (Naeini et al. 2015).
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor
    error: float


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of images (N, classes) whose largest logit is that of their label (N,)."""
    return float((logits.argmax(1) == labels).float().mean())


def confusion(logits: Tensor, labels: Tensor) -> Tensor:
    """How often each class (row) was taken for each (column): int64 (classes, classes)."""
    classes = logits.shape[1]
    return torch.bincount(labels * classes + logits.argmax(1), minlength=classes**2).view(classes, classes)


def reliability(logits: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """Confidence against accuracy.

    Args:
        logits: (N, classes).
        labels: int64 (N,).
        bins: of equal width, from 0 to 1.
    """
    confidence, predicted = logits.softmax(1).max(1)
    places = (confidence * bins).long().clamp(max=bins - 1)
    count = torch.bincount(places, minlength=bins)
    right = torch.bincount(places, weights=(predicted == labels).double(), minlength=bins) / count
    said = torch.bincount(places, weights=confidence.double(), minlength=bins) / count
    error = ((right - said).abs().nan_to_num() * count).sum() / len(labels)
    return Reliability(said.float(), right.float(), count, float(error))
