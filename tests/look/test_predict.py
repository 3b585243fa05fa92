"""Law: predictions are the head's softmax and features what it reads, whatever form images have.

The nearest images are those of the largest cosines, as NumPy computes them.
"""

import numpy as np
import pytest
import torch
from tiny import encoder, noise, save
from torch.testing import assert_close
from torchvision.transforms.v2.functional import to_pil_image

from vit.checkpoints import load_model
from vit.errors import CheckpointError, DataError, TrainingError
from vit.evaluation.classification import views_of
from vit.evaluation.features import for_neighbours
from vit.look.predict import embed, nearest, predict


def loaded(folder, model):
    save(folder, model)
    return load_model(folder)


@pytest.fixture
def classifier(tmp_path):
    return loaded(tmp_path / "model", encoder(global_pool="token", num_classes=3, registers=1))


@torch.no_grad()
@pytest.mark.parametrize(
    "pool",
    [dict(global_pool="token"), dict(global_pool="avg"), dict(global_pool="avg", fc_norm=True)],
)
def test_predictions_are_the_heads_and_features_what_it_reads(pool, tmp_path):
    classifier = loaded(tmp_path, encoder(**pool, num_classes=3, registers=1))
    images = noise(5, size=(20, 30))
    inputs = classifier.origin.inputs(images)
    tokens = classifier(inputs)
    probabilities = predict(classifier, images)
    assert_close(probabilities, classifier.forward_head(tokens).softmax(1))
    assert_close(probabilities.sum(1), torch.ones(5))
    views = [classifier.forward_head(classifier(view)) for view in views_of(inputs)]
    mean = sum(views[:2]) / 2
    assert_close(predict(classifier, images, views=2), mean.softmax(1))
    assert embed(classifier, images).patches is None
    pooled, patches = embed(classifier, images, patches=True)
    assert_close(classifier.head(pooled), classifier.forward_head(tokens))
    assert_close(patches, tokens[:, 2:])
    in_parts = embed(classifier, images, batch_size=2, patches=True)
    assert all(map(torch.allclose, in_parts, (pooled, patches)))


def test_a_file_a_picture_and_its_pixels_are_one(classifier, tmp_path):
    images = noise(3)
    pictures = [to_pil_image(image) for image in images]
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for file, picture in zip(files, pictures, strict=True):
        picture.save(file)
    expected = predict(classifier, images)
    for same in (pictures, files, [pictures[0], files[1], str(files[2])]):
        assert torch.equal(predict(classifier, same), expected)
    for single in (pictures[0], files[0], str(files[0])):
        assert_close(predict(classifier, single), expected[:1])


def test_a_model_in_another_precision_and_mode_stays_as_it_was(classifier):
    expected = predict(classifier, noise(2))
    classifier.double().train()
    found = predict(classifier, noise(2))
    assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not found.requires_grad
    assert all(module.training for module in classifier.modules())


def test_images_and_models_that_cannot_be_used_raise(classifier, tmp_path):
    with pytest.raises(DataError, match="not a file"):
        predict(classifier, tmp_path / "missing.png")
    with pytest.raises(DataError, match="uint8"):
        embed(classifier, noise(1).float())
    for classes, problem in ((0, "no classification head"), (1, "no choice between classes")):
        other = loaded(tmp_path / f"{classes}", encoder(num_classes=classes))
        with pytest.raises(CheckpointError, match=problem):
            predict(other, noise(1))
    with torch.no_grad():
        classifier.head.bias[0] = torch.nan
    with pytest.raises(TrainingError, match="nan or infinite"):
        predict(classifier, noise(1))


# of 8 dimensions, 400 images are whitened
@pytest.mark.parametrize(("count", "geometry"), [(50, "standardised"), (400, "whitened")])
def test_cosines_are_those_of_numpy_between_features_as_for_k_nn(count, geometry):
    features = torch.randn(count, 8)
    query = torch.randn(8)
    found = nearest(features, query, 7)
    assert found.geometry == geometry
    vectors, of_query = (
        x.numpy() for x in for_neighbours(features.double(), query[None].double(), geometry)
    )
    cosines = vectors @ of_query[0]
    cosines /= np.linalg.norm(vectors, axis=1) * np.linalg.norm(of_query)
    order = np.argsort(-cosines)
    assert found.numbers.tolist() == order[:7].tolist()
    np.testing.assert_allclose(found.similarities, cosines[order[:7]], rtol=1e-12)
    assert found.median == pytest.approx(np.median(cosines))


@pytest.mark.parametrize("count", [1, 2, 3, 400])
def test_equal_images_have_similarity_1_and_more_than_all_are_all(count):
    features = torch.randn(count, 8)
    for query in (0, count - 1):
        found = nearest(features, features[query], 999)
        assert found.numbers[0] == query
        assert found.similarities[0] == pytest.approx(1, abs=1e-12)
        assert len(found.numbers) == count
        assert found.similarities.abs().max() <= 1
