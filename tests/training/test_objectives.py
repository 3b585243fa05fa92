"""Objectives: masks, mixed labels and losses, each against its definition."""

import torch
import torch.nn.functional as F
from small import close
from tiny import TINY, image_set
from torch.testing import assert_close

from vit.config import (
    AugmentConfig,
    Config,
    ReconstructConfig,
    TrainConfig,
    changed,
)
from vit.config import ClassifyConfig as Classes
from vit.data import Dataset
from vit.data.augment import augment
from vit.data.draws import Draws, draw_step
from vit.masking import mask_from_noise
from vit.training import objectives
from vit.training.objectives import TEMPERATURE, Objective, info_nce

CLASSES = 5
COUNT = 13  # images, batches of 8: two steps an epoch


def objective_of(config: Config, classes: int = CLASSES) -> Objective:
    """An objective with a new model; the i-th image has class i mod `classes` and shade i."""
    images = torch.arange(COUNT, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 16, 16)
    both = image_set(images, tuple(map(str, range(classes))))
    data = Dataset("Shades", "folder", both, both)
    kind = objectives.CLASSES[config.train.objective]
    encoder = config.model.vit_config(**kind.encoder_settings(data))
    return kind(kind.build_model(config, encoder), config, data)


def classification(classes: int = CLASSES, **settings: object) -> Objective:
    train = TrainConfig(objective="classify", epochs=3, batch_size=8)
    config = Config(model=TINY, train=train, classify=Classes(**settings))
    return objective_of(changed(config, {"augment.crop": "none", "augment.flip": 0}), classes)


def reconstruction(views: int = 1, **settings: float) -> Objective:
    config = Config(
        augment=AugmentConfig(views=views),
        model=TINY,
        reconstruct=ReconstructConfig(**settings),
        train=TrainConfig(batch_size=8),
    )
    return objective_of(config)


def draws_of(objective: Objective, step: int = 0) -> Draws:
    return draw_step(objective.config, step, COUNT, masked=objective.is_masked(step))


# --- questions ------------------------------------------------------------------------------------


def test_an_image_is_mixed_with_the_one_after_it_and_so_is_its_label():
    """Image i has colour i and class i: its mean says of what it was made, as its label does."""
    objective = classification(COUNT, mixup=0.8, cutmix=1.0)
    draws = draws_of(objective)
    shades = draws.indices.to(torch.uint8)[:, None, None, None].expand(-1, 3, 16, 16)
    rows = draws.shard(0, 1)
    inputs = augment(shades[torch.arange(9) % 8], rows, objective.config) * 255
    targets = objective.targets(torch.arange(COUNT), draws)
    close(inputs.mean((1, 2, 3)), targets @ torch.arange(COUNT).float(), 1e-4)
    assert ((targets > 0).sum(1) == 2).sum() > 3


def test_patches_are_dropped_until_the_whole_epochs():
    """Two steps an epoch, three epochs."""
    objective = classification(drop_patches=0.5, whole_epochs=1.5)
    noises = [draws_of(objective, step).mask_noise for step in range(6)]
    assert [noise is not None for noise in noises] == [True] * 3 + [False] * 3
    assert (mask_from_noise(noises[0], objective.keep).mask.sum(1) == 8).all()


# --- losses ---------------------------------------------------------------------------------------


def test_loss_and_accuracy_of_a_classifier_by_their_definitions():
    objective, images = classification(label_smoothing=0.1).eval(), torch.randn(8, 3, 16, 16)
    draws = draws_of(objective)
    labels = draws.indices % CLASSES
    loss, metrics = objective(
        images, objective.targets(torch.arange(COUNT) % CLASSES, draws), Draws()
    )
    logits = objective.model.forward_head(objective.model(images))
    assert_close(loss, F.cross_entropy(logits, labels, label_smoothing=0.1))
    assert metrics["train_accuracy"] == (logits.argmax(1) == labels).float().mean()


def test_dropped_patches_are_not_looked_at():
    objective = classification(drop_patches=0.5).eval()
    images = torch.randn(8, 3, 16, 16)
    draws = draws_of(objective)
    targets = objective.targets(torch.arange(COUNT) % CLASSES, draws)
    read = draws.for_model()
    mask = mask_from_noise(draws.mask_noise, objective.keep)
    dropped = mask.mask.view(8, 1, 4, 4).repeat_interleave(4, 2).repeat_interleave(4, 3) > 0
    loss, _ = objective(images, targets, read)
    assert torch.equal(objective(images.masked_fill(dropped, torch.nan), targets, read)[0], loss)
    assert not torch.equal(objective(images, targets, Draws())[0], loss)


def test_contrast_is_that_of_the_pooled_patches_and_trains_encoder_and_projector():
    """The model fills in as before; what finds the other view reads the encoder alone."""
    objective = reconstruction(views=2, contrast=0.5)
    draws = draws_of(objective)
    images = torch.randn(16, 3, 16, 16)
    read = draws.for_model()
    loss, metrics = objective(images, None, read)
    mask = mask_from_noise(draws.mask_noise, objective.keep)
    filled, tokens = objective.model.loss(images, mask)
    means = torch.stack([row[-4:].mean(0) for row in tokens])  # 4 of 16 are visible
    expected, accuracy = info_nce(objective.projector(means), TEMPERATURE)
    assert_close(loss, filled + 0.5 * expected)
    assert list(metrics) == ["masked_loss", "contrast", "pair_accuracy"]
    assert_close(metrics["masked_loss"], filled)
    assert_close(metrics["contrast"], expected)
    assert metrics["pair_accuracy"] == accuracy
    metrics["contrast"].backward()
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            reached = name.startswith(("model.encoder", "projector"))
            assert (parameter.grad is not None) == reached, name


def test_other_view_is_found_by_definition_and_never_is_itself():
    features, temperature = torch.randn(10, 6), 0.2
    cosines = F.normalize(features, dim=1) @ F.normalize(features, dim=1).T / temperature
    terms = []
    hits = 0
    for row in range(10):
        candidates = [other for other in range(10) if other != row]
        scores = cosines[row, candidates]
        # the row beside it
        partner = torch.tensor(candidates.index(row ^ 1))
        terms.append(F.cross_entropy(scores, partner))
        hits += scores.argmax() == partner
    loss, accuracy = info_nce(features, temperature)
    assert_close(loss, torch.stack(terms).mean())
    assert accuracy == hits / 10
    # the last batch of an epoch may hold one image
    of_one_image = info_nce(torch.randn(2, 8), 0.2)
    assert [value.item() for value in of_one_image] == [0, 1]
