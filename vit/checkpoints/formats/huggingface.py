"""transformers' ViT, ViTMAE and Dinov2 (with registers), as on disk and, since 5.9, in memory.

Its ViTMSN, DeiT, I-JEPA and SimMIM encoders also use the format of ViT: the same layers, with one
more token (DeiT's for distillation, read as a register) or no class token (I-JEPA).
"""

from __future__ import annotations

import re
from typing import Any

from PIL.Image import Resampling

from vit.checkpoints.formats.format import (
    HALVES,
    IMAGENET,
    Format,
    class_names,
    only_given,
)
from vit.checkpoints.names import table, within
from vit.checkpoints.reading import Source
from vit.config import pair

# ---- Names ---------------------------------------------------------------------------------------

# a layer of ViT; attention and MLP have other names on disk, which come first, than in memory
ATTENTION = table("""
    attn.qkv.@     attention.attention.query.@ attention.attention.key.@ attention.attention.value.@
    attn.proj.@    attention.output.dense.@
    attn.qkv.@     attention.q_proj.@ attention.k_proj.@ attention.v_proj.@
    attn.proj.@    attention.o_proj.@
""")
VIT_BLOCK = (
    *ATTENTION,
    *table("""
        norm1.@         layernorm_before.@
        norm2.@         layernorm_after.@
        mlp.fc1.@       intermediate.dense.@
        mlp.fc2.@       output.dense.@
        mlp.fc1.@
        mlp.fc2.@
    """),
)

# outside of the layers, and an encoder with its layers under either of their names
BODY = table("""
    cls_token           embeddings.cls_token
    pos_embed           embeddings.position_embeddings
    patch_embed.proj.@  embeddings.patch_embeddings.projection.@
    norm.@              layernorm.@
""")
DISTILLATION = table("reg_token embeddings.distillation_token")
VIT_ENCODER = (
    *BODY,
    *within(VIT_BLOCK, "blocks.#.", "encoder.layer.#.", "layers.#."),
)
HEAD = table("head.@ classifier.@")

# ViTMAE's decoder, with its layers under either of their names; a patch is flattened channel last
DECODER = (
    *table("""
        decoder.mask_token
        decoder.pos_embed   decoder.decoder_pos_embed
        decoder.embed.@     decoder.decoder_embed.@
        decoder.norm.@      decoder.decoder_norm.@
        decoder.pred.@      decoder.decoder_pred.@      (pixels)
    """),
    *within(
        VIT_BLOCK,
        "decoder.blocks.#.",
        "decoder.decoder_layers.#.",
        "decoder.decoder_encoder.layer.#.",
    ),
)

# Dinov2, whose SwiGLU has its gates in front of its values, in one matrix or in two
DINOV2_BLOCK = (
    *ATTENTION,
    *table("""
        norm1.@
        norm2.@
        ls1.gamma       layer_scale1.lambda1
        ls2.gamma       layer_scale2.lambda1
        mlp.fc1.@
        mlp.fc2.@
        mlp.fc1.@       mlp.weights_in.@
        mlp.fc2.@       mlp.weights_out.@
        mlp.fc1.@       mlp.gate_proj.@ mlp.up_proj.@
        mlp.fc2.@       mlp.down_proj.@
    """),
)
DINOV2_ENCODER = (
    *BODY,
    *table("reg_token embeddings.register_tokens"),
    *within(DINOV2_BLOCK, "blocks.#.", "encoder.layer.#."),
)

# ---- Settings ------------------------------------------------------------------------------------

