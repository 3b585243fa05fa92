"""timm's vision transformers, whose names are also ours."""

from __future__ import annotations

from typing import Any

from vit.checkpoints.formats.format import Format
from vit.checkpoints.names import table, within
from vit.checkpoints.reading import Source

# timm's names, then what DeiT III, iBOT and DINOv2 call some of them
BLOCK = table("""
    norm1.@
    attn.qkv.@
    attn.q_norm.@
    attn.k_norm.@
    attn.proj.@
    ls1.gamma
    norm2.@
    mlp.fc1.@
    mlp.fc2.@
    ls2.gamma
    ls1.gamma       gamma_1
    ls2.gamma       gamma_2
    mlp.fc1.@       mlp.w12.@
    mlp.fc2.@       mlp.w3.@
""")
OTHER_INPUTS = "as DeiT, DINO and MAE use, but timm's own ViTs use 0.5, 0.5 and crop_share 0.9"
# DeiT's token for distillation, whose head stands beside that of the class token, is a register; a
# training file of DINOv2 groups layers in chunks: blocks.CHUNK.BLOCK, where BLOCK does not restart
ENCODER = (
    *table("""
        cls_token
        reg_token
        pos_embed
        patch_embed.proj.@
        norm.@
        fc_norm.@
        head.@
        reg_token       dist_token
        reg_token       register_tokens
    """),
    *within(BLOCK, "blocks.#.", "blocks.#.", "blocks.*.#."),
)


def describes_itself(source: Source) -> bool:
    """Return whether timm describes the model: one in memory, or a config.json from timm."""
    in_memory = source.module is not None and not source.config
    return in_memory or "architecture" in source.config


def timm_hints(source: Source) -> dict[str, Any]:
    """Read the model's description, if there is one: timm's config.json, or the model itself."""
    hints: dict[str, Any] = {}
    if describes_itself(source):
        from vit.checkpoints.formats import timm_models  # with timm: takes seconds to import

        hints = timm_models.hints(source)
    # DeiT III and DINOv2 see the whole square
    scaled = any(key.endswith(("gamma_1", "ls1.gamma")) for key in source.tensors)
    if scaled and hints.get("crop_share") is None:
        hints["crop_share"] = 1.0
    return hints


TIMM = Format(
    name="timm",
    rules=ENCODER,
    hints=timm_hints,
    crop_share=0.875,  # 224 of 256 pixels, as DeiT's and MAE's code evaluate, and timm's by default
    other_inputs=OTHER_INPUTS,
)
