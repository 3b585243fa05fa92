"""Files of other repositories.

Those of plain vision transformers under other names have a table here; the commonest of other
families are refused, naming an operation that this encoder lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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
    marks=(r"Transformer\.encoder_norm\.weight",),
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
    dropped=((r"pre_logits\..*", "a hidden layer before its classifier"),),
    hints=google_hints,
    usual_input=HALVES,
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
        *table("head.@ head.layers.head.@"),
        *within(_MMPRETRAIN_BACKBONE, "", "backbone.", ""),
        *within(_MMPRETRAIN_BLOCK, "blocks.#.", "backbone.layers.#.", "layers.#."),
    ),
    global_pool="token",  # unless an fc_norm says otherwise
    crop_share=0.875,
    other_inputs="as its DeiT and MAE use, but its VisionTransformer uses 0.5",
)


# ---- Other families ------------------------------------------------------------------------------

# Operations that this encoder lacks, models with them, and the ends of keys that show them. The
# first match is taken. The models are examples: a key does not show the family.
NOT_COMPUTED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "adapters such as LoRA to be merged first", "peft, whose merge_and_unload() merges them",
        (r"\w*lora_\w+(\..*)?", r"base_layer\.(weight|bias)"),
    ),
    (
        "blocks in stages", "Swin and SimMIM's Swin",
        (r"layers\.\d+\.blocks\.\d+\.(attention|attn)\..*",),
    ),
    (
        "relative positions", "BEiT, data2vec and SimMIM",
        (r"relative_position_bias_table", r"attention\.relative_position_bias\..*"),
    ),
    (
        "rotary positions", "DINOv3 and EVA-02",
        (
            r"rope(_embed|_embeddings)?\..*", r"freqs_(cos|sin|cis)",
            r"(?<!transformer\.)embeddings\.patch_embeddings\.weight",
        ),
    ),
    (
        "a convolutional network before its patches", "hybrids such as R50+ViT",
        (r"conv_root\..*", r"patch_embed\.backbone\..*"),
    ),
    ("a norm within its attention", "BEiT-3 and EVA-02", (r"attn\.inner_attn_ln\.weight",)),
    ("no bias on its keys", "BEiT and EVA", (r"attn\.q_bias",)),
    ("pooling by attention", "SigLIP", (r"attn_pool\..*", r"head\.probe", r"MAPHead_0\..*")),
    (
        "a norm before its blocks", "CLIP",
        (r"norm_pre\.weight", r"pre_layrnorm\.weight", r"ln_pre\.weight", r"pre_norm\.weight"),
    ),
    ("a GELU by tanh", "SigLIP", (r"embeddings\.patch_embedding\.bias",)),
)  # fmt: skip


def refusal(keys: Iterable[str]) -> str:
    """Return which of `NOT_COMPUTED` the keys show; "" for none."""
    keys = list(keys)
    for part, families, ends in NOT_COMPUTED:
        pattern = re.compile(rf"(.*\.)?({'|'.join(ends)})", re.DOTALL)
        for key in keys:
            if pattern.fullmatch(key):
                return f"it has {part} ({key}), as in {families}: not computed by this encoder"
    return ""
