"""What timm itself knows about a model, from its config.json or its name.

Importing this imports timm, which takes seconds.
"""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from typing import Any

import timm
import torch
from timm.data import resolve_data_config
from timm.layers import GluMlp
from timm.models import model_entrypoint
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vit.checkpoints.formats.format import Hints, class_names, in_order, only_given
from vit.checkpoints.reading import Source, shorten
from vit.errors import CheckpointError

# `timm.create_model` takes more, such as the path of a checkpoint, which it would unpickle
ARGUMENTS = (
    signature(VisionTransformer).parameters.keys() - signature(timm.create_model).parameters.keys()
)
"""The model arguments that a config.json may hold."""


def hints(source: Source) -> Hints:
    """Read a model itself, or the architecture and normalisation in timm's config.json.

    Raises:
        CheckpointError: timm does not know the architecture, or our encoder does not compute it.
    """
    # a model in memory
    if source.module is not None and not source.config:
        settings = dict(getattr(source.module, "pretrained_cfg", None) or {})
        return _hints_of_model(source, source.module, settings)

    # the architecture by its name
    config = source.config
    name = config.get("architecture")
    if not isinstance(name, str) or not timm.is_model(name):
        raise source.error(f"config.json names the architecture {name!r}, which timm does not know")
    _require_plain(name, str(source.path))

    # its changed arguments; transformers' wrapper has no head, whatever they say
    arguments = _model_arguments(source)
    notes: tuple[str, ...] = ()
    is_wrapper = config.get("architectures") == ["TimmWrapperModel"]
    if is_wrapper and arguments.get("num_classes") != 0:
        arguments["num_classes"] = 0
        notes = (
            "its settings name a head, which transformers' TimmWrapperModel does not have: "
            "num_classes is 0",
        )

    # the model that timm builds from them, without memory for its weights, which shows the rest
    try:
        model, twin = _built(name, arguments)
    except Exception as error:  # timm raises nearly anything on invalid arguments
        reason = shorten(str(error), 200)
        raise source.error(f"timm cannot build {name} by config.json: {reason}") from error

    # older folders on its hub have the normalisation at the top level
    settings = config.get("pretrained_cfg") or config
    labels = config.get("label_names") or settings.get("label_names")
    result = _hints_of_model(source, model, {**settings, "label_names": labels})
    encoder = {**result.encoder, "num_classes": model.num_classes}
    return replace(result, encoder=encoder, twin=twin, notes=(*result.notes, *notes))


def _built(name: str, arguments: dict[str, Any]) -> tuple[Any, nn.Module]:
    """Return a model that timm builds, without values, and a small twin that computes as it does.

    The twin has two narrow blocks, and values of which each shows in what it computes.
    """
    with torch.device("meta"):
        model: Any = timm.create_model(name, pretrained=False, **arguments)
    p, q = model.patch_embed.patch_size
    small = {
        "img_size": (2 * p, 2 * q),
        "depth": 2,
        "embed_dim": 8 * model.blocks[0].attn.num_heads,
        "num_classes": 3,
    }
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        twin = timm.create_model(name, pretrained=False, **{**arguments, **small})
        for parameter in twin.parameters():
            nn.init.normal_(parameter, std=0.3)
    return model, twin


def _model_arguments(source: Source) -> dict[str, Any]:
    """Return the arguments by which config.json changes the architecture.

    Raises:
        CheckpointError: there is one that is no setting of the architecture.
    """
    config = source.config
    arguments: dict[str, Any] = {}
    for key in ("num_classes", "global_pool"):
        if key in config:
            arguments[key] = config[key]
    for key, value in (config.get("model_args") or {}).items():
        if isinstance(value, list):
            value = tuple(value)
        arguments[key] = value

    # of our autoencoders, saved again by transformers
    arguments.pop("pretrained_strict", None)
    unknown = sorted(arguments.keys() - ARGUMENTS)
    if unknown:
        raise source.error(
            f"model_args of config.json has {shorten(unknown[0])}, "
            "which is not a setting of the architecture"
        )
    return arguments


def training_hints(source: Source) -> Hints:
    """Read the options that timm's train.py saves, `args`.

    What they leave open is as in the architecture they name, as in that code.
    """
    args = {}
    for key, value in source.values.items():
        if key.startswith("args."):
            args[key.removeprefix("args.")] = value

    # the input; a tag of another version, or other channels than the images have, say nothing
    keys = ("mean", "std", "interpolation", "crop_pct", "crop_mode", "in_chans")
    options = {key: args.get(key) for key in keys}
    inputs: dict[str, Any] = {}
    try:
        usual = timm.get_pretrained_cfg(str(args.get("model")))
        if usual:
            inputs = resolve_data_config(options, usual.to_dict())
    except (RuntimeError, AssertionError):
        pass

    # the heads and the pooling of the architecture, unless other options say another pooling
    known = Hints()
    name = str(args.get("model"))
    if timm.is_model(name):
        known = _named_architecture(name, args, str(source.path))
    if args.get("gp") in ("token", "avg"):
        known.encoder["global_pool"] = args["gp"]
    return replace(known, **_inputs(inputs))


