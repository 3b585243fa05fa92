"""Whether q . k measures similarity: found where it is planted, and its opposite where that is."""

import pytest
import torch

from studies.is_it_similarity import (
    KEYS,
    MEETINGS,
    covariance_root,
    first_layer_shares,
    form_shares,
    key_shares,
    leaning,
    preferences,
)
from vit.encoder import VisionTransformer


@pytest.fixture
def encoder(trained) -> VisionTransformer:
    """The model's encoder, whose heads take their own part of the tokens as queries and keys."""
    model = VisionTransformer(trained.model.encoder.config)
    model.load_state_dict(trained.model.encoder.state_dict())
    for block in model.blocks:
        block.attn.W_Q.data.copy_(torch.eye(96))
        block.attn.W_K.data.copy_(torch.eye(96))
        block.attn.qkv.bias.data.zero_()
    return model.eval()


def test_likeness_that_is_planted_is_found_and_so_is_its_opposite(trained, encoder):
    like = preferences(trained, encoder, 48)
    torch.testing.assert_close(
        like, preferences(trained, encoder, 48, identity=True), rtol=0, atol=1e-5
    )
    assert like.shape == (12, 2, 3, 3)
    assert (
        like.mean((0, 2))[:, [0, 2]].min() > 0.5
    )  # of the tokens, also with nearness held constant
    assert leaning(like[None])[0].all()
    for block in encoder.blocks[:1]:
        block.attn.W_K.data.neg_()
    unlike = preferences(trained, encoder, 48)
    torch.testing.assert_close(unlike[:, 0], -like[:, 0], rtol=0, atol=1e-5)
    assert leaning(unlike[None])[1][0, 0].all()


def test_a_form_that_is_a_similarity_has_all_shares(trained, encoder):
    root = covariance_root(trained)
    torch.testing.assert_close(form_shares(encoder, root), torch.ones(3, 4).double())
    encoder.attention(0).W_K.data.neg_()
    shares = form_shares(encoder, root)
    assert shares[:, [0, 2]].min() > 0.999
    assert shares[:, [1, 3]].max() < 1e-6


def test_random_weights_lean_neither_way(trained):
    found = form_shares(trained.initial.encoder, torch.eye(48).double())
    assert found.mean(0).tolist() == pytest.approx([0.51, 0.5] * 2, abs=0.1)
    assert preferences(trained, trained.initial.encoder, 48)[..., 0].mean().abs() < 0.3


def test_shares_sum_to_one(trained):
    first, keys = (
        of(trained, trained.model.encoder, 48) for of in (first_layer_shares, key_shares)
    )
    assert first.shape == (3, len(MEETINGS))
    assert keys.shape == (2, 3, len(KEYS))
    for shares in (first, keys):
        torch.testing.assert_close(shares.sum(-1), torch.ones(shares.shape[:-1]), rtol=0, atol=1e-4)
