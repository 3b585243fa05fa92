"""transformers' ViT, ViTMAE and Dinov2 (with registers), as on disk and, since 5.9, in memory.

Its ViTMSN, DeiT, I-JEPA and SimMIM encoders use the format of ViT too: the same blocks, with one more token (DeiT's for
distillation, read as a register) or no class token (I-JEPA).
"""

from __future__ import annotations

import math
from typing import Any

from PIL.Image import Resampling

from vit.checkpoints.formats.format import (
    HALVES,
    IMAGENET,
    Format,
    Hints,
    class_names,
    only_given,
    pair,
)
from vit.checkpoints.names import KeyRule, shared, table, within
from vit.checkpoints.reading import Source

# ---- Names -----------------------------------------------------------------------------------------------------------

ON_DISK = table("""
    attn.qkv.@      attention.attention.query.@ attention.attention.key.@ attention.attention.value.@
    attn.proj.@     attention.output.dense.@
""")
IN_MEMORY = table("""
    attn.qkv.@      attention.q_proj.@ attention.k_proj.@ attention.v_proj.@
    attn.proj.@     attention.o_proj.@
""")
NORMS = table("""
    norm1.@         layernorm_before.@
    norm2.@         layernorm_after.@
""")
MLP = shared("mlp.fc1.@ mlp.fc2.@")
MLP_ON_DISK = table("""
    mlp.fc1.@       intermediate.dense.@
    mlp.fc2.@       output.dense.@
""")
BODY = table("""
    cls_token           embeddings.cls_token
    pos_embed           embeddings.position_embeddings
    patch_embed.proj.@  embeddings.patch_embeddings.projection.@
    norm.@              layernorm.@
""")
DISTILLATION = table("reg_token embeddings.distillation_token")
VIT_BLOCK = (*ON_DISK, *IN_MEMORY, *NORMS, *MLP_ON_DISK, *MLP)
VIT_ENCODER = (
    *BODY,
    *within(VIT_BLOCK, "blocks.#.", "encoder.layer.#."),
    *within(VIT_BLOCK, "blocks.#.", "layers.#."),
)
HEAD = table("head.@ classifier.@")
DECODER = (
    *shared("decoder.mask_token"),
    *table("""
        decoder.pos_embed   decoder.decoder_pos_embed
        decoder.embed.@     decoder.decoder_embed.@
        decoder.norm.@      decoder.decoder_norm.@
        decoder.pred.@      decoder.decoder_pred.@      (pixels)
    """),
    *within(VIT_BLOCK, "decoder.blocks.#.", "decoder.decoder_layers.#."),
    *within(VIT_BLOCK, "decoder.blocks.#.", "decoder.decoder_encoder.layer.#."),
)
LAYER_SCALES = table("""
    ls1.gamma       layer_scale1.lambda1
    ls2.gamma       layer_scale2.lambda1
""")
DINOV2_BLOCK = (*shared("norm1.@ norm2.@"), *ON_DISK, *IN_MEMORY, *MLP, *LAYER_SCALES)
DINOV2_SWIGLU = table("""
    mlp.fc1.@       mlp.weights_in.@
    mlp.fc2.@       mlp.weights_out.@
    mlp.fc1.@       mlp.gate_proj.@ mlp.up_proj.@
    mlp.fc2.@       mlp.down_proj.@
""")
DINOV2_BODY = (*BODY, *table("reg_token embeddings.register_tokens"))


def _anywhere(rules: tuple[KeyRule, ...], *models: str) -> tuple[KeyRule, ...]:
    """Return a body's rules, with the model's name in front (in a task model) and without (in a bare one)."""
    return tuple(r for model in (*models, "") for r in within(rules, "", model))


# ---- Settings --------------------------------------------------------------------------------------------------------

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
USUAL = {"vit_mae": ("bicubic", 1.0), "deit": ("bicubic", 0.875), "vit_msn": ("bilinear", 1.0)}
"""Families whose published models use ImageNet's mean -> how they resize images, and the share that they keep."""
FILTERS = {kind.value: kind.name.lower() for kind in Resampling}


