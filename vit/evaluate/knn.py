"""k nearest neighbours on frozen features: how well an encoder separates classes without any training on top."""

from __future__ import annotations

import torch
from torch import Tensor

from vit.evaluate.features import standardised
from vit.progress import track

# Never tuned here: taken from DINO (Caron et al. 2021) and its predecessors.
K = 20
TEMPERATURE = 0.07


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    features: Tensor,
    labels: Tensor,
    k: int = K,
    temperature: float = TEMPERATURE,
) -> float:
    """Return the share of the test images that `knn_correct` classifies correctly; it has the arguments."""
    correct = knn_correct(train_features, train_labels, features, labels, k, temperature)
    return int(correct.sum()) / len(features)


def knn_correct(
    train_features: Tensor,
    train_labels: Tensor,
    features: Tensor,
    labels: Tensor,
    k: int = K,
    temperature: float = TEMPERATURE,
) -> Tensor:
    """Classify images by k nearest neighbours, whose votes are weighted by exp(cosine / temperature).

    Every dimension is standardised first; see `vit.evaluate.features`.

    Args:
        train_features, train_labels: of the images to search, (N, D) and (N,).
        features, labels: of the M test images, (M, D) and (M,).
        k: neighbours; all training images if there are fewer.
        temperature: the smaller, the more the nearest decide.

    Returns:
        bool (M,), whether an image's class is right.
    """
    # Unit vectors, so that products are cosines; in place, to save memory
    train_features, features = standardised(train_features, features)
    for part in (train_features, features):
        part.div_(part.norm(dim=1, keepdim=True).clamp(min=1e-12))

    classes = int(train_labels.max()) + 1
    k = min(k, len(train_features))
    correct = []
    parts = list(zip(features.split(1024), labels.split(1024), strict=True))
    for part, part_labels in track(parts, "neighbours", unit=" batches"):
        cosine = part @ train_features.T  # (m, N)
        nearest = cosine.topk(k, dim=1)
        # At most 0, so that no exponential overflows
        closer = nearest.values - nearest.values[:, :1]  # (m, k)
        votes = part.new_zeros(len(part), classes)
        votes.scatter_add_(1, train_labels[nearest.indices], (closer / temperature).exp())
        correct.append(votes.argmax(1) == part_labels)
    return torch.cat(correct)
