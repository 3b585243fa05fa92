"""What heads are like, where it is known."""

import math

import pytest
import torch
from torch import nn

from vit.config import ViTConfig
from vit.encoder import VisionTransformer
from vit.interpret import AttentionError
from vit.interpret.heads import HEAD_MEASURES, head_measures


def model_of() -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig((8, 8), (4, 4), embed_dim=16, depth=2, num_heads=2))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()


def test_a_head_without_queries_is_even_and_one_without_output_writes_nothing():
    model = model_of()
    model.attention(0).qkv.weight.data[8:16] = 0  # W_Q of the second head
    model.attention(0).qkv.bias.data[8:16] = 0
    model.attention(1).W_O.data[:8] = 0  # the first head's rows
    found = head_measures(model, lambda: model(torch.randn(3, 3, 8, 8)))
    assert found.shape == (4, len(HEAD_MEASURES))
    assert found[1, :3].tolist() == pytest.approx([0, 1 - 1 / 5, 1 / 5], abs=1e-5)  # of five tokens
    assert found[0, 0] > 0.01
    assert found[2, 3] == 0
    assert found[3, 3] > 0.1


def test_sharp_attention_to_oneself():
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig((8, 8), (4, 4), embed_dim=16, depth=1, num_heads=1)).eval()
    for name in ("W_Q", "W_K"):  # tokens leave the norm at one length, so that nothing is as like a token as itself
        getattr(model.attention(0), name).data.copy_(30 * torch.eye(16))
    found = head_measures(model, lambda: model(torch.randn(3, 3, 8, 8)))
    assert found[0, :3].tolist() == pytest.approx([math.log2(5), 0, 1], abs=0.01)


def test_the_mean_is_over_all_images_and_what_is_not_ours_is_refused():
    model = model_of()
    images = torch.randn(5, 3, 8, 8)
    whole = head_measures(model, lambda: model(images))
    parts = head_measures(model, lambda: [model(part) for part in images.split(2)])
    torch.testing.assert_close(whole, parts)
    other = nn.TransformerEncoderLayer(16, 2, batch_first=True)
    with pytest.raises(AttentionError, match="does not say"):
        head_measures(other, lambda: other(torch.randn(1, 4, 16)))