def huggingface_hints(source: Source) -> Hints:
    """Read config.json and preprocessor_config.json.

    Raises:
        CheckpointError: our encoder does not compute its activation.
    """
    config, processor = source.config, source.preprocessor
    if config.get("hidden_act", "gelu") != "gelu":
        raise source.error(
            f"the activation {config['hidden_act']!r} is not computed here, only gelu is"
        )
    encoder = {ours: config.get(theirs) for ours, theirs in ENCODER_SETTINGS.items()}
    decoder = {ours: config.get(theirs) for ours, theirs in DECODER_SETTINGS.items()}
    for key in ("image_size", "patch_size"):
        encoder[key] = pair(encoder[key]) or encoder[key]  # `Hints` refuses anything but a size

    labels = config.get("id2label") or {}
    labels = [
        labels[key] for key in sorted(labels, key=lambda key: int(key) if str(key).isdigit() else 0)
    ]

    # how the input is prepared
    mean, std = (processor.get(key) for key in ("image_mean", "image_std"))
    usual, share = None, 1.0 if processor else None
    if (
        not processor and config.get("model_type") in USUAL
    ):  # an encoder like ViT's, with other pictures
        (mean, std), (usual, share) = IMAGENET, USUAL[config["model_type"]]
    if processor.get("do_normalize") is False:
        mean, std = 0.0, 1.0
    channels = encoder["channels"] if type(encoder["channels"]) is int else 3
    mean, std = (
        [value] * channels if isinstance(value, int | float) else value for value in (mean, std)
    )
    resample, factor, notes = (
        processor.get("resample"),
        processor.get("rescale_factor", 1 / 255),
        [],
    )
    if processor.get("do_rescale") is False or not math.isclose(factor, 1 / 255):
        notes.append(
            "its preprocessor does not bring pixels from 0-255 to 0-1, as is done here before normalising"
        )
    size, crop = (processor.get(key) for key in ("size", "crop_size"))
    larger, kept = (_height(size), _height(crop)) if processor.get("do_center_crop") else (0, 0)
    squashed = isinstance(size, dict) and "height" in size and processor.get("do_resize", True)
    if squashed:
        notes.append("its preprocessor squashes pictures of another shape; here they are cropped")
    made = kept or (_height(size) if squashed else 0)
    said, _ = pair(config.get("image_size")) or (made, made)
    if made != said and made:
        what = f"its preprocessor makes images {made} pixels high, its settings say {said}"
        notes.append(f"{what}; image_size={made} does so here")
    return Hints(
        only_given(encoder),
        only_given(decoder) if "decoder_hidden_size" in config else {},
        norm_pix_loss=config.get("norm_pix_loss"),
        mean=None if mean is None else tuple(map(float, mean)),
        std=None if std is None else tuple(map(float, std)),
        interpolation=FILTERS.get(resample, f"filter {resample}")
        if resample is not None
        else usual,
        class_names=class_names(labels),
        notes=tuple(notes),
        crop_share=kept / larger if 0 < kept < larger else share,
    )


def _height(size: Any) -> int:
    """Return the height, or shorter side, to which a preprocessor resizes or crops; 0 if it names none."""
    value = size.get("shortest_edge", size.get("height")) if isinstance(size, dict) else size
    return value if type(value) is int else 0


# ---- Formats ---------------------------------------------------------------------------------------------------------

ANCHOR = r"embeddings\.patch_embeddings\.projection\.weight"

VIT_MAE = Format(
    name="Hugging Face ViTMAE",
    anchor=rf"(?:vit\.)?{ANCHOR}",
    marks=(r"decoder\.decoder_pred\.weight", r"decoder\.decoder_embed\.weight"),
    rules=(*_anywhere(VIT_ENCODER, "vit."), *DECODER),
    hints=huggingface_hints,
    norm_eps=1e-12,
)
VIT = Format(
    name="Hugging Face ViT",
    anchor=rf"(?:(?:vit|deit|ijepa)\.)?{ANCHOR}",
    marks=(r"((vit|deit|ijepa)\.)?(encoder\.layer|layers)\.\d+\.layernorm_before\.weight",),
    rules=(*_anywhere((*VIT_ENCODER, *DISTILLATION), "vit.", "deit.", "ijepa."), *HEAD),
    dropped=(
        (r"(.*\.)?pooler\.dense\..*", "the pooler, a tanh layer that this encoder does not have"),
        (
            r"(cls|distillation)_classifier\..*",
            "DeiT's two heads, of two tokens, whose mean is its answer; this encoder has one",
        ),
        (
            r"(.*\.)?embeddings\.mask_token|decoder\.0\..*",
            "SimMIM's token for hidden patches and its decoder, a linear map",
        ),
    ),
    hints=huggingface_hints,
    global_pool="token",
    norm_eps=1e-12,
    mean=HALVES[0],
    std=HALVES[1],
    interpolation="bilinear",
    other_inputs="as Google's ViT does, but DINO's and DeiT's use ImageNet's",
)
DINOV2 = Format(
    name="Hugging Face Dinov2",
    anchor=rf"(?:dinov2(?:_with_registers)?\.)?{ANCHOR}",
    marks=(r"(dinov2(_with_registers)?\.)?encoder\.layer\.\d+\.layer_scale1\.lambda1",),
    rules=_anywhere(
        (*DINOV2_BODY, *within((*DINOV2_BLOCK, *DINOV2_SWIGLU), "blocks.#.", "encoder.layer.#.")),
        "dinov2.",
        "dinov2_with_registers.",
    ),
    dropped=(
        (
            r"(.*\.)?embeddings\.mask_token",
            "DINOv2's token for hidden patches, used only in its training",
        ),
        (
            r"classifier\..*",
            "Dinov2's classifier reads the class token and the mean of the patches, this head one of them",
        ),
    ),
    hints=huggingface_hints,
)
