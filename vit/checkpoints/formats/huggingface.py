"""transformers' ViT, ViTMAE and Dinov2 (with registers), as on disk and, since 5.9, in memory.

Its ViTMSN, DeiT, I-JEPA and SimMIM encoders use the format of ViT too: the same blocks, with one
more token (DeiT's for distillation, read as a register) or no class token (I-JEPA).
"""

from __future__ import annotations

import re
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
from vit.checkpoints.reading import Source, shorten, size_text

# ---- Names ---------------------------------------------------------------------------------------

# attention, whose matrices have other names in memory
ON_DISK = table("""
    attn.qkv.@     attention.attention.query.@ attention.attention.key.@ attention.attention.value.@
    attn.proj.@    attention.output.dense.@
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
# model types whose code computes what this encoder does
PLAIN = ("vit", "vit_mae", "vit_msn", "deit", "ijepa", "dinov2", "dinov2_with_registers")
# numbers in preprocessor_config.json -> names of filters
FILTERS = {kind.value: kind.name.lower() for kind in Resampling}
# the steps of an image processor, unless its file or its class says otherwise
STEPS: dict[str, Any] = {
    "do_resize": True,
    "do_center_crop": False,
    "crop_size": 224,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
}
# image processors that have no other steps -> what their files need not say
_CLIP: dict[str, Any] = {
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "resample": Resampling.BICUBIC,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
_VIT: dict[str, Any] = {
    "size": {"height": 224, "width": 224},
    "resample": Resampling.BILINEAR,
    "image_mean": 0.5,
    "image_std": 0.5,
}
_DEIT: dict[str, Any] = _VIT | {
    "size": {"height": 256, "width": 256},
    "do_center_crop": True,
    "resample": Resampling.BICUBIC,
}
PROCESSORS = {"ViT": _VIT, "DeiT": _DEIT, "Bit": _CLIP, "CLIP": _CLIP}


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

    # other types have the same names for their tensors, as RF-DETR's, whose attention has windows
    differences = inputs.differences
    model_type = config.get("model_type")
    if model_type not in (None, *PLAIN):
        difference = (
            f"its type, {shorten(str(model_type))}, is not known here: its code may compute, or "
            "prepare its images by, something else"
        )
        differences = (difference, *differences)

    # the names of the classes, by their numbers
    labels = config.get("id2label") or {}
    return replace(
        inputs,
        encoder=only_given(encoder),
        decoder=only_given(decoder),
        differences=differences,
        norm_pix_loss=config.get("norm_pix_loss"),
        class_names=class_names(labels[key] for key in in_order(labels)),
    )


def _read_preprocessor(source: Source, channels: int) -> Hints:
    """Return how preprocessor_config.json prepares the input, and what of it is not done here.

    Args:
        source: the checkpoint.
        channels: of its images.
    """
    settings, differences = _complete(source)

    # Their pixels from 0 to 255 are multiplied by a factor, then normalised. Ours are from 0 to 1,
    # so mean and deviation are divided by 255 times the factor.
    scale = 255.0
    if settings["do_rescale"]:
        scale *= settings["rescale_factor"]
    mean = (0.0,) * channels
    std = (1.0,) * channels
    if settings["do_normalize"]:
        mean = _numbers(settings["image_mean"], channels)
        std = _numbers(settings["image_std"], channels)

    # how pictures are resized: one size of two sides squashes, unlike the shorter side alone
    size = settings["size"]
    squash = bool(settings["do_resize"]) and "height" in size
    if settings["do_resize"] and size.keys() not in ({"height", "width"}, {"shortest_edge"}):
        differences.append(
            f"its preprocessor resizes pictures by {shorten(' and '.join(size))}; "
            "here they are cropped to the model's shape"
        )
    whole = (0, 0)
    if settings["do_resize"]:
        edge = size.get("shortest_edge", 0)
        whole = (size.get("height", edge), size.get("width", edge))

    # how much of that is kept
    made = whole
    crop_share = 1.0
    if settings["do_center_crop"]:
        made = (settings["crop_size"]["height"], settings["crop_size"]["width"])
        if not settings["do_resize"]:
            differences.append(
                "its preprocessor cuts out the middle of pictures as they are; "
                "here they are resized first"
            )
        elif made[0] > whole[0] or made[1] > whole[1]:
            differences.append("its preprocessor adds a black border, which is not done here")
        else:
            crop_share = made[0] / whole[0]
            if abs(crop_share * whole[1] - made[1]) >= 1:
                differences.append(
                    f"its preprocessor keeps {size_text(made)} of {size_text(whole)} pixels; "
                    "here the same share of height and width is kept, the height's"
                )

    # The settings may say another size, at which the model was made.
    prepared_size = None
    if all(made) and pair(source.config.get("image_size")) not in (None, made):
        prepared_size = made
    return Hints(
        mean=tuple(value / scale for value in mean),
        std=tuple(value / scale for value in std),
        interpolation=FILTERS.get(settings["resample"], f"filter {settings['resample']}"),
        crop_share=crop_share,
        squash=squash,
        prepared_size=prepared_size,
        differences=tuple(differences),
    )


def _complete(source: Source) -> tuple[dict[str, Any], list[str]]:
    """Return all settings of a preprocessor, and what its class does that is not done here.

    The file may leave settings to its class. Of its sizes, the sides are returned.
    """
    # what the file says; a step that is null is not done
    given = {}
    for key, value in source.preprocessor.items():
        if value is not None or key.startswith("do_"):
            given[key] = value

    # its class, by its name or by that of the model
    usual = {"deit": "DeiT", "dinov2": "Bit", "dinov2_with_registers": "Bit"}
    name = usual.get(str(source.config.get("model_type")), "ViT")
    name = str(given.get("image_processor_type", given.get("feature_extractor_type", name)))
    kind = re.sub(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", name)
    differences = []
    if kind not in PROCESSORS:
        differences.append(
            f"its preprocessor is a {shorten(name)}, whose steps are not known here; "
            "mean, std and crop_share set what is done"
        )
    if given.get("do_pad"):
        differences.append("its preprocessor pads pictures, which is not done here")

    # its settings
    settings = STEPS | PROCESSORS.get(kind, _VIT)
    is_square = "height" in settings["size"]
    settings |= given
    settings["size"] = _sides(settings["size"], is_square)
    settings["crop_size"] = _sides(settings["crop_size"], True)
    return settings, differences


def _numbers(values: Any, channels: int) -> tuple[float, ...]:
    """Return a mean or deviation as numbers, one per channel."""
    if isinstance(values, int | float):
        return (float(values),) * channels
    return tuple(map(float, values))


def _sides(size: Any, is_square: bool) -> dict[str, int]:
    """Return a size as a dict of sides: height and width, or shortest_edge, or others.

    Args:
        size: as in the file.
        is_square: of a single number; else it is the shorter side.

    Raises:
        ValueError: it is no size.
    """
    if type(size) is int and not is_square:
        return {"shortest_edge": size}
    sides = pair(size)
    if sides is not None:
        return {"height": sides[0], "width": sides[1]}
    if not isinstance(size, dict):
        raise ValueError(f"the size of its preprocessor is {size!r}")
    result = {}
    for key, value in size.items():
        if value is not None:
            result[key] = value
    if not all(type(value) is int and value > 0 for value in result.values()):
        raise ValueError(f"the size of its preprocessor is {size!r}")
    return result


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
    other_inputs="Google's ViT uses these; DINO's and DeiT's use ImageNet's",
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
