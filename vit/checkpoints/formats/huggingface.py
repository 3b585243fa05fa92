"""transformers' ViT, ViTMAE and Dinov2 (with registers), as on disk and, since 5.9, in memory.

Its ViTMSN, DeiT, I-JEPA and SimMIM encoders use the format of ViT too: the same blocks, with one
more token (DeiT's for distillation, read as a register) or no class token (I-JEPA).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from PIL.Image import Resampling

from vit.checkpoints.formats.format import (
    HALVES,
    IMAGENET,
    Format,
    Hints,
    class_names,
    in_order,
    only_given,
    pair,
)
from vit.checkpoints.names import KeyRule, shared, table, within
from vit.checkpoints.reading import Source

# ---- Names ---------------------------------------------------------------------------------------

# attention, whose matrices have other names in memory
ON_DISK = table("""
    attn.qkv.@      attention.attention.query.@ attention.attention.key.@ attention.attention.value.@
    attn.proj.@     attention.output.dense.@
""")
IN_MEMORY = table("""
    attn.qkv.@      attention.q_proj.@ attention.k_proj.@ attention.v_proj.@
    attn.proj.@     attention.o_proj.@
""")

# the rest of a block of ViT
NORMS = table("""
    norm1.@         layernorm_before.@
    norm2.@         layernorm_after.@
""")
MLP = shared("mlp.fc1.@ mlp.fc2.@")
MLP_ON_DISK = table("""
    mlp.fc1.@       intermediate.dense.@
    mlp.fc2.@       output.dense.@
""")

# outside of the blocks, and an encoder with its blocks under either of their names
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

# ViTMAE's decoder, with its blocks under either of their names; a patch is flattened channel last
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

# Dinov2, whose SwiGLU has its gates in front of its values, in one matrix or in two
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
    """Return a body's rules for a task model, with one of the `models` in front, and a bare one."""
    result: list[KeyRule] = []
    for model in (*models, ""):
        result += within(rules, "", model)
    return tuple(result)


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
# numbers in preprocessor_config.json -> names of filters
FILTERS = {kind.value: kind.name.lower() for kind in Resampling}


def huggingface_hints(source: Source) -> Hints:
    """Read config.json and preprocessor_config.json.

    Raises:
        CheckpointError: our encoder does not compute its activation.
    """
    config = source.config
    if config.get("hidden_act", "gelu") != "gelu":
        raise source.error(
            f"the activation {config['hidden_act']!r} is not computed here, only gelu is"
        )

    # the architecture; `Hints` refuses sizes that are none
    encoder = {ours: config.get(theirs) for ours, theirs in ENCODER_SETTINGS.items()}
    for key in ("image_size", "patch_size"):
        encoder[key] = pair(encoder[key]) or encoder[key]
    decoder = {}
    if "decoder_hidden_size" in config:
        decoder = {ours: config.get(theirs) for ours, theirs in DECODER_SETTINGS.items()}

    # the input, whose preparation a preprocessor describes; else it may be known for the family
    channels = encoder["channels"] if type(encoder["channels"]) is int else 3
    if source.preprocessor:
        inputs = _read_preprocessor(source, channels)
    elif config.get("model_type") in USUAL:
        interpolation, crop_share = USUAL[config["model_type"]]
        inputs = Hints(
            mean=IMAGENET[0], std=IMAGENET[1], interpolation=interpolation, crop_share=crop_share
        )
    else:
        inputs = Hints()

    # the names of the classes, by their numbers
    labels = config.get("id2label") or {}
    return replace(
        inputs,
        encoder=only_given(encoder),
        decoder=only_given(decoder),
        norm_pix_loss=config.get("norm_pix_loss"),
        class_names=class_names(labels[key] for key in in_order(labels)),
    )


def _read_preprocessor(source: Source, channels: int) -> Hints:
    """Return how preprocessor_config.json prepares the input, and notes on what is not done here.

    Args:
        source: the checkpoint.
        channels: of its images.
    """
    processor = source.preprocessor
    notes = []

    # the values of the pixels; without normalising, they stay from 0 to 1
    mean = processor.get("image_mean")
    std = processor.get("image_std")
    if processor.get("do_normalize") is False:
        mean = 0.0
        std = 1.0
    factor = processor.get("rescale_factor", 1 / 255)
    if processor.get("do_rescale") is False or not math.isclose(factor, 1 / 255):
        notes.append(
            "its preprocessor does not bring pixels from 0-255 to 0-1, as is done here before "
            "normalising"
        )

    # Size and shape. A crop keeps a share of the resized image. A size of two sides squashes,
    # unlike one that names the shorter side.
    resized = _height(processor.get("size"))
    height = 0
    crop_share = 1.0
    if processor.get("do_center_crop"):
        height = _height(processor.get("crop_size"))
        if 0 < height < resized:
            crop_share = height / resized
    size = processor.get("size")
    if isinstance(size, dict) and "height" in size and processor.get("do_resize", True):
        notes.append("its preprocessor squashes pictures of another shape; here they are cropped")
        height = height or resized

    # The settings may say another size, at which the model was made.
    image_size = pair(source.config.get("image_size"))
    if height and image_size is not None and image_size[0] != height:
        notes.append(
            f"its preprocessor makes images {height} pixels high, its settings say "
            f"{image_size[0]}; image_size={height} does so here"
        )

    # the filter; `vit.checkpoints.loading` notes one that is not supported
    interpolation = None
    number = processor.get("resample")
    if number is not None:
        interpolation = FILTERS.get(number, f"filter {number}")
    return Hints(
        mean=_numbers(mean, channels),
        std=_numbers(std, channels),
        interpolation=interpolation,
        crop_share=crop_share,
        notes=tuple(notes),
    )


def _numbers(values: Any, channels: int) -> tuple[float, ...] | None:
    """Return a mean or deviation as numbers, one per channel; None if there is none."""
    if values is None:
        return None
    if isinstance(values, int | float):
        return (float(values),) * channels
    return tuple(map(float, values))


def _height(size: Any) -> int:
    """Return the height, or shorter side, to which images are resized or cropped; 0 for none."""
    height = size
    if isinstance(size, dict):
        height = size.get("shortest_edge", size.get("height"))
    if type(height) is not int:
        return 0
    return height


# ---- Formats -------------------------------------------------------------------------------------

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
            "SimMIM's token for masked patches and its decoder, a linear map",
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
            "DINOv2's token for masked patches, used only in its training",
        ),
        (
            r"classifier\..*",
            "Dinov2's classifier reads the class token and the mean of the patches, "
            "this head one of them",
        ),
    ),
    hints=huggingface_hints,
)
