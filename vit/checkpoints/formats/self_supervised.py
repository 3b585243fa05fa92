"""Training files and backbones of self-supervised learners, by their authors' code.

facebookresearch/mae (pretrained models with their decoder, and fine-tuned classifiers), DINO and its
followers (facebookresearch/dino, bytedance/ibot, facebookresearch/dinov2).
"""

from __future__ import annotations

from dataclasses import replace

from vit.checkpoints.formats.format import Format, Hints, only_given, pair
from vit.checkpoints.formats.timm import ANCHOR, BLOCK, DEIT_III, ENCODER, OUTSIDE_BLOCKS
from vit.checkpoints.names import table, within
from vit.checkpoints.reading import Source

# ---- MAE -----------------------------------------------------------------------------------------

# the decoder, whose patches are flattened channel last
DECODER = (
    *table("""
        decoder.mask_token      mask_token
        decoder.pos_embed       decoder_pos_embed
        decoder.embed.@         decoder_embed.@
        decoder.norm.@          decoder_norm.@
        decoder.pred.@          decoder_pred.@      (pixels)
    """),
    *within(BLOCK, "decoder.blocks.#.", "decoder_blocks.#."),
)


def mae_hints(source: Source) -> Hints:
    """Read the saved command line, `args`, which may hold anything."""
    # the size of the images, and what the decoder predicts
    encoder = only_given({"image_size": pair(source.values.get("args.input_size"))})
    norm_pix_loss = source.values.get("args.norm_pix_loss")
    if not isinstance(norm_pix_loss, bool):
        norm_pix_loss = None
    return Hints(encoder, norm_pix_loss=norm_pix_loss)


def fine_tuned_hints(source: Source) -> Hints:
    """Read the saved command line, and the share of an image that MAE's code evaluates.

    That is 224 of 256 pixels, or all for larger images.
    """
    # as build_transform in util/datasets.py
    hints = mae_hints(source)
    height, _ = hints.encoder.get("image_size", (224, 224))
    if height > 224:
        return replace(hints, crop_share=1.0)
    return replace(hints, crop_share=0.875)


PRETRAINING = Format(
    name="facebookresearch/mae, pretraining",
    anchor=ANCHOR,
    marks=(r"decoder_pred\.weight", r"decoder_embed\.weight", r"args\.norm_pix_loss"),
    rules=(*ENCODER, *DECODER),
    hints=mae_hints,
)

FINE_TUNED = Format(
    name="facebookresearch/mae, fine-tuned",
    anchor=ANCHOR,
    marks=(r"args\.blr",),  # timm's and DeiT's code has no blr
    rules=ENCODER,
    hints=fine_tuned_hints,
    global_pool="token",  # unless an fc_norm says otherwise
)


# ---- DINO, iBOT, DINOv2 --------------------------------------------------------------------------

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
