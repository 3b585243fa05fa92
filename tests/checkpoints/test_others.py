"""Files of other repositories compute here what they compute there.

Oracles: timm reads Google's .npz itself; for the others, timm's model under the names of their code,
written here by hand.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import timm
import torch
import transformers
from tiny import seeded
from torch import Tensor, nn

from vit.checkpoints import load_model
from vit.errors import CheckpointError

SIZES = dict(img_size=16, patch_size=4, depth=2, embed_dim=32, num_heads=4, num_classes=5)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 16, 16, generator=seeded(1))


def plain(**settings) -> nn.Module:
    """timm's vision transformer with random values in every tensor."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, **SIZES | settings)
    for value in model.parameters():
        nn.init.normal_(value, std=0.1)
    return model.eval()


# ---- Google's .npz -------------------------------------------------------------------------------


def google_arrays(model: nn.Module, later: bool, prefix: str) -> dict[str, np.ndarray]:
    """A model's weights under the names and in the order of Google's files."""
    width = SIZES["embed_dim"]
    heads = SIZES["num_heads"]
    attention = "MultiHeadDotProductAttention_0" if later else "MultiHeadDotProductAttention_1"
    norms = ("LayerNorm_0", "LayerNorm_1" if later else "LayerNorm_2")
    mlp = "MlpBlock_0" if later else "MlpBlock_3"
    positions = "pos_embedding" if later else "Transformer/posembed_input/pos_embedding"
    arrays: dict[str, Tensor] = {
        "embedding/kernel": model.patch_embed.proj.weight.permute(2, 3, 1, 0),
        "embedding/bias": model.patch_embed.proj.bias,
        positions: model.pos_embed,
        "Transformer/encoder_norm/scale": model.norm.weight,
        "Transformer/encoder_norm/bias": model.norm.bias,
        "head/kernel": model.head.weight.T,
        "head/bias": model.head.bias,
    }
    if model.cls_token is not None:
        arrays["cls"] = model.cls_token
    for number, block in enumerate(model.blocks):
        place = f"Transformer/encoderblock_{number}"
        weights = block.attn.qkv.weight.chunk(3)
        biases = block.attn.qkv.bias.chunk(3)
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            arrays[f"{place}/{attention}/{name}/kernel"] = weight.T.reshape(width, heads, -1)
            arrays[f"{place}/{attention}/{name}/bias"] = bias.reshape(heads, -1)
        arrays[f"{place}/{attention}/out/kernel"] = block.attn.proj.weight.T.reshape(
            heads, -1, width
        )
        arrays[f"{place}/{attention}/out/bias"] = block.attn.proj.bias
        for name, norm in zip(norms, (block.norm1, block.norm2), strict=True):
            arrays[f"{place}/{name}/scale"] = norm.weight
            arrays[f"{place}/{name}/bias"] = norm.bias
        for layer, linear in enumerate((block.mlp.fc1, block.mlp.fc2)):
            arrays[f"{place}/{mlp}/Dense_{layer}/kernel"] = linear.weight.T
            arrays[f"{place}/{mlp}/Dense_{layer}/bias"] = linear.bias
    return {prefix + name: value.detach().numpy() for name, value in arrays.items()}


@torch.no_grad()
@pytest.mark.parametrize(
    ("later", "prefix", "settings"),
    [
        (False, "", {}),
        (False, "opt/target/", {}),
        (True, "params/", {}),
        (True, "params/", dict(class_token=False, global_pool="avg", fc_norm=False)),
    ],
)
def test_googles_arrays_load_as_timm_loads_them(later, prefix, settings, images, tmp_path):
    path = tmp_path / "ViT-B_16.npz"
    np.savez(path, **google_arrays(plain(**settings), later, prefix))
    theirs = timm.create_model("vit_tiny_patch16_224", pretrained=False, **SIZES | settings).eval()
    theirs.load_pretrained(str(path))
    with warnings.catch_warnings(action="error"):  # the file says how many heads there are
        ours = load_model(path)
    assert ours.encoder.config.num_heads == 4
    torch.testing.assert_close(ours(images), theirs.forward_features(images), rtol=0, atol=1e-5)
    logits = ours.forward_head(ours(images))
    torch.testing.assert_close(logits, theirs(images), rtol=0, atol=1e-5)
    assert (ours.origin.normalize.mean, ours.origin.squash) == ([0.5] * 3, True)


