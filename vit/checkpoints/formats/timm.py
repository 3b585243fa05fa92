"""timm's vision transformers; their names are ours."""

from __future__ import annotations

import math
from typing import Any

from vit.checkpoints.formats.format import Format, Hints
from vit.checkpoints.formats.outgoing import Outgoing, renamed, require
from vit.checkpoints.names import shared, table, within
from vit.checkpoints.origin import Origin
from vit.checkpoints.reading import Source
from vit.mae import Model

BLOCK = shared(
    "norm1.@ attn.qkv.@ attn.q_norm.@ attn.k_norm.@ attn.proj.@ ls1.gamma norm2.@ mlp.fc1.@ mlp.fc2.@ ls2.gamma"
)
OUTSIDE_BLOCKS = shared("cls_token reg_token pos_embed patch_embed.proj.@ norm.@ fc_norm.@ head.@")
DEIT_III = table("""
    blocks.#.ls1.gamma  blocks.#.gamma_1
    blocks.#.ls2.gamma  blocks.#.gamma_2
""")
ENCODER = (*OUTSIDE_BLOCKS, *within(BLOCK, "blocks.#.", "blocks.#."))
ANCHOR = r"patch_embed\.proj\.weight"


def timm_hints(source: Source) -> Hints:
    """Read timm's config.json, if there is one: see `timm_models.hints`."""
    if "architecture" not in source.config:
        return Hints()
    from vit.checkpoints.formats import timm_models  # with timm, which takes seconds to import

    return timm_models.hints(source)


TIMM = Format(
    name="timm",
    anchor=ANCHOR,
    rules=(*ENCODER, *DEIT_III),
    dropped=((r"head\.\d+\..*", "a projection head of the training (MoCo v3)"),),
    hints=timm_hints,
)


MODEL_ARGS = {
    key: key
    for key in (
        "img_size",
        "patch_size",
        "in_chans",
        "embed_dim",
        "depth",
        "num_heads",
        "mlp_ratio",
        "class_token",
        "reg_tokens",
        "no_embed_class",
        "qkv_bias",
        "qk_norm",
        "init_values",
        "global_pool",
        "fc_norm",
        "num_classes",
    )
} | {"img_size": "image_size", "in_chans": "channels", "reg_tokens": "registers", "init_values": "layer_scale"}
"""timm's arguments of a model, and our settings."""


def to_timm(model: Model, origin: Origin) -> Outgoing:
    """Write the encoder for `timm.create_model("local-dir:FOLDER")`."""
    settings, notes = model.encoder.config, []
    require(model, "timm", qkv="linear")
    gated = settings.mlp == "swiglu"
    if settings.norm_eps != 1e-6:
        notes.append(f"timm's norms have an eps of 1e-6, this model's {settings.norm_eps}: features differ slightly")
    tensors = renamed(model, ENCODER, "timm", {"decoder.": "timm's vision transformer has no decoder"}, notes)
    model_args = {theirs: getattr(settings, ours) for theirs, ours in MODEL_ARGS.items()}
    hidden = model.encoder.blocks[0].mlp.fc1.out_features  # timm counts gate and value, and cuts off where we round
    ratio = hidden / settings.embed_dim
    model_args["mlp_ratio"] = ratio if int(settings.embed_dim * ratio) == hidden else math.nextafter(ratio, math.inf)
    config: dict[str, Any] = {
        # Any of timm's names of the kind will do: all that could differ stands in model_args.
        "architecture": "vit_giant_patch14_dinov2" if gated else "vit_base_patch16_224",
        "num_classes": settings.num_classes,
        "num_features": settings.embed_dim,
        "global_pool": settings.global_pool,
        "model_args": model_args,
        "pretrained_cfg": {
            "input_size": [settings.channels, *settings.image_size],
            "fixed_input_size": True,
            "interpolation": origin.interpolation,
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": origin.normalize.mean,
            "std": origin.normalize.std,
            "num_classes": settings.num_classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "license": "apache-2.0",
        },
    }
    if settings.num_classes and len(origin.class_names) == settings.num_classes:
        config["label_names"] = list(origin.class_names)
    return Outgoing(tensors, config, notes=notes)
