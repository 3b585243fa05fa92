"""k nearest neighbours on frozen features: how well an encoder separates classes without any training on top."""

from __future__ import annotations

from torch import Tensor

from vit.evaluate.features import standardised
from vit.progress import track

K, TEMPERATURE = (
    20,
    0.07,
)  # never tuned here: taken from DINO (Caron et al. 2021) and its predecessors


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    features: Tensor,
    labels: Tensor,
    k: int = K,
    temperature: float = TEMPERATURE,
) -> float:
    """Return the accuracy of k nearest neighbours, whose votes are weighted by exp(cosine / temperature).

    Every dimension is standardised first; see `vit.evaluate.features`.

    Args:
        train_features, train_labels: of the images to search.
        features, labels: of the test images.
        k: neighbours; all training images if there are fewer.
        temperature: the smaller, the more the nearest decide.
    """
    train_features, features = standardised(train_features, features)
    for part in (train_features, features):  # in place, to save memory
        part.div_(part.norm(dim=1, keepdim=True).clamp(min=1e-12))
    classes = int(train_labels.max()) + 1
    correct = 0
    parts = list(zip(features.split(1024), labels.split(1024), strict=True))
    for part, part_labels in track(parts, "neighbours", unit=" batches"):
        cosine = part @ train_features.T  # (m, N)
        nearest = cosine.topk(min(k, len(train_features)), dim=1)
        closer = nearest.values - nearest.values[:, :1]  # up to 0, so that no exponential overflows
        votes = part.new_zeros(len(part), classes)
        votes.scatter_add_(1, train_labels[nearest.indices], (closer / temperature).exp())
        correct += (votes.argmax(1) == part_labels).sum().item()
    return correct / len(features)
