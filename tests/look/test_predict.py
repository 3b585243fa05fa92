"""Law: predictions are the head's softmax and features what it reads, whatever form images have."""

import pytest
import torch
from tiny import NORMALIZE, autoencoder, encoder, noise
from torchvision.transforms.v2.functional import to_pil_image

from vit.checkpoints import load_model, save_model
from vit.errors import CheckpointError, DataError
from vit.look.predict import embed, predict


def loaded(folder, model):
    save_model(folder, model, NORMALIZE)
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
    torch.testing.assert_close(probabilities, classifier.forward_head(tokens).softmax(1))
    torch.testing.assert_close(probabilities.sum(1), torch.ones(5))
    assert embed(classifier, images).patches is None
    pooled, patches = embed(classifier, images, patches=True)
    torch.testing.assert_close(classifier.head(pooled), classifier.forward_head(tokens))
    torch.testing.assert_close(patches, tokens[:, 2:])
    in_parts = embed(classifier, images, batch_size=2, patches=True)
    torch.testing.assert_close(in_parts.pooled, pooled)
    torch.testing.assert_close(in_parts.patches, patches)


def test_an_autoencoder_gives_its_encoders_features(tmp_path):
    model = loaded(tmp_path, autoencoder())
    images = noise(2)
    assert torch.equal(
        embed(model, images, patches=True).patches,
        model(model.origin.inputs(images)).detach()[:, 1:],
    )


def test_a_file_a_picture_and_its_pixels_are_one(classifier, tmp_path):
    images = noise(3)
    pictures = [to_pil_image(image) for image in images]
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for file, picture in zip(files, pictures, strict=True):
        picture.save(file)
    expected = predict(classifier, images)
    for same in (pictures, files, list(map(str, files)), [pictures[0], files[1], str(files[2])]):
        assert torch.equal(predict(classifier, same), expected)
    for single in (pictures[0], files[0], str(files[0]), images[:1]):
        torch.testing.assert_close(predict(classifier, single), expected[:1])


def test_a_model_in_another_precision(classifier):
    expected = predict(classifier, noise(2))
    torch.testing.assert_close(
        predict(classifier.double(), noise(2)), expected, rtol=1e-5, atol=1e-6
    )


def test_the_model_stays_as_it_was(classifier):
    classifier.train()
    assert predict(classifier, noise(1)).requires_grad is False
    assert all(module.training for module in classifier.modules())


def test_images_and_models_that_cannot_be_used_raise(classifier, tmp_path):
    with pytest.raises(DataError, match="not a file"):
        predict(classifier, tmp_path / "missing.png")
    with pytest.raises(DataError, match="uint8"):
        embed(classifier, noise(1).float())
    headless = loaded(tmp_path / "encoder", encoder())
    with pytest.raises(CheckpointError, match="no classification head"):
        predict(headless, noise(1))
    one_output = loaded(tmp_path / "one", encoder(num_classes=1))
    with pytest.raises(CheckpointError, match="no choice between classes"):
        predict(one_output, noise(1))
    classifier.origin.details["problem_type"] = "multi_label_classification"
    with pytest.raises(CheckpointError, match="no choice between classes"):
        predict(classifier, noise(1))
    classifier.origin.details["problem_type"] = None
    with torch.no_grad():
        classifier.head.bias[0] = torch.nan
    with pytest.raises(CheckpointError, match="nan or infinite"):
        predict(classifier, noise(1))
    with torch.no_grad():
        headless.blocks[0].mlp.fc1.weight.fill_(torch.inf)
    with pytest.raises(CheckpointError, match="nan or infinite"):
        embed(headless, noise(1))
