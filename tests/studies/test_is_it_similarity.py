"""Whether q . k measures similarity: found where it is planted, and its opposite where that is."""

import pytest
import torch
from small import close
from torch.testing import assert_close

from studies.is_it_similarity import (
    KEYS,
    SCORE_PARTS,
    SIMILARITIES,
    covariance_root,
    first_layer_shares,
    form_shares,
    key_shares,
    preferences,
    token_form_shares,
)
from vit.encoder import VisionTransformer


@pytest.fixture
def encoder(trained) -> VisionTransformer:
    """The model's encoder, whose heads take their own part of the tokens as queries and keys."""
    for block in trained.model.encoder.blocks:
        block.attn.W_Q.data.copy_(torch.eye(96))
        block.attn.W_K.data.copy_(torch.eye(96))
        block.attn.qkv.bias.data.zero_()
    return trained.model.encoder


def test_likeness_that_is_planted_is_found_and_so_is_its_opposite(trained, encoder):
    like = preferences(trained, encoder, 48)
    close(like, preferences(trained, encoder, 48, identity=True))
    assert like.shape == (12, 2, 3, len(SIMILARITIES))
    # of the tokens, also among keys at the same distance
    assert like.mean((0, 2))[:, :2].min() > 0.5
    for block in encoder.blocks[:1]:
        block.attn.W_K.data.neg_()
    unlike = preferences(trained, encoder, 48)
    close(unlike[:, 0], -like[:, 0])


def test_likeness_of_places_is_none_without_their_means(trained, encoder):
    encoder.pos_embed.data.mul_(30)
    tokens, _, without_places, *_ = preferences(trained, encoder, 48)[:, 0].mean((0, 1))
    assert tokens > 0.5
    assert abs(without_places) < tokens / 3  # the rest is through the norm


def test_a_form_that_is_a_similarity_has_all_shares(trained, encoder):
    root, dark = covariance_root(trained), covariance_root(trained, leave_out=1)
    shares = form_shares(encoder, root, dark)
    assert_close(shares[:, [0, 1, 2, 3, 5]], torch.ones(3, 5).double())
    encoder.attention(0).W_K.data.neg_()
    shares = form_shares(encoder, root, dark)
    assert shares[:, [0, 2, 5]].min() > 0.999
    assert shares[:, [1, 3]].max() < 1e-6


def test_the_form_on_tokens_is_1_for_a_similarity_and_the_opposite_for_its_opposite(
    trained, encoder
):
    shares = token_form_shares(trained, encoder, 48)  # (layers, h, 5)
    assert shares.shape == (2, 3, 5)
    assert_close(shares[..., :4], torch.ones(2, 3, 4).double())
    for block in encoder.blocks[:1]:
        block.attn.W_K.data.neg_()
    shares = token_form_shares(trained, encoder, 48)
    assert_close(shares[0, :, [1, 3]], -torch.ones(3, 2).double())


def test_shares_sum_to_one(trained):
    first, keys = (
        of(trained, trained.model.encoder, 48) for of in (first_layer_shares, key_shares)
    )
    assert first.shape == (3, len(SCORE_PARTS))
    assert keys.shape == (2, 3, len(KEYS))
    for shares in (first, keys):
        close(shares.sum(-1), torch.ones(shares.shape[:-1]), 1e-4)
