"""Attention and similarity: laws of the identity case, and what chance gives."""

import pytest
import torch

from vit.config import ViTConfig
from vit.encoder import VisionTransformer
from vit.interpret.logits import asking
from vit.interpret.self_similarity import correlation_with_cosine, self_share, symmetry

SIZES = dict(image_size=(16, 16), patch_size=(4, 4), embed_dim=24, depth=3, num_heads=3)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_identity_is_self_similarity():
    encoder = VisionTransformer(ViTConfig(**SIZES, qkv="identity"))
    for layer in asking(encoder, torch.randn(2, 3, 16, 16)):
        tokens, logits = layer.tokens, layer.logits
        heads = tokens.unflatten(-1, (3, 8))  # (B, N, h, d)
        expected = torch.einsum("bnhd,bmhd->bhnm", heads, heads) / 8**0.5
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(symmetry(logits), torch.ones(2, 3))
        # tokens are of equal length, so all heads together are the cosine, but for a factor
        together = correlation_with_cosine(logits.mean(1, keepdim=True), tokens)
        torch.testing.assert_close(together, torch.ones(2, 1), rtol=0, atol=1e-4)


def test_a_head_that_prefers_the_unlike_is_found():
    tokens = torch.randn(2, 30, 16)
    cosines = torch.nn.functional.cosine_similarity(tokens[:, :, None], tokens[:, None], dim=-1)
    liking = torch.stack([5 * cosines, -2 * cosines, cosines.transpose(-2, -1) + torch.randn(2, 30, 1)], dim=1)
    expected = torch.tensor([[1.0, -1.0, 1.0]]).expand(2, 3)
    torch.testing.assert_close(correlation_with_cosine(liking, tokens), expected, rtol=0, atol=1e-4)


def test_a_token_is_not_compared_with_itself():
    tokens = torch.randn(2, 6, 8)
    logits = torch.nn.functional.cosine_similarity(tokens[:, :, None], tokens[:, None], dim=-1)[:, None]
    spoilt = logits.masked_fill(torch.eye(6, dtype=torch.bool), -100.0)
    torch.testing.assert_close(correlation_with_cosine(spoilt, tokens), torch.ones(2, 1))


def test_likeness_is_told_from_what_is_held_constant():
    tokens, near = torch.randn(4, 40, 16), 20 * torch.randn(40, 40)
    cosines = torch.nn.functional.cosine_similarity(tokens[:, :, None], tokens[:, None], dim=-1)
    logits = torch.stack([cosines + near, near.expand(4, 40, 40)], dim=1)
    assert correlation_with_cosine(logits, tokens).abs().max() < 0.15  # hidden by what varies more
    found = correlation_with_cosine(logits, tokens, near)
    torch.testing.assert_close(found[:, 0], torch.ones(4), rtol=0, atol=1e-3)
    torch.testing.assert_close(found[:, 1], torch.zeros(4), rtol=0, atol=0.1)


def test_unrelated_logits_give_nothing():
    tokens, logits = torch.randn(8, 60, 32), torch.randn(8, 4, 60, 60)
    assert correlation_with_cosine(logits, tokens).abs().max() < 0.08
    assert symmetry(logits).abs().max() < 0.12
    assert (correlation_with_cosine(torch.zeros(8, 4, 60, 60), tokens) == 0).all()


def test_symmetry_of_its_extremes_and_without_what_is_common():
    pairs = torch.randn(3, 2, 9, 9)
    torch.testing.assert_close(symmetry(pairs + pairs.mT), torch.ones(3, 2))
    torch.testing.assert_close(symmetry(pairs - pairs.mT), -torch.ones(3, 2))
    popular = pairs + 100 * torch.randn(3, 2, 1, 9) + 100 * torch.randn(3, 2, 9, 1)
    torch.testing.assert_close(symmetry(popular), symmetry(pairs), rtol=0, atol=1e-3)


def test_the_share_of_the_diagonal():
    even = torch.full((1, 2, 5, 5), 0.2)
    torch.testing.assert_close(self_share(even), torch.full((1, 2), 0.2))
    torch.testing.assert_close(self_share(torch.eye(5).expand(1, 2, 5, 5)), torch.ones(1, 2))
    one_of_five = torch.diag(torch.tensor([1.0, 0, 0, 0, 0])).expand(1, 2, 5, 5)
    assert (self_share(one_of_five) == 0.2).all()
    assert (self_share(one_of_five, num_prefix_tokens=1) == 0).all()
