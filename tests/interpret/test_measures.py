"""Law: each measure of attention is what its paper defines, one image and one layer at a time."""

import math
import weakref

import pytest
import torch
from scipy.stats import entropy
from small import close
from tiny import WIDE, autoencoder, captured, randomize, seeded, wide_encoder
from torch import Tensor, nn
from torch.testing import assert_close

from vit.encoder import VisionTransformer
from vit.errors import AttentionError
from vit.interpret import (
    Geometry,
    attention_distance,
    attention_entropy,
    attention_rollout,
    attention_statistics,
    geometry_of,
    head_ablation,
    measures,
    top_mass_mask,
)
from vit.mae import masked_patch_loss
from vit.masking import make_mask

GRID = Geometry((2, 6), (4, 2), 1, True)


def small_model() -> VisionTransformer:
    return wide_encoder(num_classes=3, global_pool="token")


def random_weights(batch: int = 2, heads: int = 3, tokens: int = 13) -> Tensor:
    return torch.randn(batch, heads, tokens, tokens).mul(2).softmax(-1)


# --- Rollout -------------------------------------------------------------------------------------


def test_rollout_by_its_definition():
    layers = [random_weights() for _ in range(3)]
    rollout = attention_rollout(layers)
    for image in range(2):
        expected = torch.eye(13)
        for weights in layers:
            fused = weights[image].mean(0)
            fused = fused / fused.sum(1, keepdim=True)
            expected = (0.5 * fused + 0.5 * torch.eye(13)) @ expected
        close(rollout[image], expected, 1e-6)


def test_discarding_keeps_the_prefix_columns_and_drops_the_smallest():
    weights = random_weights(1, 1)
    rollout = attention_rollout([weights], discard=0.5, num_prefix_tokens=1)
    mixed = rollout[0] - 0.5 * torch.eye(13)
    remaining = mixed[:, 1:] > 1e-6
    assert remaining.sum() == 13 * 12 - 13 * 12 // 2
    smallest = weights[0, 0, :, 1:][remaining].min()
    assert (weights[0, 0, :, 1:][~remaining] <= smallest).all()
    assert (mixed[:, 0] > 0).all()
    assert torch.equal(attention_rollout([weights], discard=0.0), attention_rollout([weights]))
    with pytest.raises(AttentionError, match="num_prefix_tokens="):
        attention_rollout([weights], discard=0.5)
    # Also of a query of which nothing remains
    rest = attention_rollout([weights], discard=0.99, num_prefix_tokens=0)
    assert_close(rest.sum(-1), torch.ones(1, 13))


@torch.no_grad()
@pytest.mark.parametrize("settings", [dict(registers=4), dict(class_token=False)])
def test_maps_say_which_columns_are_kept(settings):
    model = wide_encoder(**settings)
    maps = captured(model, torch.randn(2, 3, 8, 12))
    weights = list(maps.weights.values())
    expected = attention_rollout(weights, 0.9, num_prefix_tokens=model.num_prefix_tokens)
    assert torch.equal(attention_rollout(maps, discard=0.9), expected)
    assert not torch.equal(attention_rollout(weights, 0.9, num_prefix_tokens=1), expected)


def test_a_layer_whose_queries_are_not_its_keys_has_no_measure():
    """Such as a pooling layer: broadcast, its one row would count for every token."""
    pooling = random_weights()[:, :, :1]
    for measure in (
        lambda w: attention_distance(w, GRID),
        lambda w: attention_rollout([random_weights(), w]),
    ):
        with pytest.raises(AttentionError, match="a layer has 1 queries and 13 keys"):
            measure(pooling)


# --- Distance, entropy, share --------------------------------------------------------------------


def test_distance_in_pixels_of_a_grid_that_is_not_square():
    weights = torch.zeros(1, 2, 13, 13)
    weights[0, 0] = torch.eye(13)  # each token attends to itself
    weights[0, 1, 1:, 1 + 5] = 1.0  # each patch attends to the last patch of the first row
    distance = attention_distance(weights, GRID)
    total = 0.0
    for row in range(2):
        for column in range(6):
            total += math.hypot(4 * (row - 0), 2 * (column - 5))
    assert_close(distance, torch.tensor([[0.0, total / 12]]))

    # Attention on the class token has no place, and does not count
    half = weights * 0.5
    half[..., 0] += 0.5
    assert_close(attention_distance(half, GRID), distance)


def test_entropy_in_bits_is_scipys():
    weights = random_weights()
    weights[0, 0] = torch.eye(13)
    expected = entropy(weights, base=2, axis=-1)
    for prefix in (0, 2):
        found = attention_entropy(weights, num_prefix_tokens=prefix)
        assert_close(found, torch.tensor(expected[..., prefix:].mean(-1)))


