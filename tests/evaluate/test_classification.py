"""Accuracy, confusion and calibration, against what they are by definition."""

import pytest
import torch

from vit.evaluate.classification import accuracy, confusion, reliability


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_confusion_counts_every_image_once_and_its_diagonal_is_the_accuracy():
    logits, labels = torch.randn(500, 7), torch.randint(0, 7, (500,))
    table = confusion(logits, labels)
    expected = torch.zeros(7, 7, dtype=torch.long)
    for row, column in zip(labels.tolist(), logits.argmax(1).tolist(), strict=True):
        expected[row, column] += 1
    assert torch.equal(table, expected)
    assert table.diagonal().sum() / 500 == pytest.approx(accuracy(logits, labels))


def test_reliability_by_its_definition():
    logits, labels = 3 * torch.randn(2000, 5), torch.randint(0, 5, (2000,))
    found = reliability(logits, labels, bins=10)
    confidence, predicted = logits.softmax(1).max(1)
    error = 0.0
    for index in range(10):
        inside = (confidence >= index / 10) & ((confidence < (index + 1) / 10) | (index == 9))
        assert found.count[index] == inside.sum()
        if inside.any():
            right = (predicted == labels)[inside].float().mean()
            assert found.accuracy[index] == pytest.approx(float(right), abs=1e-5)
            assert found.confidence[index] == pytest.approx(float(confidence[inside].mean()), abs=1e-5)
            error += float((right - confidence[inside].mean()).abs() * inside.sum())
        else:
            assert torch.isnan(found.accuracy[index])
    assert found.error == pytest.approx(error / 2000, abs=1e-5)


def test_a_calibrated_classifier_has_no_error_and_a_loud_one_has():
    logits = torch.randn(200_000, 4)
    labels = torch.multinomial(logits.softmax(1), 1)[:, 0]
    assert reliability(logits, labels).error < 0.01
    assert reliability(10 * logits, labels).error > 0.2


def test_certain_and_right():
    labels = torch.arange(40) % 4
    logits = 100.0 * torch.nn.functional.one_hot(labels).float()
    found = reliability(logits, labels)
    assert (found.error, int(found.count[-1]), accuracy(logits, labels)) == (0.0, 40, 1.0)
