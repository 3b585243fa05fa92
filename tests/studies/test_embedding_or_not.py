"""What W_Q, W_K and W_V read of what the embedding writes."""

import pytest
import torch

from vit.config import ViTConfig
from vit.encoder import VisionTransformer
from vit.studies.embedding_or_not import reading


@pytest.fixture
def encoder() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(ViTConfig((16, 16), (4, 4), embed_dim=96, depth=1, num_heads=3))


def test_a_matrix_that_reads_only_what_is_written_lies_in_it(encoder):
    written = encoder.patch_embed.proj.weight.detach().flatten(1).T  # (48, 96)
    written = written - written.mean(1, keepdim=True)
    encoder.attention(0).W_K.data.copy_((torch.randn(96, 48) @ written).T)
    angle, share = reading(encoder, "W_K")[0].tolist()
    assert share == pytest.approx(1)
    assert angle == pytest.approx(0, abs=1e-4)


def test_a_matrix_that_reads_nothing_of_it_is_at_right_angles(encoder):
    written = encoder.patch_embed.proj.weight.detach().flatten(1).T
    _, _, rows = torch.linalg.svd(torch.cat([written, torch.ones(1, 96)]).double())
    encoder.attention(0).W_Q.data.copy_((torch.randn(96, 47).double() @ rows[49:]).T)
    angle, share = reading(encoder, "W_Q")[0].tolist()
    assert share == pytest.approx(0, abs=1e-9)
    assert angle == pytest.approx(90, abs=1e-3)


def test_random_matrices_are_at_chance_and_the_scale_of_the_norm_counts(encoder):
    before = reading(encoder, "W_V")[0]
    assert float(before[1]) == pytest.approx(48 / 95, abs=0.03)
    encoder.blocks[0].norm1.weight.data[:48] = 0
    assert not torch.allclose(reading(encoder, "W_V")[0], before, atol=1e-2)
