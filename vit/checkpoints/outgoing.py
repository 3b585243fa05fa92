"""Prepare a model for timm or transformers, by the tables that also read their files.

Both functions return the tensors, the content of config.json and that of preprocessor_config.json
(empty for none), and notes on what was left out, or is computed differently there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from vit.checkpoints.formats.huggingface import (
    DECODER,
    DECODER_SETTINGS,
    ENCODER_SETTINGS,
    FILTERS,
    HEAD,
    PROCESSORS,
    VIT_ENCODER,
)
from vit.checkpoints.formats.timm import ENCODER
from vit.checkpoints.names import KeyRule, map_out, within
from vit.config import ViTConfig
from vit.errors import CheckpointError
from vit.mae import Model
from vit.weights import TIMM_EPS, Origin, named_tensors, timm_config

Outgoing = tuple[dict[str, Tensor], dict[str, Any], dict[str, Any], list[str]]


def _require(target: str, settings: ViTConfig, required: Mapping[str, Any]) -> None:
    """Refuse a model without these settings, which the target computes and no name shows."""
    for key, value in required.items():
        if getattr(settings, key) != value:
            raise CheckpointError(
                f"{target} computes {key} {value}, this model has {getattr(settings, key)}, "
                "so it cannot be written"
            )


def _renamed(
    target: str, model: Model, rules: Sequence[KeyRule], optional: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors by the target's table, and a note on those that are left out.

    Args:
        target: for the message.
        model: the model.
        rules: the table.
        optional: the part that may be left out, by the prefix of its names.
    """
    state = {name: value.cpu() for name, value in named_tensors(model).items()}
    tensors, unmapped = map_out(rules, state, channels=model.encoder.config.channels)
    homeless = [name for name in unmapped if not name.startswith(optional)]
    if homeless:
        raise CheckpointError(
            f"{target} has no place for {', '.join(homeless[:4])}: it does not compute that"
        )
    if unmapped:
        reason = f"{target} has no such part, or computes it otherwise"
        return tensors, [f"left out, {len(unmapped)} tensors ({unmapped[0]}, ...): {reason}"]
    return tensors, []


def to_timm(model: Model, origin: Origin) -> Outgoing:
    """Write the encoder for `timm.create_model("local-dir:FOLDER")`."""
    settings = model.encoder.config
    _require("timm", settings, {"qkv": "linear"})
    tensors, notes = _renamed("timm", model, ENCODER, "decoder.")
    if settings.norm_eps != TIMM_EPS:
        notes.append(
            f"the norms of timm have an eps of {TIMM_EPS:g}, this model's {settings.norm_eps}: "
            "features differ slightly"
        )
    # timm itself rounds the size from which it crops
    config = timm_config(settings, origin)
    return tensors, config, {}, notes


# ---- transformers --------------------------------------------------------------------------------


def to_huggingface(model: Model, origin: Origin) -> Outgoing:
    """Write for transformers' `from_pretrained`: a ViTMAE if it is an autoencoder, else a ViT."""
    # the settings that both have; one number is enough for a square
    settings = model.encoder.config
    config = {theirs: getattr(settings, ours) for ours, theirs in ENCODER_SETTINGS.items()}
    config |= {"hidden_act": "gelu", "qkv_bias": settings.qkv_bias, "torch_dtype": "float32"}
    config["intermediate_size"] = settings.hidden_dim
    for key in ("image_size", "patch_size"):
        side, width = config[key]
        if side == width:
            config[key] = side

    # the class's own settings, and the tensors
    required = {"class_token": True, "qkv": "linear", "no_embed_class": False, "mlp": "gelu"}
    if model.decoder is None:
        target = "transformers' ViT"
        rules = _vit(settings, origin, config)
    else:
        target = "transformers' ViTMAE"
        rules = _vit_mae(target, model, config)
    _require(target, settings, required)
    tensors, notes = _renamed(target, model, rules, "head.")
    if settings.global_pool == "avg":
        notes.append(
            "its features are the mean of the patches, which transformers' settings cannot say: "
            "load it again with global_pool avg"
        )

    # how the input is prepared: resized, then cropped to the model's size
    height, width = settings.image_size
    share = origin.prepared.crop_share
    size = {"shortest_edge": round(height / share)}
    if height != width or origin.squash:
        size = {"height": round(height / share), "width": round(width / share)}
    if height != width and not origin.squash:
        notes.append("transformers squashes images of another shape; this package crops them")
    preprocessor = PROCESSORS["Bit"] | {
        "image_processor_type": "BitImageProcessor",
        "size": size,
        "crop_size": {"height": height, "width": width},
        "resample": {name: number for number, name in FILTERS.items()}[origin.interpolation],
        "image_mean": origin.normalize.mean,
        "image_std": origin.normalize.std,
    }
    return tensors, config, preprocessor, notes


def _vit_mae(target: str, model: Model, config: dict[str, Any]) -> tuple[KeyRule, ...]:
    """Add ViTMAE's own settings to config.json, and return its table."""
    assert model.decoder is not None
    settings = model.encoder.config
    # one setting there is shared by all layers, so the decoder's must be the encoder's; only ViT
    # takes shapes other than squares
    for key in ("image_size", "patch_size"):
        side = getattr(settings, key)[0]
        _require(target, settings, {key: (side, side)})
    decoder = model.decoder.config.blocks(settings)
    same = {"qkv_bias": settings.qkv_bias, "norm_eps": settings.norm_eps}
    _require(target, decoder, {"qkv": "linear", "mlp": "gelu", **same})
    config |= {
        "model_type": "vit_mae",
        "architectures": ["ViTMAEForPreTraining"],
        "decoder_intermediate_size": decoder.hidden_dim,
        "norm_pix_loss": model.norm_pix_loss,
    }
    for ours, theirs in DECODER_SETTINGS.items():
        config[theirs] = getattr(model.decoder.config, ours)
    return (*within(VIT_ENCODER, "", "vit."), *DECODER)


def _vit(settings: ViTConfig, origin: Origin, config: dict[str, Any]) -> tuple[KeyRule, ...]:
    """Add ViT's own settings to config.json, and return its table.

    Its head reads the class token; one that reads the mean of the patches is left out.
    """
    config["model_type"] = "vit"
    if settings.num_classes == 0 or settings.global_pool != "token":
        config["architectures"] = ["ViTModel"]
        return VIT_ENCODER

    # a classifier, with the names of its classes
    config["architectures"] = ["ViTForImageClassification"]
    labels = origin.class_names or tuple(f"LABEL_{i}" for i in range(settings.num_classes))
    config["id2label"] = dict(enumerate(labels))
    config["label2id"] = {label: i for i, label in enumerate(labels)}
    return (*within(VIT_ENCODER, "", "vit."), *HEAD)
