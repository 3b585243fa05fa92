"""timm's vision transformers, whose names are also ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vit.checkpoints.formats.format import Format, Hints
from vit.checkpoints.formats.outgoing import Outgoing
from vit.checkpoints.names import KeyRule, shared, table, within
from vit.checkpoints.origin import Origin
from vit.checkpoints.reading import Source
from vit.config import ViTConfig
from vit.inputs import Normalization, Preparation
from vit.mae import Model

BLOCK = shared(
    "norm1.@ attn.qkv.@ attn.q_norm.@ attn.k_norm.@ attn.proj.@ ls1.gamma norm2.@ mlp.fc1.@ mlp.fc2.@ ls2.gamma"
)
OUTSIDE_BLOCKS = shared("cls_token reg_token pos_embed patch_embed.proj.@ norm.@ fc_norm.@ head.@")
DEIT_III = table("""
    blocks.#.ls1.gamma  blocks.#.gamma_1
    blocks.#.ls2.gamma  blocks.#.gamma_2
""")
# a linear probe: a batch norm, in MAE's code without scale and shift, then the classifier
_WEIGHT = ("head.1.weight", "head.0.running_var")
_BIAS = (*_WEIGHT, "head.0.running_mean", "head.1.bias")
LINEAR_PROBE = (
    KeyRule("head.weight", (*_WEIGHT, "head.0.weight"), "normalised"),
    KeyRule("head.bias", (*_BIAS, "head.0.weight", "head.0.bias"), "normalised"),
    KeyRule("head.weight", _WEIGHT, "normalised"),
    KeyRule("head.bias", _BIAS, "normalised"),
)
BATCHES = (r"head\.0\.num_batches_tracked", "how many batches its batch norm has seen")
ENCODER = (*OUTSIDE_BLOCKS, *within(BLOCK, "blocks.#.", "blocks.#."))
ANCHOR = r"patch_embed\.proj\.weight"


def timm_hints(source: Source) -> Hints:
    """Read timm's config.json, a model in memory, or the options of timm's train.py, whichever there is: see `timm_models`."""
    described, trained = source.module is not None or "architecture" in source.config, "args.crop_pct" in source.other
    if not described and not trained:
        return Hints()
    from vit.checkpoints.formats import timm_models  # with timm, which takes seconds to import

    return timm_models.hints(source) if described else timm_models.training_hints(source)


TIMM = Format(
    name="timm",
    anchor=ANCHOR,
    rules=(*ENCODER, *DEIT_III, *LINEAR_PROBE),
    dropped=(
        BATCHES,
        (r"head\.\d+\..*", "a head of several layers, as MoCo v3's projection; this encoder has one"),
    ),
    hints=timm_hints,
    other_inputs="as DeiT, DINO and MAE do, but timm's own ViTs use 0.5, 0.5 and crop_share 0.9",
)


SAME_NAME = (
    "patch_size embed_dim depth num_heads mlp_ratio class_token no_embed_class qkv_bias qk_norm global_pool fc_norm"
)
OTHER_NAME = {"img_size": "image_size", "in_chans": "channels", "reg_tokens": "registers", "init_values": "layer_scale"}
MODEL_ARGS = {key: key for key in SAME_NAME.split()} | OTHER_NAME
"""timm's model arguments -> our settings."""
TIMM_EPS = 1e-6
"""The eps of timm's norms, which no argument changes."""


def same_in_timm(settings: ViTConfig) -> bool:
    """Whether timm's vision transformer computes exactly this."""
    return settings.qkv == "linear" and settings.norm_eps == TIMM_EPS


def timm_config(
    settings: ViTConfig, normalize: Normalization, prepared: Preparation, class_names: Sequence[str]
) -> dict[str, Any]:
    """Return timm's config.json for an encoder, which transformers' TimmWrapper reads too.

    Args:
        settings: the encoder's.
        normalize, prepared: of its input.
        class_names: of the head, or of the training data.
    """
    model_args = {theirs: getattr(settings, ours) for theirs, ours in MODEL_ARGS.items()}
    # The hidden width is ratio x width: rounded here, but truncated in timm, where it includes both gate and value.
    gated, width = settings.mlp == "swiglu", settings.embed_dim
    hidden = round(width * settings.mlp_ratio) * (2 if gated else 1)
    ratio = hidden / width
    model_args["mlp_ratio"] = ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)
    # None would keep the architecture's own; 0 means none, but ours may begin at 0
    model_args["init_values"] = 0 if settings.layer_scale is None else settings.layer_scale or 1e-5
    return {
        # any of timm's names of the kind will do, since model_args states everything that could differ
        "architecture": "vit_giant_patch14_dinov2" if gated else "vit_base_patch16_224",
        "num_classes": settings.num_classes,  # not in model_args, because TimmWrapper passes it separately
        "num_features": settings.embed_dim,
        "global_pool": settings.global_pool,
        "model_args": model_args,
        "pretrained_cfg": {
            "input_size": [settings.channels, *settings.image_size],
            "fixed_input_size": True,
            "interpolation": prepared.interpolation,
            "crop_pct": prepared.crop_share,
            "crop_mode": "center",
            "mean": normalize.mean,
            "std": normalize.std,
            "num_classes": settings.num_classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
        **({"label_names": list(class_names)} if 0 < settings.num_classes == len(class_names) else {}),
        "torch_dtype": "float32",  # for transformers, even if the weights are in half precision
    }


def to_timm(model: Model, origin: Origin) -> Outgoing:
    """Write the encoder for `timm.create_model("local-dir:FOLDER")`."""
    out = Outgoing(model, "timm")
    out.require(qkv="linear")
    out.compare_eps(TIMM_EPS)
    out.rename(ENCODER, {"decoder.": "timm's vision transformer has no decoder"})
    out.config = timm_config(model.encoder.config, origin.normalize, origin.prepared, origin.class_names)
    if model.encoder.config.num_classes and origin.problem_type:
        out.notes.append(f"its head is for {origin.problem_type}: timm's settings have no place for that")
    return out
