"""Files of other repositories.

Those of plain vision transformers under other names have a table here; of other families, the
commonest are refused with what this encoder does not compute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vit.checkpoints.formats.format import HALVES, Format, Hints
from vit.checkpoints.formats.torchvision import BLOCK as TORCHVISION_BLOCK
from vit.checkpoints.formats.torchvision import OUTSIDE_BLOCKS as OUTSIDE_TORCHVISION
from vit.checkpoints.names import table, within
from vit.checkpoints.reading import Source

# ---- The same encoder under other names ----------------------------------------------------------

# Google's .npz, whose first code counted the parts of a block in one row; the later (big_vision)
# counts each kind of part
_GOOGLE_OUTSIDE = table("""
    cls_token           cls
    pos_embed           Transformer.posembed_input.pos_embedding
    pos_embed           pos_embedding
    patch_embed.proj.weight embedding.kernel                    (kernel)
    patch_embed.proj.bias   embedding.bias
    norm.weight         Transformer.encoder_norm.scale
    norm.bias           Transformer.encoder_norm.bias
    head.weight         head.kernel                             (kernel)
    head.bias           head.bias
""")
_GOOGLE_NORMS = table("""
    norm1.weight        LayerNorm_0.scale
    norm1.bias          LayerNorm_0.bias
    norm2.weight        LayerNorm_2.scale
    norm2.bias          LayerNorm_2.bias
    norm2.weight        LayerNorm_1.scale
    norm2.bias          LayerNorm_1.bias
""")
_GOOGLE_ATTENTION = table("""
    qkv.weight          query.kernel key.kernel value.kernel    (kernels)
    qkv.bias            query.bias key.bias value.bias          (heads)
    proj.weight         out.kernel                              (kernel)
    proj.bias           out.bias
""")
_GOOGLE_MLP = table("""
    fc1.weight          Dense_0.kernel                          (kernel)
    fc1.bias            Dense_0.bias
    fc2.weight          Dense_1.kernel                          (kernel)
    fc2.bias            Dense_1.bias
""")
_GOOGLE_BLOCK = (
    *_GOOGLE_NORMS,
    *within(_GOOGLE_ATTENTION, "attn.", "MultiHeadDotProductAttention_1."),
    *within(_GOOGLE_ATTENTION, "attn.", "MultiHeadDotProductAttention_0."),
    *within(_GOOGLE_MLP, "mlp.", "MlpBlock_3."),
    *within(_GOOGLE_MLP, "mlp.", "MlpBlock_0."),
)

_JEONSWORLD_OUTSIDE = table("""
    cls_token           transformer.embeddings.cls_token
    pos_embed           transformer.embeddings.position_embeddings
    patch_embed.proj.@  transformer.embeddings.patch_embeddings.@
    norm.@              transformer.encoder.encoder_norm.@
    head.@              head.@
""")
_JEONSWORLD_BLOCK = table("""
    norm1.@             attention_norm.@
    attn.qkv.@          attn.query.@ attn.key.@ attn.value.@
    attn.proj.@         attn.out.@
    norm2.@             ffn_norm.@
    mlp.fc1.@           ffn.fc1.@
    mlp.fc2.@           ffn.fc2.@
""")

# torchvision's table, of whose rows the first that fits counts
_SWAG = table("""
    pos_embed           encoder.pos_embedding                   (sequence)
    head.@              head.layers.head.@
""")

_MMPRETRAIN_BACKBONE = table("""
    cls_token           cls_token
    pos_embed           pos_embed
    patch_embed.proj.@  patch_embed.projection.@
    norm.@              ln1.@
    fc_norm.@           ln2.@
""")
_MMPRETRAIN_BLOCK = table("""
    norm1.@             ln1.@
    attn.qkv.@          attn.qkv.@
    attn.proj.@         attn.proj.@
    ls1.gamma           attn.gamma1.weight
    norm2.@             ln2.@
    mlp.fc1.@           ffn.layers.0.0.@
    mlp.fc2.@           ffn.layers.1.@
    ls2.gamma           ffn.gamma2.weight
