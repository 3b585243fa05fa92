"""Files of other repositories compute here what they compute there.

Oracles: timm reads Google's .npz itself; for the others, timm's model under the names of their code,
written here by hand.
"""

import numpy as np
import pytest
import torch
from small import agree, close, refused, renamed, timm_model, warned
from torch import nn

from vit.checkpoints import load_model

# ---- Google's .npz -------------------------------------------------------------------------------

OUTSIDE = r"""
    cls_token                   cls
    patch_embed\.proj           embedding
    ^norm                       Transformer/encoder_norm
    head                        head
"""
FIRST = r"""
    pos_embed                   Transformer/posembed_input/pos_embedding
    blocks\.(\d+)\.norm1        Transformer/encoderblock_\1/LayerNorm_0
    blocks\.(\d+)\.norm2        Transformer/encoderblock_\1/LayerNorm_2
    blocks\.(\d+)\.mlp\.fc1     Transformer/encoderblock_\1/MlpBlock_3/Dense_0
    blocks\.(\d+)\.mlp\.fc2     Transformer/encoderblock_\1/MlpBlock_3/Dense_1
    blocks\.(\d+)\.attn\.qkv    Transformer/encoderblock_\1/MultiHeadDotProductAttention_1/qkv
    blocks\.(\d+)\.attn\.proj   Transformer/encoderblock_\1/MultiHeadDotProductAttention_1/out
"""
LATER = r"""
    pos_embed                   pos_embedding
    blocks\.(\d+)\.norm1        Transformer/encoderblock_\1/LayerNorm_0
    blocks\.(\d+)\.norm2        Transformer/encoderblock_\1/LayerNorm_1
    blocks\.(\d+)\.mlp\.fc1     Transformer/encoderblock_\1/MlpBlock_0/Dense_0
    blocks\.(\d+)\.mlp\.fc2     Transformer/encoderblock_\1/MlpBlock_0/Dense_1
    blocks\.(\d+)\.attn\.qkv    Transformer/encoderblock_\1/MultiHeadDotProductAttention_0/qkv
    blocks\.(\d+)\.attn\.proj   Transformer/encoderblock_\1/MultiHeadDotProductAttention_0/out
"""


def google_arrays(model: nn.Module, table: str, prefix: str) -> dict[str, np.ndarray]:
    """A model's weights under the names and in the order of Google's files."""
    state = renamed(model.state_dict(), OUTSIDE + table)
    for key in [key for key in state if "qkv" in key]:
        parts = zip(("query", "key", "value"), state.pop(key).chunk(3), strict=True)
        state |= {key.replace("qkv", name): part for name, part in parts}
    arrays = {}
    for key, value in state.items():
        layer, _, kind = key.rpartition(".")
        kernel = value
        if value.ndim == 4:
            kernel = value.permute(2, 3, 1, 0)
        elif kind == "weight" and value.ndim == 2:
            kernel = value.T
        # queries, keys and values have the heads behind, what comes out of them in front
        if layer.endswith(("query", "key", "value")):
            kernel = kernel.unflatten(-1, (4, -1))
        elif layer.endswith("out") and kind == "weight":
            kernel = kernel.unflatten(0, (4, -1))
        name = {"weight": "scale" if value.ndim == 1 else "kernel"}.get(kind, kind)
        arrays[prefix + f"{layer}/{name}".lstrip("/")] = kernel.numpy()
    return arrays


@pytest.mark.parametrize(
    ("table", "prefix", "settings"),
    [
        (FIRST, "", {}),
        (FIRST, "opt/target/", {}),
        (LATER, "params/", {}),
        (LATER, "params/", dict(class_token=False, global_pool="avg", fc_norm=False)),
    ],
)
def test_googles_arrays_load_as_timm_loads_them(table, prefix, settings, tmp_path):
    path = tmp_path / "ViT-B_16.npz"
    np.savez(path, **google_arrays(timm_model(**settings), table, prefix))
    theirs = timm_model(**settings)
    theirs.load_pretrained(str(path))
    ours = load_model(path)
    assert "heads" not in warned(path)  # the file says them
    assert ours.encoder.config.num_heads == 4
    agree(ours, theirs)
    assert (ours.origin.normalize.mean, ours.origin.squash) == ([0.5] * 3, True)


