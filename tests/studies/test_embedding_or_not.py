"""What W_Q, W_K and W_V read of what the embedding writes."""

import math

import pytest
import torch

from studies.embedding_or_not import chance_angles, principal_angles, reading
from vit.config import ViTConfig
from vit.encoder import VisionTransformer


@pytest.fixture
def encoder() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(ViTConfig((16, 16), (4, 4), embed_dim=96, depth=1, num_heads=3))


def test_a_matrix_that_reads_only_what_is_written_lies_in_it(encoder):
    written = encoder.patch_embed.proj.weight.detach().flatten(1).T  # (48, 96)
    written = written - written.mean(1, keepdim=True)
    encoder.attention(0).W_K.data.copy_((torch.randn(96, 48) @ written).T)
    (angle,) = reading(encoder, "W_K").tolist()
    assert angle == pytest.approx(0, abs=1e-4)


def test_a_matrix_that_reads_nothing_of_it_is_at_right_angles(encoder):
    written = encoder.patch_embed.proj.weight.detach().flatten(1).T
    _, _, rows = torch.linalg.svd(torch.cat([written, torch.ones(1, 96)]).double())
    encoder.attention(0).W_Q.data.copy_((torch.randn(96, 47).double() @ rows[49:]).T)
    (angle,) = reading(encoder, "W_Q").tolist()
    assert angle == pytest.approx(90, abs=1e-3)


def test_random_matrices_are_at_chance_and_the_scale_of_the_norm_counts(encoder):
    before = reading(encoder, "W_V")
    assert float(before) == pytest.approx(float(chance_angles(32, 48, 95).mean()), abs=1.5)
    encoder.blocks[0].norm1.weight.data[:48] = 0
    assert not torch.allclose(reading(encoder, "W_V"), before, atol=1e-2)


def test_known_angles():
    plane = torch.eye(4)[:2]
    turned = torch.tensor([[math.cos(0.3), 0, math.sin(0.3), 0], [0, 0, 0, 1.0]])
    expected = [math.degrees(0.3), 90]
    assert principal_angles(plane, turned).tolist() == pytest.approx(expected)
    assert principal_angles(torch.cat([plane, plane]), turned).tolist() == pytest.approx(
        expected
    )  # nothing new
