"""Reconstruction: loops are the oracles; its law is that no masked pixel reaches a picture."""

import math

import pytest
import torch
from small import close
from tiny import CPU, NORMALIZE, autoencoder, seeded
from torch import Tensor, nn

from vit.errors import TrainingError
from vit.evaluation.reconstruction import (
    estimate_statistics,
    fixed_mask,
    reconstruct,
    score_reconstruction,
)
from vit.inputs import to_float
from vit.mae import MaskedAutoencoder, masked_patch_loss, patch_targets
from vit.masking import NOISE, Mask, make_mask
from vit.patches import patchify
from vit.weights import Origin

SIZE, PATCH, GRID = (8, 12), (4, 2), (2, 6)


def prepare(images: Tensor) -> Tensor:
    return NORMALIZE(to_float(images, SIZE))


def small_model(norm_pix_loss: bool = True, **settings: object) -> MaskedAutoencoder:
    model = autoencoder(norm_pix_loss, image_size=SIZE, patch_size=PATCH, **settings)
    model.origin = Origin(normalize=NORMALIZE, image_size=SIZE, channels=3)
    return model


class Oracle(nn.Module):
    """Predicts the target itself."""

    def __init__(self, model: MaskedAutoencoder):
        super().__init__()
        self.encoder, self.targets = model.encoder, model.targets
        self.norm_pix_loss, self.origin = model.norm_pix_loss, model.origin

    def forward(self, inputs: Tensor, mask: Mask) -> Tensor:
        return self.targets(inputs)


def random_images(count: int = 5, size: tuple[int, int] = SIZE) -> Tensor:
    return torch.randint(0, 256, (count, 3, *size), dtype=torch.uint8)


def random_mask(batch: int) -> Mask:
    return make_mask("random", batch, GRID, 0.6, seeded(1))


def place(patch: int) -> tuple[int, int]:
    return divmod(patch, GRID[1])


def visible_patches(mask: Mask, image: int) -> list[int]:
    return [patch for patch in range(math.prod(GRID)) if mask.mask[image, patch] == 0]


def test_estimated_statistics_by_loops_over_visible_patches():
    patches, mask = torch.randn(3, 12, 6), random_mask(3)
    mean, deviation = estimate_statistics(patches, mask, GRID)
    for image in range(3):
        seen = visible_patches(mask, image)
        for patch in range(12):
            weights = [1 / max(math.dist(place(patch), place(other)) ** 2, 0.25) for other in seen]
            for estimate, values in (
                (mean, patches[image].mean(-1)),
                (deviation, patches[image].std(-1)),
            ):
                expected = sum(
                    w * values[other] for w, other in zip(weights, seen, strict=True)
                ) / sum(weights)
                close(estimate[image, patch, 0], expected)


@pytest.mark.parametrize(("batch_size", "norm_pix_loss"), [(2, True), (2, False), (256, True)])
def test_scores_are_means_over_images_by_loops(batch_size, norm_pix_loss, monkeypatch):
    monkeypatch.setattr("vit.evaluation.features.BATCH", batch_size)
    model, images = small_model(norm_pix_loss).eval(), random_images()
    scores = score_reconstruction(model, images, prepare, "random", 0.75, CPU)
    losses = []
    for start in range(0, 5, batch_size):
        masks = fixed_mask("random", start, min(batch_size, 5 - start), GRID, 0.75)
        for image, *one in zip(images[start : start + batch_size], *masks, strict=True):
            inputs, mask = NORMALIZE(image[None].float() / 255), Mask(*(part[None] for part in one))
            target = patch_targets(patchify(inputs, PATCH), norm_pix_loss)
            seen = visible_patches(mask, 0)
            nearest = [
                min(seen, key=lambda other: math.dist(place(patch), place(other)))
                for patch in range(12)
            ]
            mean = target[:, seen].mean(1, keepdim=True).expand_as(target)
            guesses = (model(inputs, mask), mean, target[:, nearest])
            losses.append([masked_patch_loss(guess, target, mask.mask).item() for guess in guesses])
    expected = [sum(column) / 5 for column in zip(*losses, strict=True)]
    assert [*scores.values()] == pytest.approx(expected, rel=1e-4)


def test_weights_that_predict_nothing_finite_are_refused():
    model = small_model()
    nn.init.constant_(model.decoder.pred.weight, torch.inf)
    images = torch.zeros(2, 3, *SIZE, dtype=torch.uint8)
    with pytest.raises(TrainingError, match="the losses on masked patches are nan or infinite"):
        score_reconstruction(model, images, prepare, "random", 0.5, CPU)


@pytest.mark.parametrize("kind", NOISE)
def test_the_test_mask_is_always_the_same(kind):
    one = fixed_mask(kind, 16, 8, (8, 8), 0.6)
    torch.manual_seed(1)
    again, elsewhere = (fixed_mask(kind, start, 8, (8, 8), 0.6) for start in (16, 24))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one.mask, elsewhere.mask)


@pytest.mark.parametrize("norm_pix_loss", [True, False])
def test_visible_pixels_stay_and_hidden_ones_are_not_looked_at(norm_pix_loss):
    model, mask, images = small_model(norm_pix_loss), random_mask(5), random_images()
    first = reconstruct(model, images, mask)
    covered = torch.kron(mask.mask.unflatten(1, GRID), torch.ones(PATCH)) > 0
    hidden = covered[:, None].expand(-1, 3, -1, -1)
    close(first[~hidden], (images / 255)[~hidden], 1e-6)

    changed = torch.where(hidden, random_images(), images)
    assert not torch.equal(changed, images)
    other = reconstruct(model, changed, mask)
    assert torch.equal(other[hidden], first[hidden])


@pytest.mark.parametrize(("norm_pix_loss", "off"), [(False, 1e-6), (True, 1e-4)])
def test_a_perfect_model_gives_the_image_back(norm_pix_loss, off):
    """Of normalised patches where all have the same mean and deviation: even texture."""
    images = random_images(5, PATCH).repeat(1, 1, *GRID) if norm_pix_loss else random_images()
    oracle = Oracle(small_model(norm_pix_loss))
    result = reconstruct(oracle, images, random_mask(5))
    close(result, images / 255, off)


def test_measured_in_eval_mode_and_left_in_its_own():
    model, images, mask = small_model(drop_path=0.9), random_images(), random_mask(5)
    scores = [score_reconstruction(model, images, prepare, "random", 0.75, CPU) for _ in range(2)]
    pictures = [reconstruct(model, images, mask) for _ in range(2)]
    assert scores[0] == scores[1]
    assert torch.equal(*pictures)
    assert all(module.training for module in model.modules())