@torch.no_grad()
def test_a_hidden_layer_before_googles_head_leaves_the_head_out(images, tmp_path):
    arrays = google_arrays(plain(), False, "")
    hidden = {"pre_logits/kernel": np.ones((32, 32), "f4"), "pre_logits/bias": np.ones(32, "f4")}
    np.savez(tmp_path / "in21k.npz", **arrays | hidden)
    with pytest.warns(UserWarning, match="its classifier is left out"):
        ours = load_model(tmp_path / "in21k.npz")
    assert ours.encoder.config.num_classes == 0
    expected = plain().forward_features(images)
    torch.testing.assert_close(ours(images), expected, rtol=0, atol=1e-5)


def test_other_arrays_are_no_model_and_no_code(tmp_path):
    np.savez(
        tmp_path / "features.npz",
        pooled=np.ones((3, 4)),
        labels=np.ones(3),
        names=np.array(["a", "b"]),
    )
    with pytest.raises(CheckpointError, match="are in no known format"):
        load_model(tmp_path / "features.npz")
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path / "objects.npz"))):
        load_model(tmp_path / "objects.npz")


# ---- Tables of names -----------------------------------------------------------------------------


def renamed(state: dict[str, Tensor], names: list[tuple[str, str]]) -> dict[str, Tensor]:
    """A state dict with every name changed by the first pattern that matches its beginning."""
    result = {}
    for key, value in state.items():
        for pattern, replacement in names:
            name, count = re.subn(f"^{pattern}", replacement, key)
            if count:
                result[name] = value
                break
        else:
            raise KeyError(key)
    return result


def jeonsworld(state: dict[str, Tensor]) -> dict[str, Tensor]:
    block = r"transformer.encoder.layer.\1."
    names = [
        ("cls_token", "transformer.embeddings.cls_token"),
        ("pos_embed", "transformer.embeddings.position_embeddings"),
        (r"patch_embed\.proj", "transformer.embeddings.patch_embeddings"),
        (r"norm\.", "transformer.encoder.encoder_norm."),
        (r"head\.", "head."),
        (r"blocks\.(\d+)\.norm1", block + "attention_norm"),
        (r"blocks\.(\d+)\.norm2", block + "ffn_norm"),
        (r"blocks\.(\d+)\.mlp", block + "ffn"),
        (r"blocks\.(\d+)\.attn\.proj", block + "attn.out"),
        (r"blocks\.(\d+)\.attn\.qkv", block + "attn.qkv"),
    ]
    result = renamed(state, names)
    for key in [key for key in result if ".qkv." in key]:
        parts = result.pop(key).chunk(3)
        for name, part in zip(("query", "key", "value"), parts, strict=True):
            result[key.replace("qkv", name)] = part
    return result


def swag(state: dict[str, Tensor]) -> dict[str, Tensor]:
    block = r"encoder.layers.layer_\1."
    names = [
        ("cls_token", "class_token"),
        ("pos_embed", "encoder.pos_embedding"),
        (r"patch_embed\.proj", "conv_proj"),
        (r"norm\.", "encoder.ln."),
        (r"head\.", "head.layers.head."),
        (r"blocks\.(\d+)\.norm(\d)", block + r"ln_\2"),
        (r"blocks\.(\d+)\.mlp\.fc(\d)", block + r"mlp.linear_\2"),
        (r"blocks\.(\d+)\.attn\.proj", block + "self_attention.out_proj"),
        (r"blocks\.(\d+)\.attn\.qkv\.", block + "self_attention.in_proj_"),
    ]
    result = renamed(state, names)
    result["encoder.pos_embedding"] = result["encoder.pos_embedding"].transpose(0, 1).clone()
    return result


