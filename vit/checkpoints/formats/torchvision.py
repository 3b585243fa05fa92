"""torchvision's vit_b_16, vit_l_32, ...: q, k and v are one matrix, as in ours."""

from __future__ import annotations

from vit.checkpoints.formats.format import Format
from vit.checkpoints.names import table, within

# linear_1 and linear_2 are the names in the published files
BLOCK = table("""
    norm1.@         ln_1.@
    attn.qkv.@      self_attention.in_proj_@
    attn.proj.@     self_attention.out_proj.@
    norm2.@         ln_2.@
    mlp.fc1.@       mlp.0.@
    mlp.fc2.@       mlp.3.@
    mlp.fc1.@       mlp.linear_1.@
    mlp.fc2.@       mlp.linear_2.@
""")
OUTSIDE_BLOCKS = table("""
    cls_token           class_token
    pos_embed           encoder.pos_embedding
    patch_embed.proj.@  conv_proj.@
    norm.@              encoder.ln.@
    head.@              heads.head.@
""")

TORCHVISION = Format(
    name="torchvision",
    anchor=r"conv_proj\.weight",
    marks=(r"encoder\.layers\.encoder_layer_0\.ln_1\.weight",),
    rules=(*OUTSIDE_BLOCKS, *within(BLOCK, "blocks.#.", "encoder.layers.encoder_layer_#.")),
    global_pool="token",
    interpolation="bilinear",
    crop_share=0.875,  # resized to 256, cropped to 224
)
