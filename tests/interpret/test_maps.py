"""Attention maps: the weights are those that the layer mixes by, and the model is left as it was."""

import pytest
import torch
from torch import Tensor, nn

from vit.encoder import VisionTransformer
from vit.interpret.maps import layer_attention, query_map

CASES = {
    "class token": dict(),
    "registers": dict(registers=3),
    "no prefix": dict(class_token=False),
    "identity": dict(qkv="identity"),
    "no bias": dict(qkv_bias=False),
    "one head": dict(num_heads=1),
    "drop path": dict(drop_path=0.9),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def small_encoder(**settings) -> VisionTransformer:
    encoder = VisionTransformer(
        **dict(image_size=(8, 12), patch_size=(4, 2), embed_dim=16, depth=3, num_heads=4) | settings
    )
    for name, parameter in encoder.named_parameters():
        if "attn" in name:
            nn.init.normal_(parameter, std=0.5)  # far from even attention
    return encoder


def random_inputs() -> Tensor:
    return torch.randn(2, 3, 8, 12)


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1, -1])
@pytest.mark.parametrize("case", CASES)
def test_weights_reproduce_the_layers_own_output(case, layer):
    encoder, inputs = small_encoder(**CASES[case]), random_inputs()
    weights = layer_attention(encoder, inputs, layer)

    attention, seen = encoder.eval().blocks[layer].attn, {}
    attention.register_forward_hook(lambda _, arguments, output: seen.update(x=arguments[0], output=output))
    encoder(inputs)
    v = seen["x"] if attention.qkv is None else attention.qkv(seen["x"])[..., 32:]
    d = 16 // attention.num_heads
    heads = [weights[:, head] @ v[..., head * d : (head + 1) * d] for head in range(attention.num_heads)]
    torch.testing.assert_close(attention.proj(torch.cat(heads, dim=-1)), seen["output"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_every_row_is_a_share_that_sums_to_one(case):
    encoder = small_encoder(**CASES[case])
    weights, tokens = layer_attention(encoder, random_inputs()), encoder.num_prefix_tokens + 12
    assert weights.shape == (2, encoder.blocks[0].attn.num_heads, tokens, tokens)
    assert weights.dtype == torch.float32
    assert (weights >= 0).all()
    assert weights.std() > 0.01
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=1e-5)


def hooks_of(encoder: VisionTransformer) -> list:
    return [hook for module in encoder.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks)
            for hook in hooks.values()]  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
def test_encoder_is_left_as_it_was(training):
    encoder = small_encoder().train(training)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    weights = layer_attention(encoder, random_inputs())
    assert not weights.requires_grad
    assert hooks_of(encoder) == []
    assert all(module.training == training for module in encoder.modules())
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert all(parameter.grad is None for parameter in encoder.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_encoder_is_left_as_it_was_when_forward_raises(training, monkeypatch):
    encoder = small_encoder().train(training)

    def fail(_: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(encoder.blocks[-1].mlp, "forward", fail)  # after the hook has seen its layer
    with pytest.raises(RuntimeError, match="out of memory"):
        layer_attention(encoder, random_inputs())
    assert hooks_of(encoder) == []
    assert all(module.training == training for module in encoder.modules())


@pytest.mark.parametrize("grid", [(2, 6), (3, 3), (1, 4)], ids=str)
@pytest.mark.parametrize("prefix", [0, 1, 4])
def test_query_map_lays_a_row_out_on_the_image(prefix, grid):
    rows, columns = grid
    tokens = prefix + rows * columns
    weights = torch.rand(2, 3, tokens, tokens)
    for query in range(tokens):
        maps, on_prefix = query_map(weights, query, prefix, grid)
        assert maps.shape == (2, 3, rows, columns)
        for row in range(rows):
            for column in range(columns):
                assert torch.equal(maps[:, :, row, column], weights[:, :, query, prefix + row * columns + column])
        torch.testing.assert_close(maps.sum((-2, -1)) + on_prefix, weights[:, :, query].sum(-1))
