"""The pictures of a run show what the model makes of its images."""

import pytest
import torch
from small import close
from tiny import NORMALIZE, captured, encoder, noise, randomize

from vit.interpret.geometry import usual_query
from vit.look.panels import head_panels
from vit.look.subject import Collection, ModelWithImages
from vit.weights import Origin


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
    model.origin = Origin(
        normalize=NORMALIZE,
        image_size=(16, 16),
        channels=3,
        source="",
        class_names=(),
        data="",
        data_content_hash="",
    )
    collection = Collection(noise(2), ["a", "b"], "Noise", ["", ""], [-1, -1])
    subject = ModelWithImages(model, collection, query=query)
    heads = captured(model, subject.inputs).to_grid(-1, query)
    for part, expected in zip(head_panels(subject, -1, "all"), heads, strict=False):
        close(part[:, 1:], expected, 1e-6)
        close(part[:, 0], expected.mean(1), 1e-6)
