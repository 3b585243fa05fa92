"""The parts of logits: they sum to what attention takes the softmax of, and each is nothing where its cause is absent."""

import pytest
import tiny
import torch
from small import close
from tiny import captured, randomize, seeded
from torch import nn
from torch.testing import assert_close

from studies.analysis.logits import (
    correlation_with_cosine,
    leading_pairs,
    pixel_forms,
    queries_and_keys_by_layer,
    split_first_logits,
    split_keys,
    symmetry,
    variance_parts,
)
from vit.encoder import VisionTransformer
from vit.patches import patchify

KINDS = [
    {"class_token": False},
    {"registers": 2, "no_embed_class": True},
    {"qkv_bias": False},
]


def encoder_of(**settings) -> VisionTransformer:
    sizes = dict(
        image_size=(8, 12),
        patch_size=(2, 4),
        embed_dim=24,
        depth=3,
        num_heads=3,
        pos_embed="sincos",
    )
    return randomize(tiny.encoder(**sizes | settings), 0.3).eval()


def images(count: int = 3, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, 3, 8, 12, generator=seeded(seed))


@pytest.mark.parametrize("settings", [*KINDS, {"qkv": "identity"}, {"qk_norm": True}])
def test_logits_are_those_of_the_model(settings):
    encoder = encoder_of(**settings)
    maps = captured(encoder, images())
    layers = queries_and_keys_by_layer(encoder, images())
    for layer, weights in zip(layers, maps.weights.values(), strict=True):
        close(layer.logits.softmax(-1), weights, 1e-6)


@pytest.mark.parametrize("settings", KINDS)
def test_the_parts_of_the_first_layer_sum_to_its_logits(settings):
    encoder = encoder_of(**settings)
    parts = split_first_logits(encoder, images())
    assert parts.shape[:2] == (4, 4)
    assert_close(
        parts.sum((0, 1)),
        queries_and_keys_by_layer(encoder, images())[0].logits,
        rtol=1e-5,
        atol=1e-5,
    )


def test_a_part_whose_cause_is_absent_is_nothing():
    encoder = encoder_of(class_token=False)
    parts = split_first_logits(encoder, torch.zeros(1, 3, 8, 12))
    assert max(parts[0].abs().max(), parts[:, 0].abs().max()) < 1e-5  # of images without any
    assert parts[1, 1].abs().max() > 0.1
    nn.init.zeros_(encoder.pos_embed)
    parts = split_first_logits(encoder, images())
    assert parts[1].abs().max() == parts[:, 1].abs().max() == 0
    assert parts[0, 0].abs().max() > 0.1
    for name, parameter in encoder.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    parts = split_first_logits(encoder, images())
    assert parts[2:].abs().max() == parts[:, 2:].abs().max() == 0


def test_parts_of_the_variance_sum_to_all_of_it_and_what_is_even_has_none():
    a, b = torch.randn(2, 2, 3, 5, 7)  # (B, h, queries, keys) each
    even = torch.randn(2, 3, 5, 1).expand(-1, -1, -1, 7)
    parts = variance_parts(torch.stack([a, b, even, -a / 2]))
    assert_close(parts.sum(1), (a / 2 + b).var(-1, unbiased=False).sum((0, 2)))
    assert parts[:, 2].abs().max() < 1e-4
    assert (parts[:, 3] < 0).all()  # it works against the whole


def test_what_tells_keys_apart_sums_to_their_variance_and_nothing_is_of_others_at_first():
    encoder = encoder_of()
    found = split_keys(encoder, images(), images(8, seed=2))
    for layer, parts in zip(queries_and_keys_by_layer(encoder, images()), found, strict=True):
        whole = layer.logits[:, :, 1:, 1:].var(-1, unbiased=False).sum((0, 2))
        assert_close(parts.sum(1), whole, rtol=1e-4, atol=1e-4)
    # keys know nothing of others before attention has mixed them
    shares = (found / found.sum(-1, keepdim=True)).abs().amax(1)  # (layers, 3)
    assert shares[0, 2] < 1e-4
    assert shares[1, 2] > 0.01
    for layer in range(3):
        nn.init.zeros_(encoder.attention(layer).proj.weight)
    found = split_keys(encoder, images(), images(8, seed=2))
    assert (found / found.sum(-1, keepdim=True)).abs().amax(1)[:, 2].max() < 1e-4


# --- logits and similarity


def test_likeness_is_told_from_what_is_held_constant():
    # 5 distances, which decide more than likeness, and not along a line
    near = torch.tensor([0.0, 40.0, -10.0, 30.0, 5.0])[torch.randint(5, (40, 40))]
    tokens = torch.randn(4, 40, 16)
    cosines = torch.nn.functional.cosine_similarity(tokens[:, :, None], tokens[:, None], dim=-1)
    logits = torch.stack([cosines + near, near.expand(4, 40, 40)], dim=1)
    assert correlation_with_cosine(logits, tokens).abs().max() < 0.15  # hidden by what varies more
    found = correlation_with_cosine(logits, tokens, near)
    close(found[:, 0], torch.ones(4), 1e-3)
    close(found[:, 1], torch.zeros(4), 0.1)


def test_symmetry_of_its_extremes_and_without_what_is_common():
    pairs = torch.randn(3, 2, 9, 9)
    assert_close(symmetry(pairs + pairs.mT), torch.ones(3, 2))
    assert_close(symmetry(pairs - pairs.mT), -torch.ones(3, 2))
    popular = pairs + 100 * torch.randn(3, 2, 1, 9) + 100 * torch.randn(3, 2, 9, 1)
    close(symmetry(popular), symmetry(pairs), 1e-3)


# --- forms on pixels


def small_encoder(**settings) -> VisionTransformer:
    return encoder_of(patch_size=(4, 4), depth=1, **settings)


def test_a_form_gives_the_logits_of_contents():
    encoder = small_encoder()
    pictures = torch.randn(2, 3, 8, 12)
    patches = patchify(pictures, (4, 4))
    block = encoder.blocks[0]
    tokens = encoder.embed(encoder.patchify(pictures))
    divisor = (tokens.var(-1, unbiased=False) + block.norm1.eps).sqrt()[:, 1:]  # (B, L)
    products = torch.einsum("bip,hpq,bjq->bhij", patches, pixel_forms(encoder), patches)
    expected = products / (divisor[:, :, None] * divisor[:, None])[:, None]
    contents = split_first_logits(encoder, pictures)[0, 0, :, :, 1:, 1:]
    assert_close(contents, expected, rtol=1e-4, atol=1e-5)


def test_all_pairs_together_are_the_form():
    form = torch.randn(7, 7).double()
    queries, keys, shares = leading_pairs(form, 7)
    assert float(shares.sum()) == pytest.approx(1)
    assert (queries.sum(1) >= 0).all()
    assert_close(queries.T * shares.sqrt() * form.norm() @ keys, form)
