"""One loss for all matrices: gradients are the loss's own, none where there can be none."""

import pytest
import torch
from tiny import autoencoder, randomize, seeded
from torch.testing import assert_close

from studies.who_trains_them import BY_LAYER, measure_gradients, size, weights_and_gradients
from vit.masking import make_mask


def model_of():
    return randomize(autoencoder(embed_dim=24, depth=3, num_heads=3), 0.3).eval()


@pytest.fixture
def images():
    return torch.randn(4, 3, 16, 16, generator=seeded(1))


@pytest.fixture
def mask():
    return make_mask("random", 4, (4, 4), 0.75, seeded(2))


def test_they_are_the_slopes_of_the_loss(images, mask):
    model = model_of()
    found = weights_and_gradients(model, images, mask)
    error = (model(images, mask) - model.targets(images)).square().mean(-1)
    ((error * mask.mask).sum() / mask.mask.sum()).backward()
    attention = model.encoder.attention(1)
    for weight, names in (
        (attention.qkv.weight, ("W_Q", "W_K", "W_V")),
        (attention.proj.weight, ("W_O",)),
    ):
        both = torch.stack([weight.detach(), weight.grad])
        for name, part in zip(names, both.chunk(len(names), dim=1), strict=True):
            assert_close(found[name][:, 1], part.flatten(1))


def test_the_bias_of_the_keys_has_no_gradient_and_no_effect(images, mask):
    model = model_of().double()
    images = images.double()
    found = weights_and_gradients(model, images, mask)
    assert (size(found["b_K"][1]) < 1e-12 * size(found["b_Q"][1])).all()
    before = model(images, mask)
    for block in model.encoder.blocks:
        block.attn.qkv.bias.data.chunk(3)[1].add_(100)
    assert_close(model(images, mask), before)


def test_every_matrix_is_pulled_and_moves_but_for_what_is_frozen(one_seed, trained):
    measured = measure_gradients(one_seed.models(), 32)
    for name in BY_LAYER:
        assert measured.gradient[name].shape == (1, 2, 2)  # seeds, moments, layers
        assert (measured.gradient[name] > 100 * measured.gradient["b_K"]).all(), name
        assert (measured.moved[name] > 1e-3).all(), name
    assert (measured.gradient["W_E"] > 0).all()
    assert "positions" not in measured.moved  # they are fixed
    first, now = (
        one.encoder.patch_embed.proj.weight.detach().flatten()
        for one in (trained.initial, trained.model)
    )
    assert_close(measured.moved["W_E"].squeeze(), (now - first).norm() / first.norm())
    frozen = measure_gradients(one_seed.models("W_Q frozen"), 32)
    assert (frozen.moved["W_Q"] == 0).all()
    assert (frozen.gradient["W_Q"] > 0).all()  # it would be pulled
    assert (frozen.moved["W_K"] > 1e-3).all()


def test_the_loss_is_that_of_the_model_s_scores(trained):
    assert trained.reconstruction()["loss"] == pytest.approx(trained.scores["loss"])
