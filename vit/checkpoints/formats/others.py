"""Files of other repositories.

Those of plain vision transformers under other names have a table here; the commonest of other
families are refused, naming an operation that this encoder lacks.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from vit.checkpoints.formats.format import HALVES, Format
from vit.checkpoints.formats.torchvision import BLOCK as TORCHVISION_BLOCK
from vit.checkpoints.formats.torchvision import OUTSIDE_BLOCKS as OUTSIDE_TORCHVISION
from vit.checkpoints.names import table, within
from vit.checkpoints.reading import Source

# ---- The same encoder under other names ----------------------------------------------------------

# Google's .npz, as transposed by `reading`. Its first code numbered all parts of a layer together,
# its later one (big_vision) each kind of part.
_GOOGLE_OUTSIDE = table("""
    cls_token           cls
    pos_embed           Transformer.posembed_input.pos_embedding
    pos_embed           pos_embedding
    patch_embed.proj.@  embedding.@
    norm.@              Transformer.encoder_norm.@
    head.@              head.@
""")
_GOOGLE_BLOCK = table("""
    norm1.@             LayerNorm_0.@
    norm2.@             LayerNorm_2.@
    norm2.@             LayerNorm_1.@
    mlp.fc1.@           MlpBlock_3.Dense_0.@
    mlp.fc2.@           MlpBlock_3.Dense_1.@
    mlp.fc1.@           MlpBlock_0.Dense_0.@
    mlp.fc2.@           MlpBlock_0.Dense_1.@
""")
_GOOGLE_ATTENTION = table("""
    attn.qkv.@          query.@ key.@ value.@
    attn.proj.@         out.@
""")

# before torchvision's table: the first row that fits is taken
_SWAG = table("""
    pos_embed           encoder.pos_embedding       (sequence)
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


def google_hints(source: Source) -> dict[str, Any]:
    """Return the number of heads, the pooling, and how Google's code makes the input.

    transformers' settings for these models make it in the same way.
    """
    encoder: dict[str, Any] = {"global_pool": "avg"}
    for name, value in source.values.items():
        if name.endswith(".query.heads"):
            encoder["num_heads"] = value
    if any(re.fullmatch(r"(.*\.)?cls", name) for name in source.tensors):
        encoder["global_pool"] = "token"
    return {"encoder": encoder, "squash": True}


GOOGLE = Format(
    name="Google's vision_transformer",
    anchor=r"embedding\.weight",
    marks=r"Transformer\.encoder_norm\.weight",
    rules=(
        *_GOOGLE_OUTSIDE,
        *within(_GOOGLE_BLOCK, "blocks.#.", "Transformer.encoderblock_#."),
        *within(
            _GOOGLE_ATTENTION,
            "blocks.#.",
            "Transformer.encoderblock_#.MultiHeadDotProductAttention_1.",
            "Transformer.encoderblock_#.MultiHeadDotProductAttention_0.",
        ),
    ),
    hints=google_hints,
    usual_input=HALVES,
    interpolation="bilinear",
)
SWAG = Format(
    name="facebookresearch/SWAG",
    anchor=r"conv_proj\.weight",
    marks=r"encoder\.layers\.layer_0\.ln_1\.weight",
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
    marks=r"(backbone\.)?layers\.0\.ln1\.weight",
    rules=(
        *table("head.@ head.layers.head.@"),
        *within(_MMPRETRAIN_BACKBONE, "", "backbone.", ""),
        *within(_MMPRETRAIN_BLOCK, "blocks.#.", "backbone.layers.#.", "layers.#."),
    ),
    global_pool="token",  # unless an fc_norm says otherwise
    crop_share=0.875,
    other_inputs="as its DeiT and MAE use, but its VisionTransformer uses 0.5",
)


# ---- Other families ------------------------------------------------------------------------------

# Ends of keys, and the operation that they show and this encoder lacks. The first match is taken.
# The models are examples: a key does not show the family.
NOT_COMPUTED = (
    (r"\w*lora_\w+(\..*)?|base_layer\.(weight|bias)",
     "adapters such as LoRA to be merged first, as by peft's merge_and_unload()"),
    (r"layers\.\d+\.blocks\.\d+\.(attention|attn)\..*",
     "blocks in stages, as in Swin and SimMIM's Swin"),
    (r"relative_position_bias_table|attention\.relative_position_bias\..*",
     "relative positions, as in BEiT, data2vec and SimMIM"),
    (r"rope(_embed|_embeddings)?\..*|freqs_(cos|sin|cis)"
     r"|(?<!transformer\.)embeddings\.patch_embeddings\.weight",
     "rotary positions, as in DINOv3 and EVA-02"),
    (r"conv_root\..*|patch_embed\.backbone\..*",
     "a convolutional network before its patches, as in hybrids such as R50+ViT"),
    (r"attn\.inner_attn_ln\.weight", "a norm within its attention, as in BEiT-3 and EVA-02"),
    (r"attn\.q_bias", "no bias on its keys, as in BEiT and EVA"),
    (r"attn_pool\..*|head\.probe|MAPHead_0\..*", "pooling by attention, as in SigLIP"),
    (r"norm_pre\.weight|pre_layrnorm\.weight|ln_pre\.weight|pre_norm\.weight",
     "a norm before its blocks, as in CLIP"),
    (r"embeddings\.patch_embedding\.bias", "a GELU by tanh, as in SigLIP"),
)  # fmt: skip


def refusal(keys: Collection[str]) -> str:
    """Return which of `NOT_COMPUTED` the keys show; "" for none."""
    for ends, operation in NOT_COMPUTED:
        for key in keys:
            if re.fullmatch(rf"(.*\.)?({ends})", key, re.DOTALL):
                return f"it has {operation} ({key}): not computed by this encoder"
    return ""
