"""The pictures of a run show what the model makes of its images."""

import pytest
import torch
from small_runs import make_run

from vit.checkpoints import load_model
from vit.interpret import AttentionMaps
from vit.interpret.geometry import usual_query
from vit.report.pictures import last_attention


def test_the_class_token_attends_to_what_the_last_layer_says(pretrained):
    encoder = load_model(pretrained, part="encoder")
    images = torch.rand(2, 3, 16, 16)
    found, prefix_mass = last_attention(encoder, images, "cls")
    with torch.no_grad(), AttentionMaps(encoder, layers=[-1]) as maps:
        encoder(images)
    # what the class token gives to patches
    assert torch.equal(found.flatten(2), maps.of(-1)[:, :, 0, 1:])
    assert torch.allclose(1 - prefix_mass, found.sum((2, 3)), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "query"),
    [
        ({}, "cls"),
        ({"class_token": False}, (2, 2)),
        ({"task": "classify", "class_token": False}, "mean"),
    ],
)
def test_the_query_is_a_token_that_the_encoder_has(tmp_path, changes, query):
    encoder = load_model(make_run(tmp_path / "run", **changes, snapshots=0), part="encoder")
    assert usual_query(encoder) == query
    maps, prefix_mass = last_attention(encoder, torch.rand(2, 3, 16, 16), query)
    assert (maps.shape, prefix_mass.shape) == ((2, 2, 4, 4), (2, 2))