# our settings -> theirs
ENCODER_SETTINGS = {
    "embed_dim": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "norm_eps": "layer_norm_eps",
    "image_size": "image_size",
    "patch_size": "patch_size",
    "channels": "num_channels",
}
DECODER_SETTINGS = {
    "dim": "decoder_hidden_size",
    "depth": "decoder_num_hidden_layers",
    "num_heads": "decoder_num_attention_heads",
}
# families whose published models use ImageNet's mean -> their interpolation and crop share
USUAL = {"vit_mae": ("bicubic", 1.0), "deit": ("bicubic", 0.875), "vit_msn": ("bilinear", 1.0)}
# model types whose code computes what this encoder does
PLAIN = ("vit", "vit_mae", "vit_msn", "deit", "ijepa", "dinov2", "dinov2_with_registers")
# numbers in preprocessor_config.json -> names of filters
FILTERS = {kind.value: kind.name.lower() for kind in Resampling}
# image processors that have no other steps -> settings that their files may omit
_VIT: dict[str, Any] = {
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": Resampling.BILINEAR,
    "do_center_crop": False,
    "crop_size": 224,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": 0.5,
    "image_std": 0.5,
}
_DEIT = _VIT | {
    "size": {"height": 256, "width": 256},
    "resample": Resampling.BICUBIC,
    "do_center_crop": True,
}
_CLIP = _DEIT | {
    "size": {"shortest_edge": 224},
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
PROCESSORS = {"ViT": _VIT, "DeiT": _DEIT, "Bit": _CLIP, "CLIP": _CLIP}
OF_TYPE = {"deit": "DeiT", "dinov2": "Bit", "dinov2_with_registers": "Bit"}
"""The processors of models whose files do not name them, by the model's type; else ViT's."""


def huggingface_hints(source: Source) -> dict[str, Any]:
    """Read config.json and preprocessor_config.json."""
    config = source.config
    if config.get("hidden_act", "gelu") != "gelu":
        raise source.error(
            f"the activation {config['hidden_act']!r} is not computed here, only gelu is"
        )

    # other types have the same names for their tensors, as RF-DETR's, whose attention has windows
    differences = []
    model_type = config.get("model_type")
    if model_type not in (None, *PLAIN):
        differences.append(
            f"its type, {model_type}, is not known here: its code may compute, or "
            "prepare its images by, something else"
        )

    # the input, whose preparation a preprocessor describes; otherwise the family's, if known
    encoder = only_given({ours: config.get(theirs) for ours, theirs in ENCODER_SETTINGS.items()})
    inputs: dict[str, Any] = {}
    if source.preprocessor:
        inputs = _read_preprocessor(source, encoder.get("channels", 3), differences)
    elif model_type in USUAL:
        interpolation, crop_share = USUAL[model_type]
        inputs = {"interpolation": interpolation, "crop_share": crop_share, "usual_input": IMAGENET}

    return inputs | {
        "encoder": encoder,
        "decoder": only_given({ours: config.get(key) for ours, key in DECODER_SETTINGS.items()}),
        "norm_pix_loss": config.get("norm_pix_loss"),
        "class_names": class_names(config.get("id2label") or {}),
        "differences": differences,
    }


def _read_preprocessor(source: Source, channels: int, differences: list[str]) -> dict[str, Any]:
    """Return the fields of `Hints` on the input, as preprocessor_config.json prepares it.

    Args:
        source: the checkpoint.
        channels: of its images.
        differences: gets the steps that are not carried out here.
    """
    # the file's steps; one that is null is left out
    stated = {
        key: value
        for key, value in source.preprocessor.items()
        if value is not None or key.startswith("do_")
    }

    # its class, found by its name or the model's, gives the rest
    usual = OF_TYPE.get(str(source.config.get("model_type")), "ViT")
    name = str(stated.get("image_processor_type", stated.get("feature_extractor_type", usual)))
    kind = re.sub(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", name)
    settings = PROCESSORS.get(kind, _VIT)
    size = _sides(stated.get("size", settings["size"]), "height" in settings["size"])
    settings = settings | stated

    # Their pixels from 0 to 255 are multiplied by a factor, then normalised. Ours are from 0 to 1,
    # so mean and std are divided by 255 times the factor.
    scale = 255.0
    if settings["do_rescale"]:
        scale *= settings["rescale_factor"]
    if not settings["do_normalize"]:
        settings |= {"image_mean": 0.0, "image_std": 1.0}
    inputs: dict[str, Any] = {}
    for key in ("mean", "std"):
        values = settings[f"image_{key}"]
        if isinstance(values, int | float):
            values = [values] * channels
        inputs[key] = tuple(value / scale for value in values)

    # How images are resized: a size with two sides squashes, the shorter side alone does not. Here
    # the same fraction of both sides is kept, without a border.
    crops = settings["do_center_crop"]
    is_like_here = kind in PROCESSORS and not stated.get("do_pad")
    inputs["crop_share"] = 1.0
    cropped = (0, 0)
    if settings["do_resize"]:
        edge = size.get("shortest_edge", 0)
        resized = cropped = (size.get("height", edge), size.get("width", edge))
        if crops:
            crop = _sides(settings["crop_size"], True)
            cropped = (crop["height"], crop["width"])
        share = cropped[0] / max(resized[0], 1)
        inputs["crop_share"] = min(share, 1.0)
        is_even = share <= 1 and abs(share * resized[1] - cropped[1]) < 1
        has_known_sides = size.keys() in ({"height", "width"}, {"shortest_edge"})
        is_like_here = is_like_here and is_even and has_known_sides
    elif crops:
        is_like_here = False
    if not is_like_here:
        differences.append(
            "its preprocessor does what is not done here, where the middle of an image is resized "
            f"to the model's size; mean, std and crop_share set what is done: {name}, {stated}"
        )

    # the settings may have another size, at which the model was made
    if all(cropped) and pair(source.config.get("image_size") or cropped) != cropped:
        inputs["prepared_size"] = cropped
    return inputs | {
        "interpolation": FILTERS.get(settings["resample"], f"filter {settings['resample']}"),
        "squash": settings["do_resize"] and "height" in size,
    }


def _sides(size: Any, is_square: bool) -> dict[str, int]:
    """Return a size as a dict of sides: height and width, or shortest_edge, or others.

    Args:
        size: as in the file.
        is_square: whether a single number is a square's; otherwise it is the shorter side.
    """
    if isinstance(size, dict):
        return only_given(size)
    if isinstance(size, int) and not is_square:
        return {"shortest_edge": size}
    height, width = pair(size)
    return {"height": height, "width": width}


# ---- Formats -------------------------------------------------------------------------------------

# a body stands behind the name of a task model's, or alone
ANCHOR = r"embeddings\.patch_embeddings\.projection\.weight"

VIT_MAE = Format(
    name="Hugging Face ViTMAE",
    anchor=rf"(?:vit\.)?{ANCHOR}",
    marks=r"decoder\.decoder_pred\.weight|decoder\.decoder_embed\.weight",
    rules=(*within(VIT_ENCODER, "", "vit.", ""), *DECODER),
    hints=huggingface_hints,
    norm_eps=1e-12,
)
VIT = Format(
    name="Hugging Face ViT",
    anchor=rf"(?:(?:vit|deit|ijepa)\.)?{ANCHOR}",
    marks=r"((vit|deit|ijepa)\.)?(encoder\.layer|layers)\.\d+\.layernorm_before\.weight",
    rules=(*within((*VIT_ENCODER, *DISTILLATION), "", "vit.", "deit.", "ijepa.", ""), *HEAD),
    hints=huggingface_hints,
    global_pool="token",
    norm_eps=1e-12,
    usual_input=HALVES,
    interpolation="bilinear",
    other_inputs="as Google's ViT uses, but DINO's and DeiT's use ImageNet's",
)
DINOV2 = Format(
    name="Hugging Face Dinov2",
    anchor=rf"(?:dinov2(?:_with_registers)?\.)?{ANCHOR}",
    marks=r"(dinov2(_with_registers)?\.)?encoder\.layer\.\d+\.layer_scale1\.lambda1",
    rules=within(DINOV2_ENCODER, "", "dinov2.", "dinov2_with_registers.", ""),
    hints=huggingface_hints,
)
