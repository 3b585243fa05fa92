"""timm's vision transformers; their names are ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from vit.checkpoints.formats.format import Format, Hints, only_given
from vit.checkpoints.formats.outgoing import Model, Outgoing, encoder_of, renamed, require
from vit.checkpoints.names import row, within
from vit.checkpoints.origin import Origin
from vit.checkpoints.reading import CheckpointError, Source
from vit.errors import one_line

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
    arguments = config.get("model_args") or {}
    plain = (str, int, float, bool, type(None))
    if not isinstance(arguments, dict) or not all(
        isinstance(part, plain)
        for value in arguments.values()
        for part in (value if isinstance(value, list) else [value])
    ):
        raise CheckpointError(f"{source.path}: model_args of config.json can be plain values only")
    depth = sum(key.endswith(".norm1.weight") for key in source.tensors)
    if not isinstance(arguments.get("depth", 0), int) or arguments.get("depth", 0) > depth:  # built before compared
        raise CheckpointError(f"{source.path}: config.json says {arguments['depth']} blocks, the weights have {depth}")
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    settings = config.get("pretrained_cfg") or {}
    for key in ("num_classes", "global_pool"):
        if key in config:
            arguments.setdefault(key, config[key])
    try:
        with torch.device("meta"):  # shapes without the memory
            model = timm.create_model(name, pretrained=False, **arguments)
    except Exception as error:  # timm raises nearly anything on arguments that make no model
        raise CheckpointError(f"{source.path}: timm cannot build {name} by config.json: {error}") from error
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
        "embed_dim": model.embed_dim,
        "class_token": model.has_class_token,
        "registers": model.num_reg_tokens,
        "num_heads": block.attn.num_heads,
        "no_embed_class": model.no_embed_class or None,
        "global_pool": model.global_pool or None,
        "norm_eps": block.norm1.eps,
        "num_classes": model.num_classes,
    }
    labels = settings.get("label_names") or ()
    numbers = {key: tuple(settings[key]) if settings.get(key) else None for key in ("mean", "std")}
    return Hints(
        only_given(encoder), {}, mean=numbers["mean"], std=numbers["std"], interpolation=settings.get("interpolation"),
        class_names=tuple(map(str, labels)),
    )  # fmt: skip


TIMM = Format(
    name="timm",
    anchor=ANCHOR,
    rows=(
        *ENCODER,
        *within((row("ls1.gamma", "gamma_1"), row("ls2.gamma", "gamma_2")), "blocks.#.", "blocks.#."),  # DeiT III
    ),
    hints=timm_hints,
)


def to_timm(model: Model, origin: Origin) -> Outgoing:
    """The encoder for `timm.create_model("local-dir:FOLDER")`."""
    encoder, notes = encoder_of(model), []
    arguments = encoder.arguments
    require(model, "timm", qkv="linear")
    gated = arguments["mlp"] == "swiglu"
    if arguments["norm_eps"] != 1e-6:
        notes.append(
            f"timm's norms have an eps of 1e-6, this model's {arguments['norm_eps']}: features differ in their last digits"
        )
    tensors = renamed(model, ENCODER, "timm", {"decoder.": "timm's vision transformer has no decoder"}, notes)
    classes = arguments["num_classes"]
    model_args = {
        "img_size": list(arguments["image_size"]),
        "patch_size": list(arguments["patch_size"]),
        "in_chans": arguments["channels"],
        "embed_dim": arguments["embed_dim"],
        "depth": arguments["depth"],
        "num_heads": arguments["num_heads"],
        "mlp_ratio": arguments["mlp_ratio"] * (2 if gated else 1),  # timm counts gate and value
        "class_token": arguments["class_token"],
        "reg_tokens": arguments["registers"],
        "no_embed_class": arguments["no_embed_class"],
        "qkv_bias": arguments["qkv_bias"],
        "qk_norm": arguments["qk_norm"],
        "init_values": arguments["layer_scale"],
        "global_pool": arguments["global_pool"],
        "fc_norm": arguments["fc_norm"],
        "num_classes": classes,
    }
    height, width = arguments["image_size"]
    config = {
        # Any of timm's names of the kind will do: all that could differ stands in model_args.
        "architecture": "vit_giant_patch14_dinov2" if gated else "vit_base_patch16_224",
        "num_classes": classes,
        "num_features": arguments["embed_dim"],
        "global_pool": arguments["global_pool"],
        "model_args": model_args,
        "pretrained_cfg": {
            "input_size": [arguments["channels"], height, width],
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
            f"timm has no model {short!r}; timm.list_models('vit*', pretrained=True) lists those it has"
        )
    _require_plain(short, name)
    try:
        model = timm.create_model(short, pretrained=True)
    except Exception as error:  # hub, network, cache, damaged file: timm lets all of it through as it comes
        raise CheckpointError(f"{name} cannot be fetched: {one_line(str(error))[:300]}") from error
    settings: dict[str, Any] = dict(vars(model)["pretrained_cfg"])
    arguments = {"num_classes": model.num_classes, "global_pool": getattr(model, "global_pool", "token")}
    hints_of_model(model, settings, short)  # another class than a plain vision transformer is refused by its name
    config = {"architecture": short, "pretrained_cfg": settings, "model_args": arguments}
    return Source(Path(name), (), dict(model.state_dict()), {}, config, {}, False)