def test_a_hidden_layer_before_googles_head_leaves_the_head_out(images, tmp_path):
    theirs = timm_model()
    hidden = {"pre_logits/kernel": np.ones((32, 32), "f4"), "pre_logits/bias": np.ones(32, "f4")}
    np.savez(tmp_path / "in21k.npz", **google_arrays(theirs, FIRST, "") | hidden)
    with pytest.warns(UserWarning, match="its classifier is left out"):
        ours = load_model(tmp_path / "in21k.npz")
    assert ours.encoder.config.num_classes == 0
    close(ours(images), theirs.forward_features(images))
    # as old timm calls it
    with pytest.warns(UserWarning, match="its classifier is left out"):
        load_model(theirs.state_dict() | {"pre_logits.fc.weight": torch.ones(32, 32)}, num_heads=4)


# ---- Tables of names -----------------------------------------------------------------------------

SWAG = r"""
    cls_token                   class_token
    pos_embed                   encoder.pos_embedding
    patch_embed\.proj           conv_proj
    ^norm\.                     encoder.ln.
    head                        head.layers.head
    blocks\.(\d+)\.norm(\d)     encoder.layers.layer_\1.ln_\2
    blocks\.(\d+)\.mlp\.fc(\d)  encoder.layers.layer_\1.mlp.linear_\2
    blocks\.(\d+)\.attn\.proj   encoder.layers.layer_\1.self_attention.out_proj
    blocks\.(\d+)\.attn\.qkv\.  encoder.layers.layer_\1.self_attention.in_proj_
"""
MMPRETRAIN = r"""
    (cls_token|pos_embed)       backbone.\1
    patch_embed\.proj           backbone.patch_embed.projection
    ^norm\.                     backbone.ln1.
    fc_norm\.                   backbone.ln2.
    head                        head.layers.head
    blocks\.(\d+)\.norm(\d)     backbone.layers.\1.ln\2
    blocks\.(\d+)\.mlp\.fc1     backbone.layers.\1.ffn.layers.0.0
    blocks\.(\d+)\.mlp\.fc2     backbone.layers.\1.ffn.layers.1
    blocks\.(\d+)\.attn\.       backbone.layers.\1.attn.
    blocks\.(\d+)\.ls(\d)\.gamma  backbone.layers.\1.attn.gamma\2.weight
"""


@pytest.mark.parametrize(
    ("table", "settings", "name"),
    [
        (SWAG, {}, "facebookresearch/SWAG"),
        (MMPRETRAIN, {}, "mmpretrain"),
        (MMPRETRAIN, dict(init_values=0.1), "mmpretrain"),
        (MMPRETRAIN, dict(global_pool="avg"), "mmpretrain"),
    ],
)
def test_other_names_for_the_same_encoder(table, settings, name, tmp_path):
    theirs = timm_model(**settings)
    state = renamed(theirs.state_dict(), table)
    if table == SWAG:
        state["encoder.pos_embedding"] = state["encoder.pos_embedding"].transpose(0, 1).clone()
    if table == MMPRETRAIN:
        # the second scale stands in the MLP
        for key in [key for key in state if "gamma2" in key]:
            state[key.replace("attn", "ffn")] = state.pop(key)
        state = {"meta": {"epoch": 3}, "state_dict": state}
    torch.save(state, tmp_path / "theirs.pth")
    ours = load_model(tmp_path / "theirs.pth", num_heads=4)
    assert ours.origin.format == name
    agree(ours, theirs)


# ---- Refused -------------------------------------------------------------------------------------


def test_a_refusal_says_what_the_key_shows():
    # transformers' SigLIP without its head
    tower = {"vision_model.embeddings.patch_embedding.bias": torch.ones(32)}
    assert "as in SigLIP" in refused(tower)
    # MoCo v3's ViT with a stem of convolutions
    stem = {"module.base_encoder.patch_embed.proj.0.weight": torch.ones(3)}
    assert "in no known format" in refused({"state_dict": stem})
