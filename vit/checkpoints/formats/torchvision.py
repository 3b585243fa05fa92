"""torchvision's vit_b_16, vit_l_32, ...: q, k and v are one matrix, as in ours."""

from __future__ import annotations

import math

from vit.checkpoints.formats.format import IMAGENET, Format, Hints
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


def torchvision_hints(source: Source) -> Hints:
    """Tell the published files apart by their sizes, which is all that says how each takes its images."""

    def shape(end: str) -> tuple[int, ...]:
        return next(
            (tuple(tensor.shape) for name, tensor in source.tensors.items() if name.endswith(end)),
            (),
        )

    kernels, positions = shape("conv_proj.weight"), shape("encoder.pos_embedding")
    if len(kernels) != 4 or len(positions) != 3:
        return Hints()
    width, patch, size = kernels[0], kernels[2], kernels[2] * math.isqrt(positions[1])
    if patch == 14 or size in (384, 512):  # SWAG's vit_h_14, vit_b_16 and vit_l_16
        return Hints({}, {}, None, *IMAGENET, "bicubic", crop_share=1.0)
    share = 224 / 242 if (width, patch) == (1024, 16) else None  # vit_l_16
    mean, std = (
        IMAGENET if patch == 32 else (None, None)
    )  # of the others, SWAG has linear probes of the same sizes
    return Hints(mean=mean, std=std, crop_share=share)


TORCHVISION = Format(
    name="torchvision",
    anchor=r"conv_proj\.weight",
    marks=(r"encoder\.layers\.encoder_layer_0\.ln_1\.weight",),
    rules=(*OUTSIDE_BLOCKS, *within(BLOCK, "blocks.#.", "encoder.layers.encoder_layer_#.")),
    global_pool="token",
    interpolation="bilinear",
    crop_share=0.875,  # resized to 256, cropped to 224
    hints=torchvision_hints,
    other_inputs="and the cropping of the files called V1; those called SWAG_LINEAR_V1 use crop_share 1",
)
