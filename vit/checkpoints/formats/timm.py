"""timm's vision transformers; their names are ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from vit.checkpoints.formats.format import Format, Hints, only_given
from vit.checkpoints.formats.outgoing import Outgoing, renamed, require
from vit.checkpoints.names import row, within
from vit.checkpoints.origin import Origin
from vit.checkpoints.reading import CheckpointError, Source, shown
from vit.mae import Model

BLOCK = tuple(
    row(name)
    for name in (
        "norm1.@", "attn.qkv.@", "attn.q_norm.@", "attn.k_norm.@", "attn.proj.@", "ls1.gamma",
        "norm2.@", "mlp.fc1.@", "mlp.fc2.@", "ls2.gamma",
    )
)  # fmt: skip
OUTSIDE_BLOCKS = tuple(
    row(name) for name in ("cls_token", "reg_token", "pos_embed", "patch_embed.proj.@", "norm.@", "fc_norm.@", "head.@")
)
ENCODER = (*OUTSIDE_BLOCKS, *within(BLOCK, "blocks.#.", "blocks.#."))
ANCHOR = r"patch_embed\.proj\.weight"
ARGUMENTS = frozenset((
    "img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim", "depth", "num_heads", "mlp_ratio",
    "qkv_bias", "qk_norm", "scale_attn_norm", "scale_mlp_norm", "proj_bias", "init_values", "class_token", "pos_embed",
    "no_embed_class", "reg_tokens", "pre_norm", "final_norm", "fc_norm", "pool_include_prefix", "dynamic_img_size",
    "dynamic_img_pad", "drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate",
    "drop_path_rate", "weight_init", "fix_init", "embed_norm_layer", "norm_layer", "act_layer", "attn_layer",
))  # fmt: skip
"""The arguments of a model that may stand in a config.json. `timm.create_model` takes more, such as the path of a
checkpoint, which it would unpickle."""


def timm_hints(source: Source) -> Hints:
    """What timm's config.json says: the architecture's name, its changed arguments, and the input's normalisation.

    Raises:
        CheckpointError: an architecture that timm does not know or our encoder does not compute.
    """
    import timm

    config = source.config
    name = config.get("architecture")
    if name is None:
        return Hints({}, {})
    if not isinstance(name, str) or not timm.is_model(name):
        raise CheckpointError(f"{source.path}: config.json names the architecture {name!r}, which timm does not know")
    _require_plain(name, str(source.path))
    arguments: dict[str, Any] = config.get("model_args") or {}
    if not isinstance(arguments, dict):
        raise CheckpointError(f"{source.path}: model_args of config.json is no JSON object")
    for key in ("num_classes", "global_pool"):
        if key in config:
            arguments = {key: config[key]} | arguments
    if unknown := sorted(arguments.keys() - ARGUMENTS):
        raise CheckpointError(
            f"{source.path}: model_args of config.json has {shown(unknown[0])}, which is no setting of the architecture"
        )
    if not all(
        isinstance(part, str | int | float | None)
        for value in arguments.values()
        for part in (value if isinstance(value, list) else [value])
    ):
        raise CheckpointError(f"{source.path}: model_args of config.json can be plain values only")
    depth = sum(key.endswith(".norm1.weight") for key in source.tensors)
    if not isinstance(arguments.get("depth", 0), int) or arguments.get("depth", 0) > depth:  # built before compared
        raise CheckpointError(f"{source.path}: config.json says {arguments['depth']} blocks, the weights have {depth}")
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    settings = config.get("pretrained_cfg") or config  # on its hub, older folders have no level in between
    settings = {**settings, "label_names": config.get("label_names") or settings.get("label_names")}
    try:
        with torch.device("meta"):  # shapes without the memory
            model = timm.create_model(name, pretrained=False, **arguments)
    except Exception as error:  # timm raises nearly anything on arguments that make no model
        said = shown(str(error), 200)
        raise CheckpointError(f"{source.path}: timm cannot build {name} by config.json: {said}") from error
    return hints_of_model(model, settings, name)


def _require_plain(name: str, where: str) -> None:
    """Refuse what is no plain vision transformer before it is built or fetched."""
    from timm.models import model_entrypoint

    home = model_entrypoint(name).__module__
    if home not in ("timm.models.vision_transformer", "timm.models.deit"):
        raise CheckpointError(
            f"{where}: timm's {name} is no plain vision transformer (it is of {home}); only those load"
        )


def hints_of_model(model: nn.Module, settings: dict[str, Any], name: str) -> Hints:
    """What a model of timm says about itself.

    Args:
        model: built by timm.
        settings: its pretrained_cfg: mean, std, interpolation, label_names.
        name: for messages.

    Raises:
        CheckpointError: it is not one that our encoder computes.
    """
    from timm.layers import GluMlp, Mlp
    from timm.models.vision_transformer import Attention, Block, VisionTransformer

    def refuse(what: str) -> CheckpointError:
        return CheckpointError(f"timm's {name} cannot be loaded: it has {what}, which this encoder does not compute")

    if type(model) is not VisionTransformer:
        raise refuse(f"the class {type(model).__name__}")
    block = model.blocks[0]
    if type(block) is not Block or type(block.attn) is not Attention:
        raise refuse(f"blocks of another kind ({type(block).__name__}, {type(block.attn).__name__})")
    if not isinstance(model.norm_pre, nn.Identity):
        raise refuse("a norm before its blocks (CLIP)")
    if model.global_pool not in ("token", "avg", "") or model.attn_pool is not None or model.pool_include_prefix:
        raise refuse(f"another pooling ({model.global_pool!r})")
    if model.pos_embed is None:
        raise refuse("no position table")
    gated = isinstance(block.mlp, GluMlp) and isinstance(block.mlp.act, nn.SiLU) and not block.mlp.gate_last
    if not gated and not (
        isinstance(block.mlp, Mlp) and type(block.mlp.act) is nn.GELU and block.mlp.act.approximate == "none"
    ):
        raise refuse(f"another MLP ({type(block.mlp).__name__} with {type(block.mlp.act).__name__})")
    if not isinstance(block.norm1, nn.LayerNorm) or not isinstance(getattr(block.attn, "norm", None), nn.Identity):
        raise refuse(f"other norms ({type(block.norm1).__name__})")
    embed = model.patch_embed
    encoder = {
        "image_size": tuple(embed.img_size),
        "patch_size": tuple(embed.patch_size),
        "channels": embed.proj.in_channels,
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "mlp_ratio": block.mlp.fc2.in_features / model.embed_dim,
        "mlp": "swiglu" if gated else "gelu",
        "qkv_bias": block.attn.qkv.bias is not None,
        "qk_norm": not isinstance(block.attn.q_norm, nn.Identity),
        "fc_norm": not isinstance(model.fc_norm, nn.Identity),
        "class_token": model.has_class_token,
        "registers": model.num_reg_tokens,
        "num_heads": block.attn.num_heads,
        "no_embed_class": model.no_embed_class or None,
        "global_pool": model.global_pool or None,
        "norm_eps": block.norm1.eps,
        "num_classes": model.num_classes,
    }
    labels = settings.get("label_names") or ()
    if isinstance(labels, dict):  # from numbers, or from the codes of WordNet in the order of the classes
        labels = [labels[key] for key in sorted(labels, key=lambda key: int(key) if str(key).isdecimal() else 0)]
    numbers = {key: tuple(settings[key]) if settings.get(key) else None for key in ("mean", "std")}
    return Hints(
        only_given(encoder), {}, mean=numbers["mean"], std=numbers["std"], interpolation=settings.get("interpolation"),
        class_names=tuple(map(str, labels)) if isinstance(labels, list | tuple) else (),
    )  # fmt: skip


TIMM = Format(
    name="timm",
    anchor=ANCHOR,
    rows=(
        *ENCODER,
        *within((row("ls1.gamma", "gamma_1"), row("ls2.gamma", "gamma_2")), "blocks.#.", "blocks.#."),  # DeiT III
    ),
    dropped=((r"head\.\d+\..*", "a projection head of the training (MoCo v3)"),),
    hints=timm_hints,
)


def to_timm(model: Model, origin: Origin) -> Outgoing:
    """The encoder for `timm.create_model("local-dir:FOLDER")`."""
    settings, notes = model.encoder.config, []
    require(model, "timm", qkv="linear")
    gated = settings.mlp == "swiglu"
    if settings.norm_eps != 1e-6:
        notes.append(f"timm's norms have an eps of 1e-6, this model's {settings.norm_eps}: features differ slightly")
    tensors = renamed(model, ENCODER, "timm", {"decoder.": "timm's vision transformer has no decoder"}, notes)
    classes = settings.num_classes
    model_args: dict[str, Any] = {
        "img_size": list(settings.image_size),
        "patch_size": list(settings.patch_size),
        "in_chans": settings.channels,
        "embed_dim": settings.embed_dim,
        "depth": settings.depth,
        "num_heads": settings.num_heads,
        "mlp_ratio": settings.mlp_ratio * (2 if gated else 1),  # timm counts gate and value
        "class_token": settings.class_token,
        "reg_tokens": settings.registers,
        "no_embed_class": settings.no_embed_class,
        "qkv_bias": settings.qkv_bias,
        "qk_norm": settings.qk_norm,
        "init_values": settings.layer_scale,
        "global_pool": settings.global_pool,
        "fc_norm": settings.fc_norm,
        "num_classes": classes,
    }
    height, width = settings.image_size
    config: dict[str, Any] = {
        # Any of timm's names of the kind will do: all that could differ stands in model_args.
        "architecture": "vit_giant_patch14_dinov2" if gated else "vit_base_patch16_224",
        "num_classes": classes,
        "num_features": settings.embed_dim,
        "global_pool": settings.global_pool,
        "model_args": model_args,
        "pretrained_cfg": {
            "input_size": [settings.channels, height, width],
            "fixed_input_size": True,
            "interpolation": origin.interpolation,
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": origin.normalize.mean,
            "std": origin.normalize.std,
            "num_classes": classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "license": "apache-2.0",
        },
    }
    if classes and len(origin.class_names) == classes:
        config["label_names"] = list(origin.class_names)
    return Outgoing(tensors, config, notes=notes)


def fetch(name: str) -> Source:
    """A pretrained model of timm's, "timm/NAME", by timm's own downloader and cache.

    Raises:
        CheckpointError: timm does not know it, has no weights for it, or cannot fetch them.
    """
    import timm

    short = name.removeprefix("timm/")
    if not timm.is_model(short):
        raise CheckpointError(
            f"timm has no model {shown(short)!r}; timm.list_models('vit*', pretrained=True) lists those it has"
        )
    _require_plain(short, name)
    try:
        model = timm.create_model(short, pretrained=True)
    except Exception as error:  # hub, network, cache, damaged file: timm lets all of it through as it comes
        raise CheckpointError(f"{name} cannot be fetched: {shown(str(error), 300)}") from error
    settings: dict[str, Any] = dict(vars(model)["pretrained_cfg"])
    arguments = {"num_classes": model.num_classes, "global_pool": getattr(model, "global_pool", "token")}
    config = {"architecture": short, "pretrained_cfg": settings, "model_args": arguments}
    return Source(Path(name), (), dict(model.state_dict()), {}, config, {}, False)
