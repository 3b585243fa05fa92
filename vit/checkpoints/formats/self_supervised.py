"""Training files and backbones of self-supervised learners, by their authors' code.

facebookresearch/mae (pretrained models with their decoder, and fine-tuned classifiers), DINO and
its followers (facebookresearch/dino, bytedance/ibot, facebookresearch/dinov2),
facebookresearch/moco-v3, msn and ijepa.
"""

from __future__ import annotations

import re
from typing import Any

from vit.checkpoints.formats.format import Format, only_given
from vit.checkpoints.formats.timm import BLOCK, ENCODER, OTHER_INPUTS
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
    """Read the saved command line, `args`: the size of the images, the target, and the crop."""
    values = source.values
    size = values.get("args.input_size")
    names = r"(mae_)?vit_(base|large|huge)_patch\d+(_dec512d8b)?|RETFound_(mae|dinov2)"
    hints = of_code(source, "args.model", names) | {
        "encoder": only_given({"image_size": size}),
        "norm_pix_loss": values.get("args.norm_pix_loss"),
    }

    # fine-tuned, it sees 224 of 256 pixels, or larger images whole: build_transform in
    # util/datasets.py
    is_fine_tuned = "args.blr" in values and "args.norm_pix_loss" not in values
    if is_fine_tuned and (size or 224) <= 224:
        hints["crop_share"] = 0.875

    # RETFound's code is MAE's with another model, whose published classifiers are large
    if values.get("args.model") == "RETFound_mae":
        hints["head_problem"] = "is RETFound's, whose code applies the final norm twice before it"
    return hints


MAE = Format(
    name="facebookresearch/mae",
    # timm's and DeiT's code has no blr
    marks=r"decoder_pred\.weight|decoder_embed\.weight|args\.(norm_pix_loss|blr)",
    rules=(*ENCODER, *DECODER),
    hints=mae_hints,
    global_pool="token",  # unless an fc_norm says otherwise
)


# ---- DINO, iBOT, DINOv2 --------------------------------------------------------------------------


def dinov2_hints(source: Source) -> dict[str, Any]:
    """Distinguish DINOv2's own files, all with layer scales, from others that have a mask token."""
    if any(key.endswith("ls1.gamma") for key in source.tensors):
        return {"code": "form"}
    return {}


DINO = Format(
    name="DINO",
    marks=(
        r"(.*\.)?head\.(mlp\.\d+|last_layer)\..*|masked_embed"
        r"|args\.(use_bn_in_head|norm_last_layer|teacher_temp)"
    ),
    rules=ENCODER,
    hints=lambda source: of_code(source, "args.arch", r"(vit|deit)_(tiny|small|base|large)"),
    crop_share=0.875,  # as its eval_knn.py
)

DINOV2 = Format(
    name="DINOv2",
    marks=r"register_tokens|mask_token|blocks\.\d+\.(\d+\.norm1|mlp\.w12)\.weight",
    rules=ENCODER,
    hints=dinov2_hints,
)


# ---- MoCo v3, MSN, I-JEPA ------------------------------------------------------------------------


def moco_hints(source: Source) -> dict[str, Any]:
    """Recognise MoCo v3's files by their two encoders or by the fixed positions of its classifiers.

    Their table is zero for the class token, as no learned one is.
    """
    for key, tensor in source.tensors.items():
        has_table = key.endswith("pos_embed") and tensor.ndim == 3 and not tensor.is_meta
        if re.search(r"(base|momentum)_encoder\.", key):
            return of_code(source, "arch", r"vit_(conv_)?(small|base)")
        if has_table and not tensor[0, 0].any():
            return {"code": "form"}
    return {}


def jepa_hints(source: Source) -> dict[str, Any]:
    """Return how MSN's logistic_eval.py prepares images; I-JEPA's code says nothing."""
    hints: dict[str, Any] = {"code": "form"}
    if any(key.endswith("prototypes") for key in source.tensors):
        hints |= {"interpolation": "bilinear", "crop_share": 0.875}
    return hints


MOCO = Format(
    name="MoCo v3",
    marks=r"arch vit_(conv_)?(small|base)|(.*\.)?(base|momentum)_encoder\..*",
    rules=ENCODER,
    hints=moco_hints,
    global_pool="token",
    heads={384: 12, 768: 12},  # its "vit_small" has twice the usual number
    interpolation="bilinear",  # as its main_lincls.py
    crop_share=0.875,
    other_inputs=OTHER_INPUTS,
)
JEPA = Format(
    name="I-JEPA or MSN",
    marks=r"predictor\.(.*\.)?predictor_blocks\..*|prototypes",
    rules=ENCODER,
    hints=jepa_hints,
)
