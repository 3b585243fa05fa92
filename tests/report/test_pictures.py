"""The pictures of a run show what the model makes of its images."""

import pytest
import torch
from small import close
from tiny import captured, encoder, randomize

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
    heads = captured(model, images).to_grid(-1, query)
    for part, expected in zip(last_attention(model, images, query), heads, strict=True):
        close(part[:, 1:], expected, 1e-6)
        close(part[:, 0], expected.mean(1), 1e-6)
