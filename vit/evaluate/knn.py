"""k nearest neighbours on frozen features: how well classes separate without further training."""

from __future__ import annotations

from torch import Tensor

from vit.evaluate.features import standardised
from vit.progress import track

# never tuned here: taken from DINO (Caron et al. 2021) and its predecessors
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
    """Return the accuracy of k nearest neighbours, whose votes are exp(cosine / temperature).

    Every dimension is standardised first; see `vit.evaluate.features`.

    Args:
        train_features, train_labels: of the images to search, (N, D) and (N,).
        features, labels: of the test images, (M, D) and (M,).
        k: neighbours; all training images if there are fewer.
        temperature: the smaller, the more the nearest decide.
    """
    # unit vectors, whose products are cosines; in place, to save memory
    train_features, features = standardised(train_features, features)
    for vectors in (train_features, features):
        vectors.div_(vectors.norm(dim=1, keepdim=True).clamp(min=1e-12))

    classes = int(train_labels.max()) + 1
    correct = 0
    parts = list(zip(features.split(1024), labels.split(1024), strict=True))
    for queries, query_labels in track(parts, "neighbours", unit=" batches"):
        cosine = queries @ train_features.T  # (m, N)
        nearest = cosine.topk(min(k, len(train_features)), dim=1)  # (m, k)

        # relative to the nearest, so up to 0: no exponential overflows
        differences = nearest.values - nearest.values[:, :1]
        votes = queries.new_zeros(len(queries), classes)
        votes.scatter_add_(1, train_labels[nearest.indices], (differences / temperature).exp())
        correct += (votes.argmax(1) == query_labels).sum().item()
    return correct / len(features)
