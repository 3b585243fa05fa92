"""Attention against causes: agreement is found where it is planted, and none where there is none."""

import pytest
import torch
from tiny import autoencoder, captured, encoder, randomize, seeded
from torch.testing import assert_close

from studies.attention_or_cause import (
    ATTENTION,
    HEAD_MEASURES,
    PROXIMITY,
    TOP,
    MaskedPatches,
    attended_patches,
    head_measures,
    measure_heads,
    removal_effects,
    scored,
)
from vit.config import DecoderConfig
from vit.mae import MaskedAutoencoder
from vit.masking import Mask, make_mask, mask_from_noise
from vit.patches import patchify, unpatchify


def planted(guesses: dict[str, torch.Tensor], effect: torch.Tensor) -> MaskedPatches:
    numbers = torch.zeros(len(effect), dtype=torch.int64)
    return MaskedPatches(numbers, numbers, numbers, guesses, effect, -effect, effect.exp())


def test_agreement_that_is_planted_is_found_and_chance_is_none():
    effect, near, chance = torch.rand(3, 3000, 16)
    guesses = {
        PROXIMITY: near,
        ATTENTION: effect**3,
        "near it": effect + 3 * near,
        "chance": chance,
    }
    found = dict(zip(guesses, scored(planted(guesses, effect)), strict=True))
    assert found[ATTENTION].tolist() == pytest.approx([1, 1, 1, -1, 1], abs=1e-4)
    assert found["chance"].tolist() == pytest.approx([0, 0, TOP / 16, 0, 0], abs=0.02)
    assert 0.15 < found["near it"][0] < 0.45 < 0.7 < found["near it"][1]  # proximity hides it
    guesses[ATTENTION] = effect + near
    mirror = scored(planted(guesses, effect))[0]
    assert mirror[0] == pytest.approx(0, abs=0.02)
    assert mirror[1] < -0.4  # at equal attention, the nearer matters less


def test_a_head_that_is_silent_is_not_missed(trained):
    trained.model.encoder.attention(1).W_O.data[:32] = 0
    found = measure_heads(trained, trained.model, 32)
    assert found.shape == (8, len(HEAD_MEASURES) + 1)  # two layers of three, and one of two
    assert found[3, -2:].abs().max() < 1e-6
    assert found[:, -1].abs().max() > 1e-4


# --- patches

GRID = (3, 4)


def model_of() -> MaskedAutoencoder:
    decoder = DecoderConfig(dim=16, depth=2, num_heads=2)
    return randomize(autoencoder(True, decoder, image_size=(6, 8), patch_size=(2, 2)), 0.3).eval()


@pytest.fixture
def mask() -> Mask:
    return make_mask("random", 5, GRID, 0.5, seeded(0))


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(5, 3, 6, 8, generator=seeded(1))


def test_effects_by_their_definition(mask, inputs):
    model = model_of()
    kept = mask.ids_keep[:, [0, 1, 2, 3, 5]]
    one_more = mask_from_noise(torch.ones(5, 12).scatter(1, kept, 0), 5)
    patches, place = patchify(inputs, (2, 2)), mask.ids_keep[2, 4]
    patches[2, place] = patches[2, mask.mask[2] == 0].mean(0)
    whole, targets = model(inputs, mask)[2], model.targets(inputs)[2]
    for how, other in (
        ("left out", model(inputs, one_more)),
        ("mean patch", model(unpatchify(patches, (2, 2), GRID), mask)),
    ):
        found = removal_effects(model, inputs, mask, how)
        assert found.change.shape == found.error.shape == (5, 12, 6)
        assert_close(found.change[2, :, 4], (other[2] - whole).square().mean(-1))
        errors = [(one - targets).square().mean(-1) for one in (other[2], whole)]
        assert_close(found.error[2, :, 4], errors[0] - errors[1])


def test_what_is_attended_to_is_read_at_the_right_tokens(mask, inputs):
    model = model_of()
    hidden = mask.mask.topk(3).indices
    found = attended_patches(model, inputs, mask, hidden)
    assert all(one.shape == (5, 3, 6) for one in found.values())
    weights = captured(model.decoder, inputs, mask, run=model).layer_weights(-1).mean(1)
    assert_close(found[ATTENTION][3, 1, 2], weights[3, 1 + hidden[3, 1], 1 + mask.ids_keep[3, 2]])
    rollout = found["rollout, encoder and decoder"]
    assert (rollout > 0).all()
    assert (rollout.sum(-1) < 1).all()


# --- heads


def test_a_head_without_queries_is_uniform_and_one_without_output_writes_nothing():
    model = randomize(encoder(image_size=(8, 8)), std=0.4).eval()
    model.attention(0).qkv.weight.data[8:16] = 0  # W_Q of the second head
    model.attention(0).qkv.bias.data[8:16] = 0
    model.attention(1).W_O.data[:8] = 0  # the first head's rows
    found = head_measures(model, lambda: model(torch.randn(3, 3, 8, 8)))
    assert found[1, :3].tolist() == pytest.approx([0, 1 - 1 / 5, 1 / 5], abs=1e-5)  # of five tokens
    assert found[0, 0] > 0.01
    assert found[2, 3] == 0
    assert found[3, 3] > 0.1
