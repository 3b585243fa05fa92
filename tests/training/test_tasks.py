"""What a step asks of its images: masks, mixtures, and losses that are what they are by definition."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vit.config import ClassifyConfig, Config, MaskConfig, ModelConfig, TrainConfig
from vit.encoder import VisionTransformer
from vit.mae import build_autoencoder, masked_patch_loss, uniformity
from vit.masking import Mask
from vit.training.tasks import Classification, Reconstruction

TINY = ModelConfig(
    image_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, decoder_dim=16, decoder_depth=1, decoder_heads=2
)
CLASSES = 5
COUNT = 13  # images, batches of 8: two steps an epoch
WHOLE = slice(0, 8)
INDICES = torch.tensor([3, 9, 0, 12, 5, 7, 1, 10])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def classification(labels: Tensor | None = None, classes: int = CLASSES, **settings: object) -> Classification:
    config = Config(
        model=TINY, train=TrainConfig(task="classify", epochs=3, batch_size=8), classify=ClassifyConfig(**settings)
    )
    model = VisionTransformer(TINY.vit_config(num_classes=classes))
    return Classification(model, config, torch.arange(COUNT) % classes if labels is None else labels, classes)


def reconstruction(**mask: object) -> Reconstruction:
    config = Config(model=TINY, mask=MaskConfig(**mask))
    return Reconstruction(build_autoencoder(TINY.vit_config(), TINY.decoder_config(), True), config)


def posed(task: Classification | Reconstruction, images: Tensor, part: slice, step: int = 0) -> tuple[Tensor, ...]:
    """The question that a part of a batch of 8 becomes."""
    rows = task.rows(8, part)
    inputs, others = task.pose(images[rows], INDICES[rows], step, 8, part)
    return inputs, *others


# --- questions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixing", [dict(mixup=0.8), dict(cutmix=1.0), dict(mixup=0.8, cutmix=1.0)], ids=str)
def test_an_image_is_mixed_with_the_one_after_it_and_so_is_its_label(mixing):
    """Image i has colour i and class i: its mean says of what it was made, as its label does."""
    task = classification(torch.arange(COUNT), COUNT, **mixing)
    images = INDICES.float()[:, None, None, None].expand(-1, 3, 16, 16)
    inputs, targets = posed(task, images, WHOLE)
    torch.testing.assert_close(inputs.mean((1, 2, 3)), targets @ torch.arange(COUNT).float(), rtol=0, atol=1e-4)
    pairs = set(zip(INDICES.tolist(), INDICES.roll(-1).tolist(), strict=True))
    found = {tuple(row.nonzero().flatten().tolist()) for row in targets if (row > 0).sum() == 2}
    assert found <= {tuple(sorted(pair)) for pair in pairs}
    assert len(found) > 3
    assert not torch.equal(inputs, images)


@pytest.mark.parametrize(
    "task",
    [
        classification(), classification(mixup=0.8, cutmix=1.0, drop_patches=0.5), reconstruction(kind="block"),
    ],
    ids=["plain", "all", "reconstruction"],
)  # fmt: skip
@pytest.mark.parametrize("cuts", [[0, 3, 8], [0, 1, 7, 8]], ids=str)
def test_parts_of_a_batch_are_asked_what_the_whole_is(task, cuts):
    images = torch.rand(8, 3, 16, 16)
    parts = [posed(task, images, slice(*bounds), step=1) for bounds in pairwise(cuts)]
    for joined, whole in zip(map(torch.cat, zip(*parts, strict=True)), posed(task, images, WHOLE, 1), strict=True):
        assert torch.equal(joined, whole)


def test_each_step_draws_anew():
    task, images = classification(mixup=0.8, drop_patches=0.5), torch.rand(8, 3, 16, 16)
    one, again, other = (posed(task, images, WHOLE, step) for step in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("mixing", "more"), [(dict(), 0), (dict(mixup=0.8), 1), (dict(cutmix=1.0), 1)], ids=str)
def test_mixing_needs_one_image_more_and_the_last_is_followed_by_the_first(mixing, more):
    task = classification(**mixing)
    assert task.rows(8, slice(2, 5)).tolist() == [2, 3, 4, 5][: 3 + more]
    assert task.rows(8, slice(6, 8)).tolist() == [6, 7, 0][: 2 + more]


def test_single_image_of_a_batch_stays_what_it_is():
    task, image = classification(mixup=0.8, cutmix=1.0), torch.rand(1, 3, 16, 16)
    rows = task.rows(1, slice(0, 1))
    inputs, (targets,) = task.pose(image[rows], INDICES[rows], 0, 1, slice(0, 1))
    torch.testing.assert_close(inputs, image, rtol=0, atol=1e-6)
    torch.testing.assert_close(targets, F.one_hot(task.labels[INDICES[:1]], CLASSES).float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("whole_epochs", "dropping"), [(0, 6), (1, 4), (1.5, 3), (2, 2)])
def test_patches_are_dropped_until_the_whole_epochs(whole_epochs, dropping):
    """Two steps an epoch, three epochs."""
    task, images = classification(drop_patches=0.5, whole_epochs=whole_epochs), torch.rand(8, 3, 16, 16)
    masks = [posed(task, images, WHOLE, step)[2:] for step in range(6)]
    assert [len(mask) > 0 for mask in masks] == [step < dropping for step in range(6)]
    assert (Mask(*masks[0]).mask.sum(1) == 8).all()


# --- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_accuracy_of_a_classifier_by_their_definitions(smoothing):
    task, images = classification(label_smoothing=smoothing).eval(), torch.randn(8, 3, 16, 16)
    inputs, targets = posed(task, images, WHOLE)
    loss, right = task(inputs, targets)
    logits, labels = task.model.forward_head(task.model(images)), task.labels[INDICES]
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, label_smoothing=smoothing))
    assert right == (logits.argmax(1) == labels).float().mean()
    assert task.measures == ("loss", "train_accuracy")


def test_dropped_patches_are_not_looked_at():
    task, images = classification(drop_patches=0.5).eval(), torch.randn(8, 3, 16, 16)
    inputs, targets, *mask = posed(task, images, WHOLE)
    dropped = Mask(*mask).mask.view(8, 1, 4, 4).repeat_interleave(4, 2).repeat_interleave(4, 3) > 0
    measures = task(inputs, targets, *mask)
    assert torch.equal(task(inputs.masked_fill(dropped, torch.nan), targets, *mask), measures)
    assert not torch.equal(task(inputs, targets), measures)


@pytest.mark.parametrize("class_token", [True, False])
def test_uniformity_is_that_of_the_visible_patches_means_and_its_weight_counts(class_token):
    model, images = replace(TINY, class_token=class_token), torch.randn(8, 3, 16, 16)
    autoencoder = build_autoencoder(model.vit_config(), model.decoder_config(), True)
    found = {}
    for weight in (0.0, 0.01, 2.0):
        task = Reconstruction(autoencoder, Config(model=model, mask=MaskConfig(uniformity=weight)))
        inputs, *mask = posed(task, images, WHOLE)
        found[weight] = dict(zip(task.measures, task(inputs, *mask), strict=True))
    mask = Mask(*mask)
    means = torch.stack([tokens[-4:].mean(0) for tokens in autoencoder.encoder(images, mask)])  # 4 of 16 are visible
    plain = masked_patch_loss(autoencoder(images, mask), autoencoder.targets(images), mask.mask)
    assert set(found[0.0]) == {"loss"}
    torch.testing.assert_close(found[0.0]["loss"], plain)
    for weight in (0.01, 2.0):
        torch.testing.assert_close(found[weight]["masked_loss"], plain)
        torch.testing.assert_close(found[weight]["uniformity"], uniformity(means))
        torch.testing.assert_close(found[weight]["loss"], plain + weight * uniformity(means))
