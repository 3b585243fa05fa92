"""Accuracy, confusion and calibration: the oracles are their definitions, written as loops."""

import json

import pytest
import torch
from tiny import CPU

from vit.config import ViTConfig
from vit.encoder import VisionTransformer
from vit.errors import TrainingError
from vit.evaluation import over_seeds
from vit.evaluation.classification import (
    DENSE_CLASSES,
    accuracy,
    classification_metrics,
    confusion,
    head_logits,
    plain_confusion,
    read_confusion,
    reliability,
)
from vit.inputs import to_float


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


def test_a_calibrated_classifier_has_no_error_and_a_loud_one_has():
    logits = torch.randn(200_000, 4)
    labels = torch.multinomial(logits.softmax(1), 1)[:, 0]
    assert reliability(logits, labels)[1] < 0.01
    assert reliability(10 * logits, labels)[1] > 0.2


# --- a model's own head ----------------------------------------------------------------------------------------------


def small_classifier() -> VisionTransformer:
    sizes = dict(image_size=(8, 8), patch_size=(4, 4), embed_dim=8, depth=2, num_heads=2)
    return VisionTransformer(ViTConfig(**sizes, drop_path=0.5, num_classes=3))


def images() -> torch.Tensor:
    return torch.randint(0, 256, (10, 3, 8, 8), dtype=torch.uint8)


def prepare(batch: torch.Tensor) -> torch.Tensor:
    return to_float(batch, (8, 8)) - 0.5


@torch.no_grad()
@pytest.mark.parametrize("batch_size", [1, 4, 256])
def test_logits_are_the_heads_of_whole_images_in_eval_mode(batch_size):
    model, given = small_classifier().train(), images()
    found = head_logits(model, given, prepare, CPU, batch_size=batch_size)
    assert model.training
    model.eval()
    torch.testing.assert_close(
        found, model.forward_head(model(prepare(given))), rtol=1e-4, atol=1e-6
    )


def test_flip_is_the_mean_of_an_image_and_its_mirror_image():
    model, given = small_classifier(), images()
    both = head_logits(model, torch.cat([given, given.flip(-1)]), prepare, CPU).view(2, 10, 3)
    flipped = head_logits(model, given, prepare, CPU, flip=True)
    torch.testing.assert_close(flipped, both.mean(0), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(both[0], both[1], atol=1e-4)


def test_metrics_of_logits_by_their_definitions():
    logits, labels = torch.randn(300, 4), torch.randint(0, 4, (300,))
    found = classification_metrics(logits, labels)
    expected = torch.zeros(4, 4, dtype=torch.long)
    for row, column in zip(labels.tolist(), logits.argmax(1).tolist(), strict=True):
        expected[row, column] += 1
    assert torch.equal(confusion(logits, labels), expected)
    assert found["confusion"] == expected.tolist()
    assert (
        found["accuracy"]
        == accuracy(logits, labels)
        == pytest.approx(int(expected.diagonal().sum()) / 300)
    )
    chances = logits.softmax(1)[torch.arange(300), labels]
    assert found["cross_entropy"] == pytest.approx(-chances.log().mean().item(), rel=1e-5)
    assert found["expected_calibration_error"] == reliability(logits, labels)[1]


@pytest.mark.parametrize("classes", [DENSE_CLASSES, DENSE_CLASSES + 1, 10_000])
def test_mistakes_of_many_classes_are_written_as_the_cells_that_have_some(classes):
    logits, labels = torch.randn(300, classes), torch.randint(0, classes, (300,))
    labels[:100] = logits[:100].argmax(1)
    table = confusion(logits, labels)
    plain = plain_confusion(table)
    assert table.is_sparse == isinstance(plain, dict) == (classes > DENSE_CLASSES)
    assert (table.shape, int(table.sum())) == ((classes, classes), 300)
    assert len(json.dumps(plain)) < 50_000
    again = read_confusion(json.loads(json.dumps(plain)))
    assert again.is_sparse == table.is_sparse
    assert plain_confusion(again) == plain
    figures = over_seeds([classification_metrics(logits, labels)] * 3, [0, 1, 2])
    three = read_confusion(figures["confusion"])
    assert torch.equal(
        three.to_sparse().coalesce().values(), 3 * table.to_sparse().coalesce().values()
    )
    if classes < 1000:
        rows = torch.zeros(classes, classes, dtype=torch.int64)
        rows.index_put_((labels, logits.argmax(1)), torch.tensor(1), accumulate=True)
        assert torch.equal(table.to_dense(), rows)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_not_judged(bad):
    logits = torch.zeros(5, 2)
    logits[3, 1] = bad
    with pytest.raises(TrainingError, match="nan or infinite"):
        classification_metrics(logits, torch.zeros(5, dtype=torch.long))
