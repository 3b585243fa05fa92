"""Accuracy, confusion and calibration: the oracles are their definitions, written as loops."""

import json
from collections import Counter
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from tiny import CPU, encoder, noise

from vit.errors import TrainingError
from vit.evaluation.classification import (
    DENSE_CLASSES,
    classification_metrics,
    head_logits,
    read_confusion,
    reliability,
    temperature,
    views_of,
)


def test_reliability_by_its_definition():
    logits, labels = 3 * torch.randn(2000, 5), torch.randint(0, 5, (2000,))
    found, measured = reliability(logits, labels, bins=10)
    confidence, predicted = logits.softmax(1).max(1)
    places = (10 * confidence).long().clamp(max=9)
    assert found["count"] == places.bincount(minlength=10).tolist()
    error = 0.0
    for index, count in enumerate(found["count"]):
        inside = places == index
        right = (predicted == labels)[inside].float().mean()
        sure = confidence[inside].mean()
        if count:
            assert found["accuracy"][index] == pytest.approx(float(right), abs=1e-5)
            assert found["confidence"][index] == pytest.approx(float(sure), abs=1e-5)
            error += float((right - sure).abs()) * count / 2000
        else:
            assert found["accuracy"][index] is None
    assert measured == pytest.approx(error, abs=1e-5)


@torch.no_grad()
def test_logits_are_the_heads_of_whole_images_in_eval_mode(monkeypatch):
    monkeypatch.setattr("vit.evaluation.features.BATCH", 4)
    model = encoder(drop_path=0.5, num_classes=3).train()
    images = noise(10)
    found = head_logits(model, images, lambda batch: batch / 255, CPU)
    assert model.training
    expected = model.eval().forward_head(model(images / 255))
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-6)


def test_views_are_the_image_its_mirror_image_and_four_shifts():
    images = noise(2, size=(5, 7)).float()
    whole, mirrored, *shifted = views_of(images)
    assert torch.equal(whole, images)
    assert torch.equal(mirrored, images[..., torch.arange(6, -1, -1)])
    for view, (dim, step) in zip(shifted, product((-2, -1), (1, -1)), strict=True):
        size = images.shape[dim]
        places = (torch.arange(size) + step).clamp(0, size - 1)  # the border is repeated
        assert torch.equal(view, images.index_select(dim, places))


@pytest.mark.parametrize("count", [1, 20, 2000])
def test_temperature_is_the_best_of_a_search(count):
    logits = 3 * torch.randn(count, 5)
    labels = torch.distributions.Categorical(logits=logits / 1.7).sample()
    grid = torch.logspace(-1, 1, 1001)
    # with one image more, of any class
    losses = [
        F.cross_entropy(logits / divisor, labels, label_smoothing=1 / (count + 1))
        for divisor in grid
    ]
    best = float(grid[torch.stack(losses).argmin()])
    assert temperature(logits, labels) == pytest.approx(best, rel=6e-3)
    if count == 2000:
        assert best == pytest.approx(1.7, rel=0.1)  # the labels' own


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
