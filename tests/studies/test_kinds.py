"""Kinds of patches: what Scenes say of theirs, and what clusters find."""

import math
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from small import close
from tiny import seeded, wide_encoder
from torch.testing import assert_close

from studies import kinds
from studies.analysis.logits import queries_and_keys_by_layer
from studies.kinds import (
    ALONE,
    COMPANY,
    TOGETHER,
    WHOLE,
    group_cosines,
    group_means,
    group_scores,
    patch_labels,
    queries_and_keys,
    residual_stream,
    same_company,
    together_in_images,
    whitening,
)
from vit.encoder import VisionTransformer
from vit.masking import mask_from_noise
from vit.scenes import PART_NAMES, scene_indices


def test_what_occurs_together_is_that_of_the_drawing(parts):
    number = {name: place for place, name in enumerate(parts.names)}
    together, company = parts.together[TOGETHER], parts.together[COMPANY]
    assert torch.equal(together, together.T)
    assert together[number["wheel"], number["road"]] > 1
    assert together[number["ball"], number["road"]] < -1
    assert together[number["buoy"], number["water"]] > 1
    assert (
        company[number["wheel"], number["body"]] > 0.9 > 0 > company[number["wheel"], number["leg"]]
    )


def test_patches_alone_are_cut_out_along_their_part(parts, trained):
    (whole, alone), (cut, hidden) = parts.views[WHOLE], parts.views[ALONE]
    assert (alone, hidden) == (False, True)
    drawn = kinds.draw_scenes(scene_indices(50, "test"), 0)[2]
    wheel = parts.names.index("wheel")
    image, patch = (parts.labels[:50] == wheel).nonzero()[0].tolist()
    row, column = 4 * (patch // 8), 4 * (patch % 8)
    inside = (..., slice(row, row + 4), slice(column, column + 4))
    is_wheel = drawn[image][inside] == PART_NAMES.index("wheel")
    assert is_wheel.float().mean() >= kinds.CLEAR
    assert torch.equal(cut[image][inside][:, is_wheel], whole[image][inside][:, is_wheel])
    # the rest is 0 to the model, but for rounding to a whole byte
    shown = trained.prepare(cut[[image]])[0][inside]
    assert shown[:, ~is_wheel].abs().max() < 0.02


def test_whitened_patches_vary_alike_in_all_directions():
    """Brightness, most of the variance, is one of them."""
    generator = seeded(0)
    patches = torch.randn(2000, 6, generator=generator) + 5 * torch.randn(
        2000, 1, generator=generator
    )
    white = whitening(patches, share=1.0)
    close(torch.cov((patches @ white).T), torch.eye(6), 1e-3)
    # the first component alone holds most
    (brightness,) = whitening(patches, share=0.9).T
    assert F.normalize(brightness, dim=0).abs().min() > 0.9 / 6**0.5


# --- what occurs together, on label maps small enough to count by hand


def test_the_label_of_most_pixels():
    labels = torch.tensor([[[0, 0, 1, 1], [0, 2, 1, 1]]])  # patches of 2 x 2
    assert patch_labels(labels, (1, 2)).tolist() == [[0, 1]]
    assert patch_labels(labels, (1, 2), 0.8).tolist() == [[-1, 1]]
    assert patch_labels(labels.to(torch.uint8), (2, 1)).tolist() == [[0, 1]]  # ties: the lowest


def test_labels_that_share_images():
    # 0 and 1 always together in half of the images, 2 and 3 in the other half; 4 is in none
    labels = torch.tensor([[0, 1, -1], [2, 3, 3]]).repeat(50, 1)
    found = together_in_images(labels, 5)
    assert torch.equal(found, found.T)
    assert found[0, 1].item() == pytest.approx(math.log2(51 / 26))
    assert found[0, 2].item() == pytest.approx(math.log2(1 / 26))
    assert found[4, 0].item() == 0


def test_company_leaves_the_two_themselves_out():
    together = torch.randn(6, 6, generator=seeded(0))
    together += together.T.clone()
    company = same_company(together)
    for one, other in permutations(range(6), 2):
        others = [kind for kind in range(6) if kind not in (one, other)]
        expected = torch.corrcoef(together[[one, other]][:, others])[0, 1]
        assert_close(company[one, other], expected)


# --- tokens


@pytest.fixture(params=[dict(class_token=False), dict(registers=2)], ids=str)
def model(request) -> VisionTransformer:
    return wide_encoder(**request.param)


def test_it_begins_with_the_embedding_and_ends_with_what_the_model_gives(model):
    images, prefix = torch.randn(3, 3, 8, 12), model.num_prefix_tokens
    model.train()
    found = residual_stream(model, images)
    assert model.training
    assert found.shape == (4, 3, 12, 16)
    with torch.no_grad():
        assert_close(found[0], model.embed(model.patchify(images))[:, prefix:])
        assert_close(model.norm(found[-1]), model(images)[:, prefix:], rtol=1e-4, atol=1e-5)


def test_a_patch_alone_is_one_with_all_others_hidden(model):
    images = torch.randn(2, 3, 8, 12)
    found = residual_stream(model, images, alone=True)
    assert found.shape == (4, 2, 12, 16)
    for patch in (0, 5, 11):
        mask = mask_from_noise((torch.arange(12) != patch).float().expand(2, -1), 1)
        with torch.no_grad():
            expected = model(images, mask)[:, model.num_prefix_tokens]
            assert_close(model.norm(found[-1, :, patch]), expected, rtol=1e-4, atol=1e-5)


def test_group_means_by_their_definition():
    tokens = torch.randn(2, 8, 6, 4)  # two stages of eight images of six patches
    labels = torch.randint(-1, 3, (8, 6), generator=seeded(1))
    found = group_means(iter(tokens.split(3, dim=1)), labels, 3)
    assert found.shape == (2, 2, 3, 4)
    beyond = tokens - tokens.mean(1, keepdim=True)
    for half in (0, 1):
        for group in range(3):
            expected = beyond[:, half::2][:, labels[half::2] == group].mean(1)
            assert_close(found[:, half, group].float(), expected, rtol=1e-4, atol=1e-5)


def test_cosines_are_across_halves_and_about_the_mean_of_all():
    one = torch.tensor([[1.0, 0], [0, 1], [-1, -1]])
    found = group_cosines(torch.stack([one, one])[None] + 5)[0]  # 5 is common to all, and goes away
    assert_close(found, F.normalize(one, dim=1) @ F.normalize(one, dim=1).T)


# --- what kinds ask of each other


def test_queries_and_keys_are_those_of_attention(trained):
    encoder, inputs = trained.model.encoder, trained.inputs(4)
    found = queries_and_keys(encoder, residual_stream(encoder, inputs))  # (2, layers, B, L, D)
    for layer, made in enumerate(queries_and_keys_by_layer(encoder, inputs)):
        for side, expected in zip(found[:, layer], (made.queries, made.keys), strict=True):
            of_patches = expected[:, :, encoder.num_prefix_tokens :]
            assert_close(side, of_patches.transpose(1, 2).flatten(2))
    lone = queries_and_keys(encoder, residual_stream(encoder, inputs, alone=True))
    # before the first mixing, neighbours make no difference
    assert_close(lone[:, 0], found[:, 0])
    assert (lone[:, -1] - found[:, -1]).abs().max() > 0.1


def test_group_scores_are_of_different_halves_and_the_mean_of_heads():
    means = torch.randn(2, 1, 2, 3, 8, generator=seeded(0))  # two heads of 4
    (even_q, odd_q), (even_k, odd_k) = means[:, 0]
    by_hand = torch.zeros(3, 3)
    for head in (slice(4), slice(4, 8)):
        for queries, keys in ((even_q, odd_k), (odd_q, even_k)):
            by_hand += queries[:, head] @ keys[:, head].T / 4**0.5 / 2 / 2
    assert_close(group_scores(means, heads=2)[0], by_hand)