def _named_architecture(name: str, args: dict[str, Any], checkpoint: str) -> Hints:
    """Return what the architecture says that options of timm's train.py name."""
    _require_plain(name, checkpoint)
    prefix = "model_kwargs."
    arguments = {}
    for key, value in args.items():
        if key.removeprefix(prefix) in ARGUMENTS and key.startswith(prefix):
            arguments[key.removeprefix(prefix)] = value
    try:
        model, twin = _built(name, arguments)
    except Exception:  # timm raises nearly anything on invalid arguments
        return Hints()
    heads = {model.embed_dim: model.blocks[0].attn.num_heads}
    pooling = {"global_pool": model.global_pool}
    return Hints(pooling, blocks_known=True, code_heads=heads, twin=twin)


def _inputs(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `Hints` on the input that timm's settings say.

    Args:
        settings: pretrained_cfg, or what timm makes of the options of train.py.
    """
    differences = []
    values = {
        "interpolation": settings.get("interpolation"),
        "crop_share": settings.get("crop_pct"),
        "squash": settings.get("crop_mode") == "squash",
    }
    crop_mode = settings.get("crop_mode")
    if crop_mode not in (None, "", "center", "squash"):
        differences.append(
            f"its settings fit images by {shorten(str(crop_mode))!r}, which is not supported; "
            "assuming 'center'"
        )

    # half a normalisation is none
    for key, other in (("mean", "std"), ("std", "mean")):
        value = settings.get(key)
        if value and settings.get(other):
            values[key] = tuple(value)
        elif value:
            differences.append(f"its settings say a {key} without a {other}, so it is not used")
    return values | {"differences": tuple(differences)}


def _require_plain(name: str, checkpoint: str) -> None:
    """Refuse anything but a plain vision transformer before it is built or fetched."""
    home = model_entrypoint(name).__module__
    if home not in ("timm.models.vision_transformer", "timm.models.deit"):
        raise CheckpointError(
            f"{checkpoint}: timm's {name} is not a plain vision transformer (it is of {home}); "
            "only those load"
        )


# ---- A model that timm built ---------------------------------------------------------------------


def _hints_of_model(source: Source, model: Any, settings: dict[str, Any]) -> Hints:
    """Read the architecture off a model that timm built, and the rest off its settings.

    Args:
        source: the checkpoint that it describes.
        model: the model.
        settings: its pretrained_cfg: normalisation and names of classes.

    Raises:
        CheckpointError: our encoder does not compute it.
    """
    # the architecture, under our names
    block = model.blocks[0]
    mlp = "gelu"
    if isinstance(block.mlp, GluMlp):
        mlp = "swiglu"
    encoder = {
        "image_size": tuple(model.patch_embed.img_size),
        "patch_size": tuple(model.patch_embed.patch_size),
        "channels": model.patch_embed.proj.in_channels,
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "mlp_ratio": block.mlp.fc2.in_features / model.embed_dim,
        "mlp": mlp,
        "qkv_bias": block.attn.qkv.bias is not None,
        "qk_norm": not isinstance(block.attn.q_norm, nn.Identity),
        "fc_norm": not isinstance(model.fc_norm, nn.Identity),
        "class_token": model.has_class_token,
        # DeiT's token for distillation counts as one
        "registers": model.num_prefix_tokens - model.has_class_token,
        "num_heads": block.attn.num_heads,
        "no_embed_class": model.no_embed_class or None,
        "global_pool": model.global_pool or None,
        "norm_eps": block.norm1.eps,
    }

    labels = _class_names(settings.get("label_names") or ())
    return Hints(only_given(encoder), class_names=labels, **_inputs(settings))


def _class_names(labels: Any) -> tuple[str, ...]:
    """Return the names of classes that timm's settings hold; none if they hold something else."""
    # keyed by numbers, or by WordNet's codes in the order of the classes
    if isinstance(labels, dict):
        return class_names(labels[key] for key in in_order(labels))
    if isinstance(labels, list | tuple):
        return class_names(labels)
    return ()


# ---- Fetched -------------------------------------------------------------------------------------


def hub_name(name: str) -> str:
    """Return the place on the hub of a pretrained timm model, "timm/NAME".

    Raises:
        CheckpointError: timm does not know it, has no weights for it, or it is of another family.
    """
    short = name.removeprefix("timm/")
    settings = None
    if timm.is_model(short):
        _require_plain(short, name)
        settings = timm.get_pretrained_cfg(short)
    if settings is None or not settings.hf_hub_id:
        raise CheckpointError(
            f"timm has no model {shorten(short)!r} with weights; "
            "timm.list_models('vit*', pretrained=True) lists those it has"
        )
    return settings.hf_hub_id
