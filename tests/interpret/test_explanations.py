"""Law: what a result depends on is what the papers define, one image and one layer at a time."""

import pytest
import timm
import torch
from small import close
from tiny import captured, randomize, wide_encoder
from torch import Tensor, nn
from torch.testing import assert_close

from vit.attention import attention_weights
from vit.encoder import VisionTransformer
from vit.errors import AttentionError
from vit.interpret import (
    AttentionMaps,
    attention_rollout,
    faithfulness,
    legrad,
    relevance,
)


def small_model(**settings) -> VisionTransformer:
    return wide_encoder(**dict(num_classes=3, global_pool="token") | settings)


def run_head(model: VisionTransformer):
    return lambda images: model.forward_head(model(images))


# --- Relevance -----------------------------------------------------------------------------------


def test_relevance_by_its_definition_image_by_image():
    """Chefer's, one image and one layer at a time."""
    model, images = small_model(), torch.randn(3, 3, 8, 12)

    logits_of = run_head(model)
    result = relevance(model, images, 1, run=logits_of)
    for number, image in enumerate(images):
        with AttentionMaps(model, gradients=True) as maps:
            logits = logits_of(image[None].requires_grad_())
        expected = torch.eye(13)
        for weights in maps.weights.values():
            gradient = torch.autograd.grad(logits[0, 1], weights, retain_graph=True)[0]
            expected = expected + (gradient * weights)[0].clamp(min=0).mean(0).detach() @ expected
        assert_close(result[number], expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(result, relevance(model, images, 2, run=logits_of))

    # Frozen weights change nothing
    model.requires_grad_(False)
    frozen = relevance(model, images, 1, run=logits_of)
    close(frozen, result, 1e-6)


def test_a_score_is_one_number_per_image():
    """Index 1 of tokens would be the second token, not a class."""
    model, images = small_model(), torch.randn(2, 3, 8, 12)
    for score in (1, lambda tokens: tokens[:, 0]):
        with pytest.raises(AttentionError, match="one number per image"):
            relevance(model, images, score)


def test_measures_are_the_same_under_any_mode_of_torch():
    model, images = small_model(), torch.randn(2, 3, 8, 12)
    expected = relevance(model, images, 1, run_head(model))
    for mode in (torch.no_grad, torch.inference_mode, lambda: torch.device("cpu")):
        with mode():
            assert torch.equal(relevance(model, images, 1, run_head(model)), expected)

    # Autocast computes the model in half precision, and what follows in full
    weights = [torch.randn(2, 3, 13, 13).softmax(-1)] * 2
    rollout = attention_rollout(weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = relevance(model, images, 1, run_head(model))
        assert torch.equal(attention_rollout(weights), rollout)
    assert rough.dtype is torch.float32
    assert (rough - expected).abs().max() < 0.05 * expected.abs().max()


# --- LeGrad --------------------------------------------------------------------------------------


def legrad_by_hand(model: VisionTransformer, images: Tensor, number: int) -> Tensor:
    """The paper's formula: block by block, by attention weights that are leaves of the graph."""
    with torch.no_grad():
        tokens = model.embed(model.patchify(images))
    maps = []
    for block in model.blocks:
        q, k, v = block.attn.project(block.norm1(tokens))
        weights = attention_weights(q, k).detach().requires_grad_()
        mixed = (weights @ v.detach()).transpose(1, 2).flatten(2)
        tokens = tokens + block.ls1(block.attn.proj(mixed))
        tokens = tokens + block.ls2(block.mlp(block.norm2(tokens)))
        logits = model.forward_head(model.norm(tokens))
        gradient = torch.autograd.grad(logits[:, number].sum(), weights)[0]
        maps.append(gradient.clamp(min=0).sum((1, 2)) / (gradient.shape[1] * gradient.shape[2]))
        tokens = tokens.detach()
    return sum(maps) / len(maps)


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_legrad_by_its_formula(pool):
    model, images = small_model(global_pool=pool), torch.randn(3, 3, 8, 12)
    expected = legrad_by_hand(model, images, 1)
    result = legrad(model, images, 1)
    assert result.shape == (3, 13)
    assert_close(result, expected, rtol=1e-4, atol=1e-7)
    assert not result.requires_grad
    assert not any(block._forward_hooks for block in model.blocks)

    # Images do not mix, modes of torch change nothing
    assert_close(legrad(model, images[1:2], 1), result[1:2], rtol=1e-4, atol=1e-7)
    model.requires_grad_(False)
    with torch.inference_mode():
        assert torch.equal(legrad(model, images, 1), result)


# --- Layers side by side -------------------------------------------------------------------------


def side_by_side(swapped: bool) -> nn.Module:
    """A model of two blocks whose branches are exchanged, which leaves the function as it is."""
    torch.manual_seed(0)
    block = timm.models.vision_transformer.ParallelThingsBlock
    settings = dict(img_size=(8, 12), patch_size=(4, 2), embed_dim=16, depth=2, num_heads=4)
    model = timm.models.VisionTransformer(**settings, num_classes=3, block_fn=block)
    randomize(model, 0.4)
    if swapped:
        for block in model.blocks:
            block.attns = nn.ModuleList(reversed(block.attns))
    return model.eval()


def test_the_order_of_layers_side_by_side_changes_nothing():
    images, results = torch.randn(2, 3, 8, 12), []
    for swapped in (False, True):
        model = side_by_side(swapped)
        maps = captured(model, images)
        assert maps.steps == [[0, 1], [2, 3]]
        rollout = attention_rollout(maps, discard=0.3)
        results.append(
            (model(images), rollout, relevance(model, images, 1), legrad(model, images, 1))
        )
    for one, other in zip(*results, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-6)

    # Relevance by the sum of both layers, LeGrad by the tokens of the whole block
    with AttentionMaps(model, gradients=True) as maps:
        tokens = [model.pos_drop(model._pos_embed(model.patch_embed(images)))]
        for block in model.blocks:
            tokens.append(block(tokens[-1]))
    heads = [model.forward_head(model.norm(x))[:, 1].sum() for x in tokens[1:]]
    expected, found = torch.eye(13).expand(2, -1, -1), []
    for layer, weights in maps.weights.items():
        (gradient,) = torch.autograd.grad(heads[layer // 2], weights, retain_graph=True)
        found.append(gradient.clamp(min=0).mean((1, 2)))
        if layer % 2:
            pair = [maps.weights[layer - 1], weights]
            gradients = torch.autograd.grad(heads[-1], pair, retain_graph=True)
            parts = [(g * w).clamp(min=0).mean(1) for g, w in zip(gradients, pair, strict=True)]
            expected = expected + sum(parts).detach() @ expected
    assert_close(results[1][2], expected, rtol=1e-4, atol=1e-6)
    assert_close(results[1][3], torch.stack(found).mean(0), rtol=1e-4, atol=1e-7)


# --- Faithfulness: where the score is a sum over patches, the curves are known -------------------

# What each patch of a 2 x 3 grid adds to the score
VALUES = torch.tensor([[0.30, 0.05, 0.10], [0.25, 0.20, 0.10]])


def sum_of_patches(images: Tensor) -> Tensor:
    patches = images.unflatten(2, (2, 4)).unflatten(4, (3, 2)).mean((1, 3, 5))  # (B, 2, 3)
    return (patches * VALUES).sum((1, 2))


def test_curves_and_areas_of_a_sum():
    images = torch.ones(2, 3, 8, 6)
    maps = torch.stack([VALUES, -VALUES])
    curves = faithfulness(lambda x: x, images, maps, sum_of_patches)
    assert_close(curves.shares, torch.arange(7) / 6)
    best = torch.tensor([0, 0.30, 0.55, 0.75, 0.85, 0.95, 1.0])
    worst = torch.tensor([0, 0.05, 0.15, 0.25, 0.45, 0.70, 1.0])
    assert_close(curves.insertion, torch.stack([best, worst]))
    assert_close(curves.deletion, 1 - torch.stack([best, worst]))
    area = (best.sum() - 0.5) / 6
    assert_close(curves.insertion_area[0], area)
    assert_close(curves.deletion_area[0], 1 - area)


def test_steps_baselines_and_the_probability_of_a_class():
    images = torch.randn(1, 3, 8, 6)

    def logits(images: Tensor) -> Tensor:
        scores = sum_of_patches(images)
        return torch.stack([scores, -scores], dim=1)

    curves = faithfulness(logits, images, VALUES[None], 0, steps=3, baseline=2 * images)
    assert curves.shares.tolist() == pytest.approx([0, 2 / 6, 4 / 6, 1])
    whole = logits(images).softmax(1)[:, :1]
    replaced = logits(2 * images).softmax(1)[:, :1]
    assert_close(curves.deletion[:, [0, -1]], torch.cat([whole, replaced], 1))
    assert_close(curves.insertion[:, [-1, 0]], torch.cat([whole, replaced], 1))


def test_a_masked_map_has_no_curve():
    images, maps = torch.ones(2, 3, 8, 6), torch.full((2, 2, 3), torch.nan)
    with pytest.raises(AttentionError, match="nan in places"):
        faithfulness(lambda x: x, images, maps, sum_of_patches)
