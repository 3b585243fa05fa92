"""What timm itself knows about a model, from its config.json or its name.

Importing this imports timm, which takes seconds.
"""

from __future__ import annotations

import math
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

import timm
import torch
from huggingface_hub import constants
from timm.data import resolve_data_config
from timm.layers import DropPath, GluMlp, Mlp, PatchDropout
from timm.layers.activations import GELU
from timm.models import model_entrypoint
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import nn

from vit.checkpoints.formats.format import Hints, class_names, in_order, only_given
from vit.checkpoints.reading import Source, shorten
from vit.errors import CheckpointError
from vit.isolation import held

# `timm.create_model` takes more, such as the path of a checkpoint, which it would unpickle
ARGUMENTS = (
    signature(VisionTransformer).parameters.keys() - signature(timm.create_model).parameters.keys()
)
"""The model arguments that a config.json may hold."""
# modules that let all pass in eval mode
UNCHANGED = (nn.Identity, nn.Dropout, DropPath, PatchDropout)


def hints(source: Source) -> Hints:
    """Read a model itself, or the architecture and normalisation in timm's config.json.

    Raises:
        CheckpointError: timm does not know the architecture, or our encoder does not compute it.
    """
    # a model in memory
    if source.module is not None:
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
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False, **arguments)
    except Exception as error:  # timm raises nearly anything on invalid arguments
        reason = shorten(str(error), 200)
        raise source.error(f"timm cannot build {name} by config.json: {reason}") from error

    # older folders on its hub have the normalisation at the top level
    settings = config.get("pretrained_cfg") or config
    labels = config.get("label_names") or settings.get("label_names")
    result = _hints_of_model(source, model, {**settings, "label_names": labels})
    encoder = {**result.encoder, "num_classes": model.num_classes}
    return replace(result, encoder=encoder, notes=(*result.notes, *notes))


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
    encoder = {}
    code_heads = {}
    model = _named_model(args, str(source.path))
    if model is not None:
        code_heads = {model.embed_dim: model.blocks[0].attn.num_heads}
        encoder["global_pool"] = model.global_pool
    if args.get("gp") in ("token", "avg"):
        encoder["global_pool"] = args["gp"]
    return Hints(
        encoder,
        blocks_known=model is not None,
        code_heads=code_heads,
        **_inputs(inputs),
    )


def _named_model(args: dict[str, Any], checkpoint: str) -> Any:
    """Return a model of the architecture that options name, on meta; None if unknown to timm.

    Args:
        args: the saved options of timm's train.py.
        checkpoint: for messages.

    Raises:
        CheckpointError: our encoder does not compute it.
    """
    name = str(args.get("model"))
    if not timm.is_model(name):
        return None
    _require_plain(name, checkpoint)
    prefix = "model_kwargs."
    arguments = {}
    for key, value in args.items():
        if key.removeprefix(prefix) in ARGUMENTS and key.startswith(prefix):
            arguments[key.removeprefix(prefix)] = value

    # the model that timm builds, without memory for its weights
    try:
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False, **arguments)
    except Exception:  # timm raises nearly anything on invalid arguments
        return None
    reason = _not_computed(model)
    if reason:
        raise CheckpointError(
            f"{checkpoint}: timm's {name}, which its options name, has {reason}, "
            "which this encoder does not compute"
        )
    return model


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
    reason = _not_computed(model)
    if reason:
        raise source.error(f"it has {reason}, which this encoder does not compute")

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


