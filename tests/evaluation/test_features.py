"""Features: the encoder block by block, torchvision's pixels, and neighbours by loops are the oracles."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from tiny import CPU, NORMALIZE, encoder, noise, seeded
from torch import Tensor
from torchvision.transforms.v2.functional import resize

from vit.errors import TrainingError
from vit.evaluation.features import (
    RIDGE,
    encoder_features,
    for_neighbours,
    geometry_of,
    knn_accuracy,
    pixel_features,
    standardised,
)
from vit.inputs import to_float


def prepare(images: Tensor) -> Tensor:
    return NORMALIZE(to_float(images, (16, 16)))


@torch.no_grad()
@pytest.mark.parametrize("settings", [dict(), dict(registers=3), dict(class_token=False)], ids=str)
def test_features_of_any_layer_are_the_mean_of_the_patch_tokens(settings, monkeypatch):
    monkeypatch.setattr("vit.evaluation.features.BATCH", 2)
    model = encoder(depth=4, drop_path=0.5, **settings).train()
    images = noise(5, size=(20, 20))
    found = encoder_features(model, images, prepare, CPU, layers=[3, 0, -3])
    assert model.training
    model.eval()
    seen = []
    with torch.nn.modules.module.register_module_forward_hook(
        lambda module, _, tokens: seen.append(tokens) if module in model.blocks else None
    ):
        last = model(prepare(images))
    expected = [tokens[:, -16:].mean(1) for tokens in (*seen[:-1], last)]
    for features, layer in zip(found, (3, 0, 1), strict=True):
        torch.testing.assert_close(features, expected[layer], rtol=0, atol=1e-5)
    assert not any(module._forward_hooks for module in model.modules())


def test_features_that_are_not_finite_are_not_judged():
    model = encoder()
    torch.nn.init.constant_(model.norm.bias, float("inf"))
    with pytest.raises(TrainingError, match="features of some images are nan or infinite"):
        encoder_features(model, noise(1), prepare, CPU)


@pytest.mark.parametrize(
    ("size", "expected"), [((8, 12), (8, 12)), ((64, 48), (32, 32)), ((16, 64), (16, 32))]
)
def test_pixel_features_are_the_pixels_of_at_most_32_by_32(size, expected):
    images = noise(3, size=size)
    whole = resize(images.float() / 255, list(expected), antialias=True).flatten(1)
    assert torch.equal(pixel_features(images), whole)


def test_standardised_by_the_banks_statistics():
    bank = 3 + 2 * torch.randn(50, 4)
    other = torch.randn(7, 4)
    bank[:, 2] = 5.0
    one, two = standardised(bank, other)
    kept = [0, 1, 3]
    torch.testing.assert_close(one[:, kept].mean(0), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(one[:, kept].std(0, correction=0), torch.ones(3), rtol=0, atol=1e-5)
    expected = (other[:, 0] - bank[:, 0].mean()) / bank[:, 0].std(correction=0)
    torch.testing.assert_close(two[:, 0], expected)
    # whatever it is there, the bank says nothing about it
    assert not one[:, 2].any()
    assert not two[:, 2].any()


def test_many_images_are_whitened_up_to_the_floor_and_few_standardised():
    mixing = torch.randn(5, 6) * torch.tensor([1, 1, 1, 1, 1, 0.01])
    bank = torch.randn(300, 5) @ mixing + 3  # of six dimensions, five vary independently
    queries = torch.randn(7, 6)
    assert (geometry_of(300, 6), geometry_of(299, 6)) == ("whitened", "standardised")
    one, two = (x.double().numpy() for x in for_neighbours(bank, queries))
    scaled, asked = (x.double().numpy() for x in standardised(bank, queries))
    # in any basis, products are those of NumPy's inverse
    covariance = np.cov(scaled, rowvar=False, bias=True)
    inverse = np.linalg.inv(covariance + RIDGE * np.eye(6))
    np.testing.assert_allclose(two @ one.T, asked @ inverse @ scaled.T, atol=1e-3)
    variances = np.linalg.eigvalsh(covariance)
    found = np.cov(one, rowvar=False, bias=True)
    np.testing.assert_allclose(found, np.diag(variances / (variances + RIDGE)), atol=1e-4)
    expected = standardised(bank[:299], queries)
    assert all(map(torch.equal, for_neighbours(bank[:299], queries), expected))
    # a baseline is compared as what it is a baseline of
    baseline = for_neighbours(bank, queries, "standardised")
    assert all(map(torch.equal, baseline, standardised(bank, queries)))


# --- nearest neighbours ---------------------------------------------------------------------------


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
            weight = np.exp(cosines[index] / temperature)
            votes[bank_labels[index]] = votes.get(bank_labels[index], 0) + weight
        correct += max(votes, key=votes.get) == label
    return correct / len(labels)


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (20, 0.07), (1_000, 0.2)])
def test_accuracy_of_few_is_that_of_loops(k, temperature):
    bank, queries = blobs(60, spread=1.5), blobs(50, spread=1.5)
    accuracy = knn_accuracy(*bank, *queries, k=k, temperature=temperature)
    assert accuracy == pytest.approx(naive_accuracy(*bank, *queries, k, temperature))
    assert 0.2 < accuracy < 1  # a case in which something can go wrong


def test_leave_one_out_is_a_loop_that_removes_each_image_and_its_copies(monkeypatch):
    features, labels = blobs(60, spread=1.5)
    features[50:] = features[:10]  # copies, some of another class
    hashes = torch.arange(60) % 50
    found = knn_accuracy(features, labels, features, labels, k=5, image_hashes=hashes)
    # in the same space, which a bank does not change
    whole, _ = for_neighbours(features, features)
    monkeypatch.setattr(
        "vit.evaluation.features.for_neighbours", lambda *given: [x.clone() for x in given[:2]]
    )
    right = 0
    for image in range(60):
        bank = hashes != hashes[image]
        one = slice(image, image + 1)
        right += knn_accuracy(whole[bank], labels[bank], whole[one], labels[one], k=5)
    assert found == pytest.approx(right / 60)
    # a copy would vote for its image, and win
    itself = torch.arange(60)
    assert knn_accuracy(features, labels, features, labels, k=1, image_hashes=itself) != found


def test_leave_one_out_is_scikit_learns():
    features, labels = blobs(80, spread=1.5)
    found = knn_accuracy(features, labels, features, labels, image_hashes=torch.arange(80))
    unit = torch.nn.functional.normalize(standardised(features, features)[0])
    theirs = KNeighborsClassifier(
        20, metric="cosine", algorithm="brute", weights=lambda far: np.exp((1 - far) / 0.07)
    )
    each = cross_val_score(theirs, unit.double().numpy(), labels.numpy(), cv=LeaveOneOut())
    assert found == pytest.approx(each.mean())
    assert 0.2 < found < 1


def test_a_class_that_only_the_queries_have_is_missed():
    (bank, bank_labels), (queries, labels) = blobs(100, spread=0.1), blobs(40, spread=0.1)
    labels[:10] = 9
    assert knn_accuracy(bank, bank_labels, queries, labels) == 0.75
