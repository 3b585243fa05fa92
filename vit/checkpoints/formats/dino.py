"""Training files and backbones of DINO and its followers.

They come from facebookresearch/dino, bytedance/ibot and facebookresearch/dinov2.
"""

from __future__ import annotations

from vit.checkpoints.formats.format import Format
from vit.checkpoints.formats.timm import ANCHOR, BLOCK, DEIT_III, ENCODER, OUTSIDE_BLOCKS
from vit.checkpoints.names import table, within

SWIGLU = table("""
    mlp.fc1.@   mlp.w12.@
    mlp.fc2.@   mlp.w3.@
""")

DINO = Format(
    name="DINO",
    anchor=ANCHOR,
    marks=(
        r"(.*\.)?head\.(mlp\.\d+|last_layer)\..*",
        r"args\.(use_bn_in_head|norm_last_layer|teacher_temp)",
        r"masked_embed",
    ),
    rules=(*ENCODER, *DEIT_III),
    dropped=((r"masked_embed", "iBOT's token for masked patches, used only in its training"),),
)

DINOV2 = Format(
    name="DINOv2",
    anchor=ANCHOR,
    marks=(
        r"register_tokens",
        r"mask_token",
        r"blocks\.\d+\.\d+\.norm1\.weight",
        r"blocks\.\d+\.mlp\.w12\.weight",
    ),
    rules=(
        *OUTSIDE_BLOCKS,
        *table("reg_token register_tokens"),
        # a training file groups blocks in chunks: blocks.CHUNK.BLOCK, where BLOCK does not restart
        *(
            r
            for chunk in ("", r"*.")
            for r in within((*BLOCK, *SWIGLU), "blocks.#.", f"blocks.{chunk}#.")
        ),
    ),
    dropped=((r"mask_token", "DINOv2's token for masked patches, used only in its training"),),
)