""")
_MMPRETRAIN_HEAD = table("head.@ head.layers.head.@")


def google_hints(source: Source) -> Hints:
    """Read the heads off the shape of a query's kernel (D, heads, values), and what its head reads.

    The input is as in Google's code, and in transformers' settings for these models.
    """
    encoder: dict[str, object] = {"global_pool": "avg"}
    no_head = ""
    for name, tensor in source.tensors.items():
        if name.endswith(".query.kernel") and tensor.ndim == 3:
            encoder["num_heads"] = tensor.shape[1]
        if re.fullmatch(r"(.*\.)?cls", name):
            encoder["global_pool"] = "token"
        if re.fullmatch(r"(.*\.)?pre_logits\.kernel", name):
            no_head = "its head has a hidden layer (pre_logits), which is not computed here"
    note = "its code approximates GELU by tanh; here it is exact, as in timm and transformers"
    return Hints(encoder, squash=True, notes=(note,), no_head=no_head)


GOOGLE = Format(
    name="Google's vision_transformer, .npz",
    anchor=r"embedding\.kernel",
    rules=(*_GOOGLE_OUTSIDE, *within(_GOOGLE_BLOCK, "blocks.#.", "Transformer.encoderblock_#.")),
    dropped=((r"pre_logits\..*", "the hidden layer of its head"),),
    hints=google_hints,
    mean=HALVES[0],
    std=HALVES[1],
    interpolation="bilinear",
)
JEONSWORLD = Format(
    name="jeonsworld/ViT-pytorch",
    anchor=r"transformer\.embeddings\.patch_embeddings\.weight",
    rules=(
        *_JEONSWORLD_OUTSIDE,
        *within(_JEONSWORLD_BLOCK, "blocks.#.", "transformer.encoder.layer.#."),
    ),
    hints=lambda source: Hints(squash=True),
    global_pool="token",
    mean=HALVES[0],
    std=HALVES[1],
    interpolation="bilinear",
)
SWAG = Format(
    name="facebookresearch/SWAG",
    anchor=r"conv_proj\.weight",
    marks=(r"encoder\.layers\.layer_0\.ln_1\.weight",),
    rules=(
        *_SWAG,
        *OUTSIDE_TORCHVISION,
        *within(TORCHVISION_BLOCK, "blocks.#.", "encoder.layers.layer_#."),
    ),
    global_pool="token",
)
MMPRETRAIN = Format(
    name="mmpretrain",
    anchor=r"(?:backbone\.)?patch_embed\.projection\.weight",
    marks=(r"(backbone\.)?layers\.0\.ln1\.weight",),
    rules=(
        *_MMPRETRAIN_HEAD,
        *within(_MMPRETRAIN_BACKBONE, "", "backbone."),
        *within(_MMPRETRAIN_BLOCK, "blocks.#.", "backbone.layers.#."),
        *_MMPRETRAIN_BACKBONE,
        *within(_MMPRETRAIN_BLOCK, "blocks.#.", "layers.#."),
    ),
    crop_share=0.875,
    other_inputs="as its DeiT and MAE do, but its VisionTransformer uses 0.5",
)


# ---- Other families and other files --------------------------------------------------------------

# Name, reason, and the ends of keys that mark the family. The first match counts, so special cases
# come first.
FAMILIES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Swin, SimMIM's too", "attention in shifted windows, with relative positions",
        (r"layers\.\d+\.blocks\.\d+\.(attention|attn)\..*",),
    ),
    (
        "BEiT, data2vec or SimMIM", "relative positions, and no bias on its keys",
        (r"relative_position_bias_table", r"attention\.relative_position_bias\..*"),
    ),
    (
        "DINOv3", "rotary positions",
        (
            r"rope_embed\..*", r"rope_embeddings\..*", r"storage_tokens",
            r"embeddings\.patch_embeddings\.weight",
        ),
    ),
    (
        "EVA, or another with rotary positions", "rotary positions, and mostly no bias on its keys",
        (
            r"rope\..*", r"freqs_(cos|sin|cis)", r"attn\.inner_attn_ln\.weight", r"attn\.rope\..*",
            r"mlp\.fc1_g\.weight", r"attn\.q_bias",
        ),
    ),
    (
        "SigLIP, or another that pools by attention", "pooling by attention",
        (r"attn_pool\..*", r"head\.probe"),
    ),
    (
        "CLIP, or another of its kind", "a norm before its blocks, and mostly another activation",
        (
            r"norm_pre\.weight", r"visual\.(class_embedding|conv1\.weight|trunk\..*)",
            r"pre_layrnorm\.weight", r"ln_pre\.weight",
        ),
    ),
)  # fmt: skip

# ends of the keys of files without a network, and what they are
OTHER_FILES = {
    r"lora_[AB]\..*":
        "this is a LoRA adapter, not a model; merge it into its model with peft first",
    r"state\.\d+\.\w+": "this is an optimizer's state; the weights are in another file",
}  # fmt: skip


def refusal(keys: Iterable[str]) -> str:
    """Say which of `FAMILIES` the keys belong to, and why it cannot be loaded; "" for none."""
    keys = list(keys)
    for family, reason, ends in FAMILIES:
        pattern = re.compile(rf"(.*\.)?({'|'.join(ends)})", re.DOTALL)
        for key in keys:
            if pattern.fullmatch(key):
                return (
                    f"this is {family} (it holds {key}): {reason}, "
                    "which this encoder does not compute"
                )
    return ""


def other_file(keys: Iterable[str]) -> str:
    """Say which of `OTHER_FILES` the keys without a network belong to; "" for none."""
    for key in keys:
        for end, description in OTHER_FILES.items():
            if re.fullmatch(rf"(.*\.)?{end}", key, re.DOTALL):
                return description
    return ""
