"""Features: the encoder block by block, torchvision's pixels, and scikit-learn's neighbours are the oracles."""

import numpy as np
import pytest
import torch
from evaluation.test_probe import blobs
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from small import close
from tiny import CPU, NORMALIZE, encoder, noise
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
        close(features, expected[layer])
    assert not any(module._forward_hooks for module in model.modules())


def test_features_that_are_not_finite_are_not_judged():
    model = encoder()
    torch.nn.init.constant_(model.norm.bias, float("inf"))
    with pytest.raises(TrainingError, match="features of some images are nan or infinite"):
        encoder_features(model, noise(1), prepare, CPU, [-1])


@pytest.mark.parametrize(
    ("size", "expected"), [((8, 12), (8, 12)), ((64, 48), (32, 32)), ((16, 64), (16, 32))]
)
def test_pixel_features_are_the_pixels_of_at_most_32_by_32(size, expected):
    images = noise(3, size=size)
    whole = resize(images.float() / 255, list(expected), antialias=True).flatten(1)
    assert torch.equal(pixel_features(images), whole)


def test_standardised_by_the_banks_statistics():
    bank, other = 3 + 2 * torch.randn(50, 4), torch.randn(7, 4)
    bank[:, 2] = 5.0
    kept = [0, 1, 3]
    scaler = StandardScaler().fit(bank[:, kept])
    one, two = standardised(bank, other)
    for ours, given in ((one, bank), (two, other)):
        np.testing.assert_allclose(ours[:, kept], scaler.transform(given[:, kept]), atol=1e-5)
    # whatever it is there, the bank says nothing about it
    assert not one[:, 2].any()
    assert not two[:, 2].any()


def test_many_images_are_whitened_up_to_the_floor_and_few_standardised():
    mixing = torch.randn(5, 6) * torch.tensor([1, 1, 1, 1, 1, 0.01])
    bank = torch.randn(300, 5) @ mixing + 3  # of six dimensions, five vary independently
    queries = torch.randn(7, 6)
    assert (geometry_of(300, 6), geometry_of(299, 6)) == ("whitened", "standardised")
    one, two = (x.double().numpy() for x in for_neighbours(bank, queries, "whitened"))
    scaled, asked = (x.double().numpy() for x in standardised(bank, queries))
    # in any basis, products are those of NumPy's inverse
    covariance = np.cov(scaled, rowvar=False, bias=True)
    inverse = np.linalg.inv(covariance + RIDGE * np.eye(6))
    np.testing.assert_allclose(two @ one.T, asked @ inverse @ scaled.T, atol=1e-3)
    # a baseline is compared as what it is a baseline of
    baseline = for_neighbours(bank, queries, "standardised")
    assert all(map(torch.equal, baseline, standardised(bank, queries)))


# --- nearest neighbours ---------------------------------------------------------------------------


def neighbours(k: int, temperature: float) -> KNeighborsClassifier:
    """scikit-learn's, with votes as ours."""
    return KNeighborsClassifier(
        k, metric="cosine", algorithm="brute", weights=lambda far: np.exp((1 - far) / temperature)
    )


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (20, 0.07), (1_000, 0.2)])
def test_accuracy_is_scikit_learns(k, temperature):
    (bank, bank_labels), (queries, labels) = blobs(60, spread=1.5), blobs(50, spread=1.5)
    found = knn_accuracy(bank, bank_labels, queries, labels, "standardised", k, temperature)
    bank, queries = standardised(bank, queries)
    theirs = neighbours(min(k, 60), temperature).fit(bank, bank_labels)
    assert found == pytest.approx(theirs.score(queries, labels))
    assert 0.2 < found < 1  # a case in which something can go wrong


@pytest.mark.parametrize("copies", [0, 21])
def test_leave_one_out_is_scikit_learns_without_an_image_and_its_copies(copies):
    features, labels = blobs(80, spread=1.5)
    hashes = torch.arange(80) % (80 - copies)
    features = features[hashes]  # some copies are of another class
    found = knn_accuracy(features, labels, features, labels, "standardised", image_hashes=hashes)
    unit = torch.nn.functional.normalize(standardised(features, features)[0]).double()
    theirs = cross_val_predict(
        neighbours(20, 0.07), unit, labels, groups=hashes, cv=LeaveOneGroupOut()
    )
    assert found == pytest.approx((theirs == labels.numpy()).mean())
    assert 0.2 < found < 1


def test_a_class_that_only_the_queries_have_is_missed():
    (bank, bank_labels), (queries, labels) = blobs(100, spread=0.1), blobs(40, spread=0.1)
    labels[:10] = 9
    assert knn_accuracy(bank, bank_labels, queries, labels, "standardised") == 0.75
