"""What a step asks of its images: masks, mixtures, and losses that are what they are by definition."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from tiny import TINY, image_set

from vit.config import OBJECTIVES, Config, ModelConfig, ReconstructConfig, TrainConfig
from vit.config import ClassifyConfig as Classes
from vit.data import Dataset
from vit.data.augment import augment
from vit.data.draws import Draws, draw_step
from vit.mae import masked_patch_loss
from vit.masking import Mask, mask_from_noise
from vit.training.objectives import Objective, objective_class
from vit.training.objectives.reconstruct import uniformity

CLASSES = 5
COUNT = 13  # images, batches of 8: two steps an epoch


def objective_of(config: Config, classes: int = CLASSES) -> Objective:
    """An objective with a new model, on images of which the i-th has class i mod `classes` and shade i."""
    images = torch.arange(COUNT, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 16, 16)
    both = image_set(images, tuple(map(str, range(classes))))
    data, kind = Dataset("Shades", "folder", both, both), objective_class(config.train.objective)
    encoder = config.model.vit_config(**kind.encoder_settings(config, data))
    return kind(kind.build_model(config, encoder), config, data)


def classification(classes: int = CLASSES, **settings: object) -> Objective:
    train = TrainConfig(objective="classify", epochs=3, batch_size=8)
    config = Config(model=TINY, train=train, classify=Classes(**settings))
    return objective_of(replace(config, augment=replace(config.augment, crop="none", flip=0)), classes)


def reconstruction(model: ModelConfig = TINY, uniformity: float = 0.0) -> Objective:
    reconstruct = ReconstructConfig(uniformity=uniformity)
    return objective_of(Config(model=model, reconstruct=reconstruct, train=TrainConfig(batch_size=8)))


def draws_of(objective: Objective, step: int = 0) -> Draws:
    return draw_step(objective.config, step, COUNT, masked=objective.mask_ratio(step) > 0)


# --- the registry ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_has_its_module_and_its_class(name):
    kind = objective_class(name)
    assert issubclass(kind, Objective)
    assert kind is import_module(f"vit.training.objectives.{name}").OBJECTIVE
    objective = objective_of(Config(model=TINY, train=TrainConfig(objective=name)))
    assert objective.lengths
    assert objective.learns(objective.config.deciding(), "")
    needs = objective.targets(torch.arange(COUNT) % CLASSES, draws_of(objective)) is not None
    assert needs == OBJECTIVES[name].labels


# --- questions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixing", [dict(mixup=0.8), dict(cutmix=1.0), dict(mixup=0.8, cutmix=1.0)], ids=str)
def test_an_image_is_mixed_with_the_one_after_it_and_so_is_its_label(mixing):
    """Image i has colour i and class i: its mean says of what it was made, as its label does."""
    objective = classification(COUNT, **mixing)
    draws = draws_of(objective)
    shades = draws.indices.to(torch.uint8)[:, None, None, None].expand(-1, 3, 16, 16)
    rows = draws.shard(0, 1)
    inputs = augment(shades[torch.arange(9) % 8], rows, objective.config) * 255
    targets = objective.targets(torch.arange(COUNT), draws)
    torch.testing.assert_close(inputs.mean((1, 2, 3)), targets @ torch.arange(COUNT).float(), rtol=0, atol=1e-4)
    pairs = set(zip(draws.indices.tolist(), draws.indices.roll(-1).tolist(), strict=True))
    found = {tuple(row.nonzero().flatten().tolist()) for row in targets if (row > 0).sum() == 2}
    assert found <= {tuple(sorted(pair)) for pair in pairs}
    assert len(found) > 3
    assert not torch.allclose(inputs, shades.float(), atol=1)


@pytest.mark.parametrize(("whole_epochs", "dropping"), [(0, 6), (1, 4), (1.5, 3), (2, 2)])
def test_patches_are_dropped_until_the_whole_epochs(whole_epochs, dropping):
    """Two steps an epoch, three epochs."""
    objective = classification(drop_patches=0.5, whole_epochs=whole_epochs)
    noises = [draws_of(objective, step).mask_noise for step in range(6)]
    assert [noise is not None for noise in noises] == [step < dropping for step in range(6)]
    assert (mask_from_noise(noises[0], objective.keep).mask.sum(1) == 8).all()


# --- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_accuracy_of_a_classifier_by_their_definitions(smoothing):
    objective, images = classification(label_smoothing=smoothing).eval(), torch.randn(8, 3, 16, 16)
    draws = draws_of(objective)
    labels = draws.indices % CLASSES
    loss, metrics = objective(images, objective.targets(torch.arange(COUNT) % CLASSES, draws), Draws())
    logits = objective.model.forward_head(objective.model(images))
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, label_smoothing=smoothing))
    assert metrics["train_accuracy"] == (logits.argmax(1) == labels).float().mean()
    assert list(metrics) == ["train_accuracy"]


def test_dropped_patches_are_not_looked_at():
    objective, images = classification(drop_patches=0.5).eval(), torch.randn(8, 3, 16, 16)
    draws = draws_of(objective)
    targets, read = objective.targets(torch.arange(COUNT) % CLASSES, draws), draws.for_model(torch.device("cpu"))
    mask = mask_from_noise(draws.mask_noise, objective.keep)
    dropped = mask.mask.view(8, 1, 4, 4).repeat_interleave(4, 2).repeat_interleave(4, 3) > 0
    loss, _ = objective(images, targets, read)
    assert torch.equal(objective(images.masked_fill(dropped, torch.nan), targets, read)[0], loss)
    assert not torch.equal(objective(images, targets, Draws())[0], loss)


@pytest.mark.parametrize("class_token", [True, False])
def test_uniformity_is_that_of_the_visible_patches_means_and_its_weight_counts(class_token):
    model, images = replace(TINY, class_token=class_token), torch.randn(8, 3, 16, 16)
    found, autoencoder = {}, reconstruction(model).model
    for weight in (0.0, 0.01, 2.0):
        objective = reconstruction(model, uniformity=weight)
        objective.model = autoencoder
        draws = draws_of(objective)
        loss, metrics = objective(images, None, draws.for_model(torch.device("cpu")))
        assert list(metrics) == (["masked_loss", "uniformity"] if weight else [])
        assert objective.compares_images == ("reconstruct.uniformity" if weight else "")
        found[weight] = {"loss": loss, **metrics}
    mask: Mask = mask_from_noise(draws.mask_noise, objective.keep)
    means = torch.stack([tokens[-4:].mean(0) for tokens in autoencoder.encoder(images, mask)])  # 4 of 16 are visible
    plain = masked_patch_loss(autoencoder(images, mask), autoencoder.targets(images), mask.mask)
    assert set(found[0.0]) == {"loss"}
    torch.testing.assert_close(found[0.0]["loss"], plain)
    for weight in (0.01, 2.0):
        torch.testing.assert_close(found[weight]["masked_loss"], plain)
        torch.testing.assert_close(found[weight]["uniformity"], uniformity(means))
        torch.testing.assert_close(found[weight]["loss"], plain + weight * uniformity(means))
