"""torchvision's vit_b_16, vit_l_32, ...: q, k and v are one matrix, as in ours."""

from __future__ import annotations

import math
from typing import Any

from vit.checkpoints.formats.format import IMAGENET, Format
from vit.checkpoints.names import table, within
from vit.checkpoints.reading import Source

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


def torchvision_hints(source: Source) -> dict[str, Any]:
    """Distinguish the published files by size; nothing else shows how they prepare images."""
    # patch kernels (D, C, p, p), position table (1, 1 + L, D), MLP
    width, _, patch_size, _ = _shape(source, "conv_proj.weight")
    _, length, _ = _shape(source, "encoder.pos_embedding")
    hints: dict[str, Any] = {"code": "form"}
    image_size = patch_size * math.isqrt(length)

    # SWAG's vit_h_14, vit_b_16 and vit_l_16
    if patch_size == 14 or image_size in (384, 512):
        return hints | {"interpolation": "bicubic", "crop_share": 1.0, "usual_input": IMAGENET}

    # V1; of patches of 16 pixels, SWAG has linear probes with the same sizes and other inputs
    if width == 1024 and patch_size == 16:
        return hints | {"crop_share": 224 / 242}
    return hints


def _shape(source: Source, end: str) -> tuple[int, ...]:
    """Return the shape of the first tensor whose name has this end."""
    return next(tuple(value.shape) for name, value in source.tensors.items() if name.endswith(end))


TORCHVISION = Format(
    name="torchvision",
    anchor=r"conv_proj\.weight",
    marks=r"encoder\.layers\.encoder_layer_0\.ln_1\.weight",
    rules=(*OUTSIDE_BLOCKS, *within(BLOCK, "blocks.#.", "encoder.layers.encoder_layer_#.")),
    global_pool="token",
    interpolation="bilinear",
    crop_share=0.875,  # resized to 256, cropped to 224
    hints=torchvision_hints,
    other_inputs=(
        "as the files called V1 use, with their cropping, but those called SWAG_LINEAR_V1 use "
        "crop_share 1"
    ),
)
