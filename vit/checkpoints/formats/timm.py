"""timm's vision transformers, whose names are also ours."""

from __future__ import annotations

from vit.checkpoints.formats.format import Format, Hints
from vit.checkpoints.names import shared, table, within
from vit.checkpoints.reading import Source

BLOCK = shared(
    "norm1.@ attn.qkv.@ attn.q_norm.@ attn.k_norm.@ attn.proj.@ ls1.gamma "
    "norm2.@ mlp.fc1.@ mlp.fc2.@ ls2.gamma"
)
OUTSIDE_BLOCKS = shared("cls_token reg_token pos_embed patch_embed.proj.@ norm.@ fc_norm.@ head.@")
DEIT_III = table("""
    blocks.#.ls1.gamma  blocks.#.gamma_1
    blocks.#.ls2.gamma  blocks.#.gamma_2
""")
ENCODER = (*OUTSIDE_BLOCKS, *within(BLOCK, "blocks.#.", "blocks.#."))
ANCHOR = r"patch_embed\.proj\.weight"


def timm_hints(source: Source) -> Hints:
    """Read what describes the model, if anything does: see `timm_models`.

    It may be timm's config.json, a model in memory, or the options of timm's train.py.
    """
    is_described = source.module is not None or "architecture" in source.config
    if not is_described and "args.crop_pct" not in source.values:
        return Hints()
    from vit.checkpoints.formats import timm_models  # with timm, which takes seconds to import

    if is_described:
        return timm_models.hints(source)
    return timm_models.training_hints(source)


TIMM = Format(
    name="timm",
    anchor=ANCHOR,
    rules=(*ENCODER, *DEIT_III),
    hints=timm_hints,
    other_inputs="as DeiT, DINO and MAE do, but timm's own ViTs use 0.5, 0.5 and crop_share 0.9",
)