def mmpretrain(state: dict[str, Tensor]) -> dict[str, Tensor]:
    block = r"backbone.layers.\1."
    names = [
        (r"(cls_token|pos_embed)", r"backbone.\1"),
        (r"patch_embed\.proj", "backbone.patch_embed.projection"),
        (r"norm\.", "backbone.ln1."),
        (r"fc_norm\.", "backbone.ln2."),
        (r"head\.", "head.layers.head."),
        (r"blocks\.(\d+)\.norm(\d)", block + r"ln\2"),
        (r"blocks\.(\d+)\.mlp\.fc1", block + "ffn.layers.0.0"),
        (r"blocks\.(\d+)\.mlp\.fc2", block + "ffn.layers.1"),
        (r"blocks\.(\d+)\.attn\.", block + "attn."),
        (r"blocks\.(\d+)\.ls1\.gamma", block + "attn.gamma1.weight"),
        (r"blocks\.(\d+)\.ls2\.gamma", block + "ffn.gamma2.weight"),
    ]
    return {"meta": {"epoch": 3}, "state_dict": renamed(state, names)}


@torch.no_grad()
@pytest.mark.parametrize(
    ("written", "settings", "name"),
    [
        (jeonsworld, {}, "jeonsworld/ViT-pytorch"),
        (swag, {}, "facebookresearch/SWAG"),
        (mmpretrain, {}, "mmpretrain"),
        (mmpretrain, dict(init_values=0.1), "mmpretrain"),
        (mmpretrain, dict(global_pool="avg"), "mmpretrain"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*heads of the encoder are a guess")
def test_other_names_for_the_same_encoder(written: Callable, settings, name, images, tmp_path):
    theirs = plain(**settings)
    torch.save(written(theirs.state_dict()), tmp_path / "theirs.pth")
    ours = load_model(tmp_path / "theirs.pth", num_heads=4)
    assert ours.origin.format == name
    assert not ours.origin.report.dropped
    tokens = ours(images)
    torch.testing.assert_close(tokens, theirs.forward_features(images), rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.forward_head(tokens), theirs(images), rtol=0, atol=1e-5)


# ---- Refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("blocks.0.attn.q_bias", "no bias on its keys"),
        ("stages.0.attn.relative_position_bias_table", "relative positions"),
        ("model.rope_embeddings.inv_freq", "rotary positions"),
        ("norm_pre.weight", "a norm before its blocks"),
    ],
)
def test_a_refusal_says_what_the_key_shows(key, part):
    """Not a family, of which a key tells nothing."""
    with pytest.raises(CheckpointError, match=rf"{part} \({re.escape(key)}\), as in"):
        load_model(plain().state_dict() | {key: torch.ones(3)})


def test_a_file_with_more_than_an_optimizer_is_none():
    """MoCo v3's ViT with a stem of convolutions, in whose file the weights are."""
    state = {"optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}}
    stem = {"module.base_encoder.patch_embed.proj.0.weight": torch.ones(3)}
    with pytest.raises(CheckpointError, match="in no known format"):
        load_model(state | {"state_dict": stem})


def test_a_single_tensor_is_no_model(tmp_path):
    torch.save(torch.ones(3), tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match="a single tensor"):
        load_model(tmp_path / "x.pt")


def test_a_refused_model_of_transformers_is_called_by_its_class(tmp_path):
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16)
    model = transformers.YolosModel(transformers.YolosConfig(**sizes | {"image_size": [16, 16]}))
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"\(YolosModel\): "):
        load_model(tmp_path)
    with pytest.raises(CheckpointError, match=r"^a YolosModel in memory: "):
        load_model(model)
