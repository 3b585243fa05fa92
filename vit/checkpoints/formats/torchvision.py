"""torchvision's vit_b_16, vit_l_32, ...: q, k and v are one matrix, as in ours."""

from __future__ import annotations

from vit.checkpoints.formats.format import Format
from vit.checkpoints.names import row, within

BLOCK = (
    row("norm1.@", "ln_1.@"),
    row("attn.qkv.weight", "self_attention.in_proj_weight"),
    row("attn.qkv.bias", "self_attention.in_proj_bias"),
    row("attn.proj.@", "self_attention.out_proj.@"),
    row("norm2.@", "ln_2.@"),
    row("mlp.fc1.@", "mlp.0.@"),
    row("mlp.fc2.@", "mlp.3.@"),
    row("mlp.fc1.@", "mlp.linear_1.@"),  # in the published files
    row("mlp.fc2.@", "mlp.linear_2.@"),
)

TORCHVISION = Format(
    name="torchvision",
    anchor=r"conv_proj\.weight",
    marks=(r"encoder\.layers\.encoder_layer_0\.ln_1\.weight",),
    rows=(
        row("cls_token", "class_token"),
        row("pos_embed", "encoder.pos_embedding"),
        row("patch_embed.proj.@", "conv_proj.@"),
        *within(BLOCK, "blocks.#.", "encoder.layers.encoder_layer_#."),
        row("norm.@", "encoder.ln.@"),
        row("head.@", "heads.head.@"),
    ),
    global_pool="token",
    interpolation="bilinear",
)
