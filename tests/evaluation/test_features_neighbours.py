"""Nearest neighbours: a loop is the oracle; laws of scale, of chance and of separable blobs."""

import numpy as np
import pytest
import torch
from tiny import seeded
from torch import Tensor

from vit.evaluation.features import knn_accuracy


def blobs(count: int, spread: float, classes: int = 5) -> tuple[Tensor, Tensor]:
    centres = torch.randn(classes, 16, generator=seeded(7))
    labels = torch.arange(count) % classes
    return centres[labels] + spread * torch.randn(count, 16), labels


def naive_accuracy(bank, bank_labels, queries, labels, k, temperature):
    bank, bank_labels, queries, labels = (x.numpy() for x in (bank, bank_labels, queries, labels))
    centre, spread, correct = bank.mean(0), bank.std(0), 0
    bank, queries = (bank - centre) / spread, (queries - centre) / spread
    for query, label in zip(queries, labels, strict=True):
        cosines = [row @ query / np.linalg.norm(row) / np.linalg.norm(query) for row in bank]
        votes = {}
        for index in np.argsort(cosines)[::-1][:k]:
            votes[bank_labels[index]] = votes.get(bank_labels[index], 0) + np.exp(
                cosines[index] / temperature
            )
        correct += max(votes, key=votes.get) == label
    return correct / len(labels)


def test_shift_and_scale_of_a_dimension_change_nothing():
    (bank, bank_labels), (queries, labels) = blobs(100, spread=1.5), blobs(100, spread=1.5)
    shift, scale = 10 * torch.randn(16), torch.logspace(-2, 2, 16)
    accuracy = knn_accuracy(bank * scale + shift, bank_labels, queries * scale + shift, labels)
    assert accuracy == knn_accuracy(bank, bank_labels, queries, labels)


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (20, 0.07), (1_000, 0.2)])
def test_accuracy_is_that_of_loops(k, temperature):
    bank, queries = blobs(60, spread=1.5), blobs(50, spread=1.5)
    accuracy = knn_accuracy(*bank, *queries, k=k, temperature=temperature)
    assert accuracy == pytest.approx(naive_accuracy(*bank, *queries, k, temperature))
    assert 0.2 < accuracy < 1  # a case in which something can go wrong


def test_a_class_that_only_the_queries_have_is_missed():
    (bank, bank_labels), (queries, labels) = blobs(100, spread=0.1), blobs(40, spread=0.1)
    labels[:10] = 9
    assert knn_accuracy(bank, bank_labels, queries, labels) == 0.75


def test_the_lower_the_temperature_the_more_the_nearest_decides():
    bank, queries = blobs(60, spread=1.5), blobs(50, spread=1.5)
    assert knn_accuracy(*bank, *queries, k=20, temperature=1e-3) == knn_accuracy(
        *bank, *queries, k=1
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_features_of_any_precision(dtype):
    (bank, bank_labels), (queries, labels) = blobs(60, spread=0.1), blobs(50, spread=0.1)
    assert knn_accuracy(bank.to(dtype), bank_labels, queries.to(dtype), labels) == 1
