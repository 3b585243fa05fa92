"""Training files and backbones of self-supervised learners, by their authors' code.

facebookresearch/mae (pretrained models with their decoder, and fine-tuned classifiers), DINO and
its followers (facebookresearch/dino, bytedance/ibot, facebookresearch/dinov2),
facebookresearch/moco-v3, msn and ijepa.
"""

from __future__ import annotations

import re
from typing import Any

from vit.checkpoints.formats.format import Format, only_given
from vit.checkpoints.formats.timm import (
    ANCHOR,
    BLOCK,
    DEIT_III,
    ENCODER,
    OTHER_INPUTS,
    OUTSIDE_BLOCKS,
)
from vit.checkpoints.names import table, within
from vit.checkpoints.reading import Source


def of_code(source: Source, key: str, names: str) -> dict[str, Any]:
    """Return that the code made the file, unless it names an architecture that the code lacks.

    Args:
        source: the checkpoint.
        key: of the name of the architecture in the saved options.
        names: regular expression for the names that the code knows.
    """
    name = source.values.get(key)
    if name is None:
        return {"code": "form"}
    if re.fullmatch(names, str(name)):
        return {"code": "named"}
    return {}


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


def mae_hints(source: Source) -> dict[str, Any]:
    """Read the saved command line, `args`: the size of the images, and the target."""
    names = r"(mae_)?vit_(base|large|huge)_patch\d+(_dec512d8b)?|RETFound_(mae|dinov2)"
    return of_code(source, "args.model", names) | {
        "encoder": only_given({"image_size": source.values.get("args.input_size")}),
        "norm_pix_loss": source.values.get("args.norm_pix_loss"),
    }


def fine_tuned_hints(source: Source) -> dict[str, Any]:
    """Read the saved command line, and the part of an image that MAE's code evaluates.

    That is 224 of 256 pixels, or all of larger images.
    """
    # RETFound's code is MAE's with another model, whose published classifiers are large
    hints = mae_hints(source)
    if source.values.get("args.model") == "RETFound_mae":
        hints["head_problem"] = "is RETFound's, whose code applies the final norm twice before it"

    # as build_transform in util/datasets.py
    hints["crop_share"] = 0.875
    if (source.values.get("args.input_size") or 224) > 224:
        hints["crop_share"] = 1.0
    return hints


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


def dinov2_hints(source: Source) -> dict[str, Any]:
    """Distinguish DINOv2's own files, all with layer scales, from others that have a mask token."""
    if any(key.endswith("ls1.gamma") for key in source.tensors):
        return {"code": "form"}
    return {}


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
    hints=lambda source: of_code(source, "args.arch", r"(vit|deit)_(tiny|small|base|large)"),
    crop_share=0.875,  # as its eval_knn.py
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
        # a training file groups layers in chunks: blocks.CHUNK.BLOCK, where BLOCK does not restart
        *within((*BLOCK, *SWIGLU), "blocks.#.", "blocks.#.", "blocks.*.#."),
    ),
    dropped=((r"mask_token", "DINOv2's token for masked patches, used only in its training"),),
    hints=dinov2_hints,
)


# ---- MoCo v3, MSN, I-JEPA ------------------------------------------------------------------------

# by width
OF_MOCO: dict[str, Any] = {"code_heads": {384: 12, 768: 12}}


def moco_hints(source: Source) -> dict[str, Any]:
    """Recognise MoCo v3's files by their two encoders or by the fixed positions of its classifiers.

    Their table is zero for the class token, as no learned one is. Its "vit_small" has another
    number of heads than others.
    """
    for key, tensor in source.tensors.items():
        has_table = key.endswith("pos_embed") and tensor.ndim == 3 and not tensor.is_meta
        if re.search(r"(base|momentum)_encoder\.", key):
            return of_code(source, "arch", r"vit_(conv_)?(small|base)") | OF_MOCO
        if has_table and not tensor[0, 0].any():
            return {"code": "form"} | OF_MOCO
    return {}


def jepa_hints(source: Source) -> dict[str, Any]:
    """Return how MSN's logistic_eval.py prepares images; I-JEPA's code says nothing."""
    hints: dict[str, Any] = {"code": "form"}
    if any(key.endswith("prototypes") for key in source.tensors):
        hints |= {"interpolation": "bilinear", "crop_share": 0.875}
    return hints


MOCO = Format(
    name="MoCo v3",
    anchor=ANCHOR,
    marks=(r"arch vit_(conv_)?(small|base)", r"(.*\.)?(base|momentum)_encoder\..*"),
    rules=ENCODER,
    hints=moco_hints,
    global_pool="token",
    interpolation="bilinear",  # as its main_lincls.py
    crop_share=0.875,
    other_inputs=OTHER_INPUTS,
)
JEPA = Format(
    name="I-JEPA or MSN",
    anchor=ANCHOR,
    marks=(r"predictor\.(.*\.)?predictor_blocks\..*", r"prototypes"),
    rules=ENCODER,
    hints=jepa_hints,
)
