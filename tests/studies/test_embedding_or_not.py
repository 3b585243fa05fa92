"""How strongly W_Q, W_K and W_V read what the embedding writes: planted, and found."""

import pytest
import torch
from small import close
from tiny import encoder as small_encoder

from studies.embedding_or_not import strengths
from vit.encoder import VisionTransformer

W_Q, W_K, W_V = range(3)


@pytest.fixture
def encoder() -> VisionTransformer:
    return small_encoder(embed_dim=96, depth=1, num_heads=3)


@pytest.fixture
def patches() -> torch.Tensor:
    return torch.randn(2000, 48)


def test_a_random_matrix_reads_with_strength_one_and_the_scale_of_the_norm_counts(encoder, patches):
    before = strengths(encoder, patches)
    close(before, torch.ones(3, 3, 1), 0.1)
    encoder.blocks[0].norm1.weight.data[:48] = 0
    assert not torch.allclose(strengths(encoder, patches)[:, W_V], before[:, W_V], atol=1e-2)


def test_a_matrix_reads_one_direction_as_strongly_as_each_weighting_says(encoder, patches):
    """One direction of 95 that has a share s of all: strength 95 s."""
    written = encoder.patch_embed.W_E.detach()
    written = written - written.mean(1, keepdim=True)
    left, sizes, rows = torch.linalg.svd(written, full_matrices=False)
    encoder.attention(0).W_K.data.copy_(rows[0][:, None] @ torch.randn(1, 96))
    share = float(sizes[0].square() / sizes.square().sum())
    varying = 3 * left[:, 0] * torch.tensor([[-1.0], [1.0]])  # patches that vary along it alone
    found = strengths(encoder, varying)[:, W_K, 0].tolist()
    assert found == pytest.approx([95 * share, 95 / 48, 95], rel=1e-4)
