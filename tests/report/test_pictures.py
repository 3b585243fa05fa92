"""The pictures of a run show what the model makes of its images."""

import pytest
import torch
from small import close
from tiny import encoder, randomize

from vit.interpret import AttentionMaps
from vit.interpret.geometry import usual_query
from vit.report.pictures import last_attention


@torch.no_grad()
@pytest.mark.parametrize(
    ("settings", "query"),
    [
        ({}, "cls"),
        ({"class_token": False}, (2, 2)),
        ({"class_token": False, "num_classes": 3}, "mean"),
    ],
    ids=str,
)
def test_the_query_is_a_token_that_the_encoder_has_in_the_last_layer(settings, query):
    model = randomize(encoder(**settings)).eval()
    assert usual_query(model) == query
    images = torch.rand(2, 3, 16, 16)
    maps, prefix_mass = last_attention(model, images, query)
    with AttentionMaps(model, layers=[-1]) as attention:
        model(images)
    # to patches, of each head after their mean; the rest goes to the class token
    weights = attention.layer_weights(-1)[..., -16:]
    rows = {"cls": weights[:, :, 0], "mean": weights.mean(2), (2, 2): weights[:, :, 10]}
    expected = rows[query]
    close(maps[:, 1:].flatten(2), expected, 1e-6)
    close(maps[:, 0], maps[:, 1:].mean(1), 1e-6)
    close(1 - prefix_mass, maps.sum((2, 3)))
