"""Law: what a colour or a score of a token is does not depend on scale, rotation or order."""

import pytest
import torch
from small import close
from torch.testing import assert_close

from vit.errors import TrainingError
from vit.look.features import artifact_scores, pca_colours


def rotation(width: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(width, width, dtype=torch.double)).Q


def test_colours_are_the_first_three_components():
    """Features along three directions, of which each varies less than the one before."""
    places = torch.rand(4, 30, 3, dtype=torch.double) - 0.5
    features = places * torch.tensor([9.0, 3.0, 1.0]) @ rotation(8)[:3] + 5.0
    colours = pca_colours(features)
    assert (colours.dtype, colours.shape) == (torch.float32, (4, 30, 3))
    assert (colours.min(), colours.max()) == (0, 1)
    both = torch.cat([colours.double(), places], dim=-1).flatten(0, 1)  # (120, 6)
    assert both.T.corrcoef()[:3, 3:].diagonal().abs().min() > 0.95


def test_colours_depend_on_neither_scale_nor_rotation_nor_order():
    features = torch.randn(2, 20, 6, dtype=torch.double)
    colours = pca_colours(features)
    assert_close(pca_colours(features @ rotation(6) * 7 + 3), colours)
    assert_close(pca_colours(features.flip(0, 1)), colours.flip(0, 1))
    close(pca_colours(features.float()), colours, 1e-4)


def test_components_that_do_not_exist_are_grey():
    line = torch.linspace(0, 1, 12).view(1, 12, 1) * torch.ones(5)
    colours = pca_colours(line)
    assert torch.equal(colours[..., 1:], torch.full((1, 12, 2), 0.5))
    assert torch.equal(pca_colours(torch.ones(1, 1, 4)), torch.full((1, 1, 3), 0.5))
    with pytest.raises(TrainingError, match="features are"):
        pca_colours(torch.ones(1, 2, 3) * torch.nan)


def test_long_tokens_have_high_scores_and_no_others():
    """Darcet's case: a few tokens are some ten times as long, and the class token does not count."""
    tokens = torch.randn(4, 201, 64)
    artifacts = [(0, 17), (0, 90), (3, 5)]
    for image, patch in artifacts:
        tokens[image, 1 + patch] *= 10
    tokens[:, 0] *= 100
    scores = artifact_scores(tokens, num_prefix_tokens=1)
    assert scores.shape == (4, 200)
    assert [tuple(place) for place in (scores > 10).nonzero().tolist()] == artifacts
    assert_close(artifact_scores(tokens[:, 1:] * 3, 0), scores, rtol=1e-4, atol=1e-4)


def test_tokens_of_one_length_have_no_artifacts():
    even = torch.nn.functional.normalize(torch.randn(2, 16, 8), dim=-1)
    assert torch.equal(artifact_scores(even, 0), torch.zeros(2, 16))
    even[1, 3] *= 2
    scores = artifact_scores(even, 0)
    assert scores[1, 3] == float("inf")
    assert scores.isfinite().sum() == 31
