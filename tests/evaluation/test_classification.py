"""Accuracy, confusion and calibration: the oracles are their definitions, written as loops."""

import json
from collections import Counter

import pytest
import torch
from tiny import CPU, encoder, noise

from vit.errors import TrainingError
from vit.evaluation.classification import (
    DENSE_CLASSES,
    classification_metrics,
    head_logits,
    read_confusion,
    reliability,
)


def test_reliability_by_its_definition():
    logits, labels = 3 * torch.randn(2000, 5), torch.randint(0, 5, (2000,))
    found, measured = reliability(logits, labels, bins=10)
    confidence, predicted = logits.softmax(1).max(1)
    error = 0.0
    for index in range(10):
        inside = (confidence >= index / 10) & ((confidence < (index + 1) / 10) | (index == 9))
        assert found["count"][index] == inside.sum()
        if inside.any():
            right = (predicted == labels)[inside].float().mean()
            assert found["accuracy"][index] == pytest.approx(float(right), abs=1e-5)
            assert found["confidence"][index] == pytest.approx(
                float(confidence[inside].mean()), abs=1e-5
            )
            error += float((right - confidence[inside].mean()).abs() * inside.sum())
        else:
            assert found["accuracy"][index] is None
    assert measured == pytest.approx(error / 2000, abs=1e-5)


@torch.no_grad()
def test_logits_are_the_heads_of_whole_images_in_eval_mode(monkeypatch):
    monkeypatch.setattr("vit.evaluation.features.BATCH", 4)
    model = encoder(drop_path=0.5, num_classes=3).train()
    images = noise(10)
    found = head_logits(model, images, lambda batch: batch / 255, CPU)
    assert model.training
    expected = model.eval().forward_head(model(images / 255))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("classes", [4, DENSE_CLASSES + 1, 10_000])
def test_metrics_of_logits_by_their_definitions(classes):
    logits = torch.randn(300, classes)
    labels = torch.randint(0, classes, (300,))
    labels[:100] = logits[:100].argmax(1)
    found = json.loads(json.dumps(classification_metrics(logits, labels)))
    counts = Counter(zip(labels.tolist(), logits.argmax(1).tolist(), strict=True))
    right = sum(count for (label, taken), count in counts.items() if label == taken)
    assert found["accuracy"] == pytest.approx(right / 300)
    chances = logits.softmax(1)[torch.arange(300), labels]
    assert found["cross_entropy"] == pytest.approx(-chances.log().mean().item(), rel=1e-5)
    assert found["expected_calibration_error"] == reliability(logits, labels)[1]

    # the confusions, of many classes by the cells that have some
    assert isinstance(found["confusion"], dict) == (classes > DENSE_CLASSES)
    table = read_confusion(found["confusion"]).to_sparse().coalesce()
    assert table.shape == (classes, classes)
    cells = map(tuple, table.indices().T.tolist())
    assert dict(zip(cells, table.values().tolist(), strict=True)) == counts


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_not_judged(bad):
    logits = torch.zeros(5, 2)
    logits[3, 1] = bad
    with pytest.raises(TrainingError, match="nan or infinite"):
        classification_metrics(logits, torch.zeros(5, dtype=torch.long))
