"""k nearest neighbours on frozen features: how well classes separate without further training."""

from __future__ import annotations

import torch
from torch import Tensor

from vit.evaluation.features import standardised
from vit.progress import track

# never tuned here: taken from DINO (Caron et al. 2021) and its predecessors.
K = 20
TEMPERATURE = 0.07

CPU = torch.device("cpu")


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    features: Tensor,
    labels: Tensor,
    k: int = K,
    temperature: float = TEMPERATURE,
    device: torch.device = CPU,
) -> float:
    """Return the accuracy of k nearest neighbours; the arguments are those of `knn_correct`."""
    correct = knn_correct(train_features, train_labels, features, labels, k, temperature, device)
    return int(correct.sum()) / len(features)


def knn_correct(
    train_features: Tensor,
    train_labels: Tensor,
    features: Tensor,
    labels: Tensor,
    k: int = K,
    temperature: float = TEMPERATURE,
    device: torch.device = CPU,
) -> Tensor:
    """Classify images by k nearest neighbours, whose votes are exp(cosine / temperature).

    Every dimension is standardised first; see `vit.evaluation.features`.

    Args:
        train_features, train_labels: of the images to search, (N, D) and (N,).
        features, labels: of the M test images, (M, D) and (M,).
        k: neighbours; all training images if there are fewer.
        temperature: the smaller, the more the nearest decide.
        device: where to search; the votes are counted on the CPU, in the same order everywhere.

    Returns:
        bool (M,), whether an image's class is right.
    """
    # unit vectors, whose products are cosines; in place, to save memory
    train_features, features = standardised(train_features.to(device), features.to(device))
    for vectors in (train_features, features):
        vectors.div_(vectors.norm(dim=1, keepdim=True).clamp(min=1e-12))

    classes = int(train_labels.max()) + 1
    k = min(k, len(train_features))
    correct = []
    parts = list(zip(features.split(1024), labels.split(1024), strict=True))
    for queries, query_labels in track(parts, "neighbours", unit=" batches"):
        cosine = queries @ train_features.T  # (m, N)
        similarities, images = cosine.topk(k, dim=1)  # both (m, k)

        # relative to the nearest, so up to 0: no exponential overflows
        similarities = similarities.cpu()
        differences = similarities - similarities[:, :1]
        votes = similarities.new_zeros(len(queries), classes)
        votes.scatter_add_(1, train_labels[images.cpu()], (differences / temperature).exp())
        correct.append(votes.argmax(1) == query_labels)
    return torch.cat(correct)