@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_the_fewest_patches_that_hold_a_share(share):
    maps = torch.rand(2, 3, 2, 6)
    maps[0, 0, 0, 0] = float("nan")
    mask = top_mass_mask(maps, share)
    values = maps.double().nan_to_num().view(6, 12)
    for row, chosen in zip(values, mask.view(6, 12), strict=True):
        held = row.sort(descending=True).values.cumsum(0)
        fewest = 1 + int((held < share * held[-1]).sum())
        assert torch.equal(row.topk(fewest).indices.sort().values, chosen.nonzero()[:, 0])
    assert not mask[0, 0, 0, 0]


# --- Ablation ------------------------------------------------------------------------------------


def test_ablation_is_the_loss_with_the_heads_values_at_zero():
    model = small_model()
    images, labels = torch.randn(4, 3, 8, 12), torch.tensor([0, 1, 2, 0])

    def loss() -> Tensor:
        return nn.functional.cross_entropy(model.forward_head(model(images)), labels)

    increase = head_ablation(model, loss)
    assert increase.shape == (3, 4)
    with torch.no_grad():
        loss_with_all = loss()
        for layer, head in ((0, 0), (1, 3), (2, 2)):
            # The same model, whose W_O reads nothing of this head
            silenced = small_model()
            silenced.load_state_dict(model.state_dict())
            attention = silenced.blocks[layer].attn
            attention.proj.weight[:, head * 4 : head * 4 + 4] = 0
            logits = silenced.forward_head(silenced(images))
            expected = nn.functional.cross_entropy(logits, labels) - loss_with_all
            assert_close(increase[layer, head], expected, rtol=1e-4, atol=1e-5)


def test_ablation_of_a_masked_autoencoder_reaches_both_parts():
    model = randomize(autoencoder(**WIDE), 0.3).train()
    images, mask = torch.randn(2, 3, 8, 12), make_mask("random", 2, (2, 6), 0.5, seeded())

    def loss() -> Tensor:
        return masked_patch_loss(model(images, mask), model.targets(images), mask.mask)

    increase = head_ablation(model, loss)
    assert increase.shape == (4, 4)
    assert increase[:3].isfinite().all()
    assert increase[3].isnan().tolist() == [False, False, True, True]  # the decoder has two heads
    assert model.training


def test_half_precision_does_not_overflow():
    """On images of 224 pixels the squared distances alone are beyond float16."""
    geometry = Geometry((14, 14), (16, 16), 1, True)
    weights = random_weights(1, 2, 197)
    for measure in (
        lambda w: attention_distance(w, geometry),
        attention_entropy,
        lambda w: attention_rollout([w, w]),
    ):
        half = measure(weights.half())
        assert torch.isfinite(half).all()
        assert_close(half, measure(weights), rtol=0.02, atol=1e-3)


# --- Means over a data set -----------------------------------------------------------------------


def test_batches_add_up_to_the_whole():
    model, images = wide_encoder(registers=2), torch.randn(7, 3, 8, 12)
    # a module of one's own does not say where its tokens lie
    own = nn.Sequential(model, nn.Identity()).train()
    layout = geometry_of(model)
    means = attention_statistics(own, images.split(3), layers=[-1, 0], geometry=layout)
    assert model.training
    assert (means.images, means.layers.tolist()) == (7, [0, 2])
    maps = captured(model.eval(), images)
    patches = maps.geometry.patches
    for place, layer in enumerate((0, 2)):
        weights = maps.weights[layer]
        distance = attention_distance(weights, maps.geometry)
        mass = weights[:, :, patches, : patches.start].sum(-1).mean((0, 2))
        for found, expected, off in (
            (means.distance, distance.mean(0), 1e-5),
            (means.distance_spread, distance.std(0, correction=0), 1e-3),
            (means.entropy, attention_entropy(weights[:, :, patches]).mean(0), 1e-5),
            (means.prefix_mass, mass, 1e-5),
        ):
            close(found[place], expected, off)


def test_no_weights_are_kept_while_batches_pass(monkeypatch):
    """Of a batch, at most one layer's weights are alive, as weak references show."""
    alive: list[weakref.ref] = []
    most = 0
    measure = measures.attention_distance

    def watched(weights, geometry):
        nonlocal most
        alive.append(weakref.ref(weights))
        most = max(most, sum(reference() is not None for reference in alive))
        return measure(weights, geometry)

    monkeypatch.setattr(measures, "attention_distance", watched)
    attention_statistics(wide_encoder(depth=6), [torch.randn(2, 3, 8, 12) for _ in range(5)])
    assert len(alive) == 30
    assert most <= 2  # this layer's, and the one before while it is replaced