def _not_computed(model: Any) -> str:
    """Return what a timm model has that our encoder does not compute; "" if it computes all."""
    # the model, and the kinds of its parts
    if type(model) not in (VisionTransformer, VisionTransformerDistilled):
        return f"the class {type(model).__name__}"
    blocks: list[Any] = list(model.blocks)
    for block in blocks:
        reason = _not_computed_in_block(block)
        if reason:
            return reason

    # what differs from block to block, where one setting counts for all
    norms = [module for module in model.blocks.modules() if isinstance(module, nn.LayerNorm)]
    norms += [norm for norm in (model.norm, model.fc_norm) if not isinstance(norm, nn.Identity)]
    if not all(isinstance(norm, nn.LayerNorm) for norm in norms):
        return f"other norms ({type(norms[-1]).__name__})"
    if len({norm.eps for norm in norms}) > 1:
        return "norms of several eps"
    if len({block.attn.num_heads for block in blocks}) > 1:
        return "blocks of several numbers of heads"

    # before and after the blocks
    convolution = model.patch_embed.proj
    if tuple(convolution.stride) != tuple(convolution.kernel_size):
        return "patches that overlap"
    if not isinstance(model.norm_pre, nn.Identity):
        return "a norm before its blocks (CLIP)"
    if (
        model.global_pool not in ("token", "avg", "")
        or model.attn_pool is not None
        or model.pool_include_prefix
    ):
        return f"another pooling ({model.global_pool!r})"
    if model.pos_embed is None:
        return "no position table"
    if isinstance(model.norm, nn.Identity) and isinstance(model.fc_norm, nn.Identity):
        return "no norm at its end"

    # what no tensor would show
    for name, module in model.named_modules():
        if not name.startswith("head") and _changes_unseen(name, module):
            return f"a {type(module).__name__} without tensors ({name})"
    return ""


def _not_computed_in_block(block: Any) -> str:
    """Return what a block has that ours does not compute; "" if it computes all."""
    attention = getattr(block, "attn", None)
    if type(block) is not Block or type(attention) is not Attention:
        return f"blocks of another kind ({type(block).__name__}, {type(attention).__name__})"
    if not math.isclose(attention.scale, attention.head_dim**-0.5):
        return "another scale of its attention"

    # an exact GELU, or SwiGLU whose first half are the gates
    mlp = block.mlp
    activation = mlp.act
    exact = type(activation) is GELU or (
        type(activation) is nn.GELU and activation.approximate == "none"
    )
    gelu = isinstance(mlp, Mlp) and exact
    swiglu = isinstance(mlp, GluMlp) and isinstance(activation, nn.SiLU) and not mlp.gate_last
    if not gelu and not swiglu:
        return f"another MLP ({type(mlp).__name__} with {type(activation).__name__})"

    # norms
    if not isinstance(block.norm1, nn.LayerNorm) or not isinstance(block.norm2, nn.LayerNorm):
        return f"other norms ({type(block.norm1).__name__})"
    if not isinstance(getattr(attention, "norm", None), nn.Identity):
        return "a norm within its attention"
    return ""


def _changes_unseen(name: str, module: nn.Module) -> bool:
    """Return whether a module of this name has no tensors and may change what passes it.

    An MLP's activation is checked with its MLP.
    """
    if [*module.children(), *module.parameters(), *module.buffers()]:
        return False
    return not isinstance(module, UNCHANGED) and not name.endswith("mlp.act")


def _class_names(labels: Any) -> tuple[str, ...]:
    """Return the names of classes that timm's settings hold; none if they hold something else."""
    # keyed by numbers, or by WordNet's codes in the order of the classes
    if isinstance(labels, dict):
        return class_names(labels[key] for key in in_order(labels))
    if isinstance(labels, list | tuple):
        return class_names(labels)
    return ()


# ---- Fetched -------------------------------------------------------------------------------------


def fetch(name: str) -> nn.Module:
    """Fetch a pretrained timm model, "timm/NAME", with timm's own downloader and cache.

    Raises:
        CheckpointError: timm does not know it, has no weights for it, or cannot fetch them.
    """
    short = name.removeprefix("timm/")
    if not timm.is_model(short):
        raise CheckpointError(
            f"timm has no model {shorten(short)!r}; "
            "timm.list_models('vit*', pretrained=True) lists those it has"
        )
    _require_plain(short, name)
    try:
        with _no_waiting():
            return timm.create_model(short, pretrained=True)
    except Exception as error:  # timm passes on any error of hub, network, cache or a damaged file
        raise CheckpointError(f"{name} cannot be fetched: {shorten(str(error), 300)}") from error


@contextmanager
def _no_waiting() -> Iterator[None]:
    """If the hub cannot be reached, make timm use only the cache.

    Its downloader would retry for a minute.
    """
    hub = urllib.parse.urlsplit(constants.ENDPOINT)
    offline = constants.HF_HUB_OFFLINE
    if not urllib.request.getproxies():
        try:
            socket.create_connection((hub.hostname or "", hub.port or 443), timeout=3).close()
        except OSError:
            offline = True
    # threads may fetch at the same time
    with held(constants, "HF_HUB_OFFLINE", offline):
        yield
