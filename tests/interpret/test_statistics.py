"""Law: means over batches are those over all weights at once; memory does not grow with batches."""

import weakref

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from tiny import wide_encoder
from torch import nn

from vit.errors import AttentionError
from vit.interpret import (
    AttentionMaps,
    attention_distance,
    attention_entropy,
    attention_statistics,
    geometry_of,
    statistics,
)


@pytest.mark.parametrize(
    ("settings", "batch"), [(dict(class_token=False), 3), (dict(registers=2), 3), ({}, 7)], ids=str
)
def test_batches_add_up_to_the_whole(settings, batch):
    model, images = wide_encoder(**settings), torch.randn(7, 3, 8, 12)
    model.train()
    means = attention_statistics(model, images.split(batch))
    assert model.training
    model.eval()
    with torch.no_grad(), AttentionMaps(model) as maps:
        model(images)
    geometry = geometry_of(model)
    prefix = geometry.num_prefix_tokens
    assert (means.images, means.layers.tolist()) == (7, [0, 1, 2])
    for place, layer in enumerate((0, 1, 2)):
        weights = maps.weights[layer]
        distance = attention_distance(weights, geometry)
        close = dict(rtol=0, atol=1e-5)
        torch.testing.assert_close(means.distance[place], distance.mean(0), **close)
        torch.testing.assert_close(
            means.distance_spread[place], distance.std(0, correction=0), rtol=0, atol=1e-3
        )
        torch.testing.assert_close(
            means.entropy[place], attention_entropy(weights[:, :, prefix:]).mean(0), **close
        )
        mass = weights[:, :, prefix:, :prefix].sum(-1).mean((0, 2))
        torch.testing.assert_close(means.prefix_mass[place], mass, **close)


def test_distances_lie_on_the_grid_of_the_images_that_ran():
    model = TimmVisionTransformer(
        img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2, dynamic_img_size=True
    )
    images = torch.randn(2, 3, 8, 32)  # as many patches as of 16 x 16
    with torch.no_grad(), AttentionMaps(model.eval()) as maps:
        model(images)
    means = attention_statistics(model, [images])
    torch.testing.assert_close(
        means.distance[0], attention_distance(maps.of(0), maps.geometry).mean(0)
    )


def test_a_model_of_unknown_layout_needs_its_geometry():
    model, images = wide_encoder().eval(), torch.randn(2, 3, 8, 12)
    wrapped = nn.Sequential(model)
    with pytest.raises(AttentionError, match=r"pass geometry=Geometry"):
        attention_statistics(wrapped, [images])
    means = attention_statistics(wrapped, [images], geometry=geometry_of(model))
    assert torch.equal(means.distance, attention_statistics(model, [images]).distance)


def test_only_the_chosen_layers():
    means = attention_statistics(wide_encoder(), [torch.randn(2, 3, 8, 12)], layers=[-1, 0])
    assert means.layers.tolist() == [0, 2]
    assert means.distance.shape == (2, 4)


def test_no_weights_are_kept_while_batches_pass(monkeypatch):
    """Of a batch, at most one layer's weights are alive, as weak references show."""
    alive: list[weakref.ref] = []
    most = 0
    measure = statistics.attention_distance

    def watched(weights, geometry):
        nonlocal most
        alive.append(weakref.ref(weights))
        most = max(most, sum(reference() is not None for reference in alive))
        return measure(weights, geometry)

    monkeypatch.setattr(statistics, "attention_distance", watched)
    attention_statistics(wide_encoder(depth=6), [torch.randn(2, 3, 8, 12) for _ in range(5)])
    assert len(alive) == 30
    assert most <= 2  # this layer's, and the one before while it is replaced
