"""k nearest neighbours on frozen features: what an encoder separates without any training on top."""

from __future__ import annotations

import torch
from torch import Tensor

from vit.evaluate.features import standardised

K, TEMPERATURE = 20, 0.07  # never tuned here; those of DINO (Caron et al. 2021) and its predecessors


def neighbour_accuracy(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, labels: Tensor, k: int = K, temperature: float = TEMPERATURE
) -> float:
    """The share of queries whose class the k nearest features of the bank name, weighted by exp(cosine / temperature).

    Every dimension is standardised first, see `vit.evaluate.features`.

    Args:
        bank: (N, D) float32.
        bank_labels: int64 (N,).
        queries: (M, D) float32.
        labels: int64 (M,), of the queries.
        k: neighbours; all of the bank where it has fewer.
        temperature: small ones let the nearest decide.

    Returns:
        Accuracy from 0 to 1.
    """
    bank, queries = standardised(bank, queries)
    for features in (bank, queries):  # in place: the bank may be large
        features.div_(features.norm(dim=1, keepdim=True).clamp(min=1e-12))
    classes = int(bank_labels.max()) + 1
    correct = 0
    for part, part_labels in zip(queries.split(1024), labels.split(1024), strict=True):
        cosine = part @ bank.T  # (m, N)
        nearest = cosine.topk(min(k, len(bank)), dim=1)
        votes = torch.zeros(len(part), classes)
        votes.scatter_add_(1, bank_labels[nearest.indices], (nearest.values / temperature).exp())
        correct += (votes.argmax(1) == part_labels).sum().item()
    return correct / len(queries)
