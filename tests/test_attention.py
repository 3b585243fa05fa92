"""Attention: torch's own and a layer by hand are the oracles; laws of heads and of token order."""

import pytest
import torch
import torch.nn.functional as F
from small import close
from torch import Tensor, nn
from torch.testing import assert_close

import vit.attention
from vit.attention import (
    MultiHeadSelfAttention,
    attend,
    attention_weights,
    set_kernel,
)
from vit.config import ViTConfig

DIM, HEADS, TOKENS = 12, 3, 7
HEAD = DIM // HEADS


def random_attention(**settings) -> MultiHeadSelfAttention:
    layer = MultiHeadSelfAttention(ViTConfig(embed_dim=DIM, num_heads=HEADS, **settings))
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.requires_grad_(False)


def random_tokens() -> Tensor:
    return torch.randn(2, TOKENS, DIM)


def random_qkv(queries: int = 5, keys: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, 3, queries, 4), torch.randn(2, 3, keys, 4), torch.randn(2, 3, keys, 4)


@pytest.mark.parametrize(
    ("queries", "keys", "size"), [(5, 9, 1), (9, 5, 1e4), (1, 1, 1), (4, 1, 1)]
)
def test_formula_is_torchs_scaled_dot_product_attention(
    queries, keys, size
):  # large scores do not overflow
    q, k, v = (size * x.double() for x in random_qkv(queries, keys))
    expected = F.scaled_dot_product_attention(q, k, v)
    close(attention_weights(q, k) @ v, expected, 1e-12)


@pytest.fixture
def fused_calls(monkeypatch) -> list:
    """A list that grows with every call of torch's fused kernel."""
    calls, fused = [], F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *qkv: calls.append(1) or fused(*qkv)
    )
    return calls


def test_both_kernels_mix_alike(fused_calls, monkeypatch):
    q, k, v = random_qkv()
    mixed = []
    for fused_from in (k.shape[-2], k.shape[-2] + 1):  # the keys, not the queries, decide
        monkeypatch.setitem(vit.attention.CPU_FLASH_FROM, q.dtype, fused_from)
        mixed.append(attend(q, k, v))
    assert len(fused_calls) == 1
    assert_close(*mixed, rtol=0, atol=1e-6)


def test_kernel_can_be_set_for_all_layers(fused_calls):
    model, x = nn.Sequential(random_attention(), random_attention()), random_tokens()
    outputs = {}
    # auto: math, at so few tokens on a CPU
    for kernel, calls in (("math", 0), ("flash", 2), ("auto", 2)):
        set_kernel(model, kernel)
        outputs[kernel] = model(x)
        assert len(fused_calls) == calls
    close(outputs["flash"], outputs["math"])


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_layer_by_hand_from_its_matrices(qkv_bias):
    layer, x = random_attention(qkv_bias=qkv_bias), random_tokens()
    b_q, b_k, b_v = layer.qkv.bias.split(DIM) if qkv_bias else torch.zeros(3, DIM)
    heads = []
    for head in range(HEADS):
        columns = slice(head * HEAD, (head + 1) * HEAD)
        q = x @ layer.W_Q[:, columns] + b_q[columns]
        k = x @ layer.W_K[:, columns] + b_k[columns]
        v = x @ layer.W_V[:, columns] + b_v[columns]
        scores = torch.einsum("bqd,bkd->bqk", q, k) / HEAD**0.5
        heads.append(scores.exp() / scores.exp().sum(-1, keepdim=True) @ v)
    expected = torch.cat(heads, dim=-1) @ layer.W_O + layer.proj.bias
    close(layer(x), expected)


def test_named_matrices_are_distinct_views_that_make_up_the_layer():
    layer, x = random_attention(), random_tokens()
    assert torch.equal(torch.cat([layer.W_Q, layer.W_K, layer.W_V], dim=1), layer.qkv.weight.T)
    for index, matrix in enumerate((layer.W_Q, layer.W_K, layer.W_V)):
        before = [part.clone() for part in layer.qkv.weight.chunk(3)]
        matrix.mul_(2)
        for other, (old, new) in enumerate(zip(before, layer.qkv.weight.chunk(3), strict=True)):
            assert torch.equal(new, 2 * old if other == index else old)
    layer.W_O.zero_()
    assert_close(layer(x), layer.proj.bias.expand(2, TOKENS, DIM))


def permute_heads(layer: MultiHeadSelfAttention, parts: str) -> None:
    """Exchange the heads of the named parts, matrix and bias."""
    order = torch.arange(DIM).view(HEADS, HEAD)[[2, 0, 1]].flatten()
    for part, matrix, bias in zip(
        "QKV", (layer.W_Q, layer.W_K, layer.W_V), layer.qkv.bias.view(3, DIM), strict=True
    ):
        if part in parts:
            matrix.copy_(matrix[:, order])
            bias.copy_(bias[order])
    if "O" in parts:
        layer.W_O.copy_(layer.W_O[order])


@pytest.mark.parametrize("parts", ["QKVO", "Q", "V", "QK", "VO"])
def test_heads_have_no_order_and_permute_only_together(parts):
    layer, x = random_attention(), random_tokens()
    before = layer(x)
    permute_heads(layer, parts)
    if parts == "QKVO":
        close(layer(x), before)
    else:
        assert (layer(x) - before).abs().max() > 0.01


def test_identity_is_the_linear_layer_with_three_identity_matrices():
    identity, linear = random_attention(qkv="identity"), random_attention()
    linear.qkv.weight.copy_(torch.eye(DIM).repeat(3, 1))
    linear.qkv.bias.zero_()
    linear.proj.load_state_dict(identity.proj.state_dict())
    x = random_tokens()
    close(identity(x), linear(x), 1e-6)
