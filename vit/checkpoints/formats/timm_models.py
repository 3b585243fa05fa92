"""What timm itself knows about a model, from its config.json or its name. Imports timm, which takes seconds."""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub import constants
from timm.data import resolve_data_config
from timm.layers import GluMlp, Mlp
from timm.layers.activations import GELU
from timm.models import model_entrypoint
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import nn

from vit.checkpoints.formats.format import Hints, class_names, only_given
from vit.checkpoints.reading import Source, flatten, shorten
from vit.errors import CheckpointError

ARGUMENTS = (
    signature(VisionTransformer).parameters.keys() - signature(timm.create_model).parameters.keys()
)
"""The model arguments that a config.json may hold. `timm.create_model` takes more, such as the path of a checkpoint, which it
would unpickle."""


def hints(source: Source) -> Hints:
    """Read a model itself, or timm's config.json: the architecture's name, its changed arguments, the normalisation.

    Raises:
        CheckpointError: timm does not know the architecture, or our encoder does not compute it.
    """
    config, model = source.config, source.module
    if model is not None:
        return _hints_of_model(
            model, dict(getattr(model, "pretrained_cfg", None) or {}), type(model).__name__
        )
    name = config.get("architecture")
    if not isinstance(name, str) or not timm.is_model(name):
        raise source.error(f"config.json names the architecture {name!r}, which timm does not know")
    _require_plain(name, str(source.path))

    # the arguments; only settings of the architecture reach timm
    arguments: dict[str, Any] = config.get("model_args") or {}
    arguments = {
        key: config[key] for key in ("num_classes", "global_pool") if key in config
    } | arguments
    arguments.pop("pretrained_strict", None)  # of our autoencoders, saved again by transformers
    headless = (
        config.get("architectures") == ["TimmWrapperModel"] and arguments.get("num_classes") != 0
    )
    arguments |= {"num_classes": 0} if headless else {}
    if unknown := sorted(arguments.keys() - ARGUMENTS):
        what = f"model_args of config.json has {shorten(unknown[0])}, which is not a setting of the architecture"
        raise source.error(what)
    arguments = {
        key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()
    }

    # the model that timm builds from them, which shows the rest
    try:
        with torch.device("meta"):  # shapes without the memory
            model = timm.create_model(name, pretrained=False, **arguments)
    except Exception as error:  # timm raises nearly anything on invalid arguments
        reason = shorten(str(error), 200)
        raise source.error(f"timm cannot build {name} by config.json: {reason}") from error
    settings = config.get("pretrained_cfg") or config  # older folders on its hub have no such level
    names = config.get("label_names") or settings.get("label_names")
    found = _hints_of_model(model, {**settings, "label_names": names}, name)
    what = "its settings name a head, which transformers' TimmWrapperModel does not have: num_classes is 0"
    return replace(found, notes=(*found.notes, what)) if headless else found


def training_hints(source: Source) -> Hints:
    """Read the options that timm's train.py saves, `args`, and the input of the architecture they name, as that code does."""
    args = {
        key.removeprefix("args."): value
        for key, value in source.other.items()
        if key.startswith("args.")
    }
    chosen = {
        key: args.get(key) for key in ("mean", "std", "interpolation", "crop_pct", "in_chans")
    }
    try:
        usual = timm.get_pretrained_cfg(str(args.get("model")))
        used = resolve_data_config(chosen, usual.to_dict()) if usual else {}
    except (
        RuntimeError,
        AssertionError,
    ):  # a tag of another version; other channels than the images have
        used = {}
    return Hints(
        {"global_pool": args["gp"]} if args.get("gp") in ("token", "avg") else {},
        mean=used.get("mean"),
        std=used.get("std"),
        interpolation=used.get("interpolation"),
        crop_share=used.get("crop_pct"),
    )


def _require_plain(name: str, where: str) -> None:
    """Refuse anything but a plain vision transformer before it is built or fetched."""
    home = model_entrypoint(name).__module__
    if home not in ("timm.models.vision_transformer", "timm.models.deit"):
        raise CheckpointError(
            f"{where}: timm's {name} is not a plain vision transformer (it is of {home}); only those load"
        )


def _hints_of_model(model: Any, settings: dict[str, Any], name: str) -> Hints:
    """Read the architecture off a model that timm built, and normalisation and classes off its pretrained_cfg.

    Raises:
        CheckpointError: our encoder does not compute it; `name` is for the message.
    """

    def require(ok: bool, what: str) -> None:
        if not ok:
            raise CheckpointError(
                f"timm's {name} cannot be loaded: it has {what}, which this encoder does not compute"
            )

    # what our encoder does not compute
    require(type(model) is VisionTransformer, f"the class {type(model).__name__}")
    block, embed = model.blocks[0], model.patch_embed
    attention = getattr(block, "attn", None)
    kinds = f"{type(block).__name__}, {type(attention).__name__}"
    require(
        type(block) is Block and type(attention) is Attention, f"blocks of another kind ({kinds})"
    )
    require(isinstance(model.norm_pre, nn.Identity), "a norm before its blocks (CLIP)")
    plain_pool = (
        model.global_pool in ("token", "avg", "")
        and model.attn_pool is None
        and not model.pool_include_prefix
    )
    require(plain_pool, f"another pooling ({model.global_pool!r})")
    require(model.pos_embed is not None, "no position table")
    mlp, act = block.mlp, block.mlp.act
    gated = isinstance(mlp, GluMlp) and isinstance(act, nn.SiLU) and not mlp.gate_last
    exact = type(act) is GELU or (type(act) is nn.GELU and act.approximate == "none")
    gelu = isinstance(mlp, Mlp) and exact
    require(gated or gelu, f"another MLP ({type(mlp).__name__} with {type(act).__name__})")
    plain_norms = isinstance(block.norm1, nn.LayerNorm) and isinstance(
        getattr(block.attn, "norm", None), nn.Identity
    )
    require(
        not isinstance(model.norm, nn.Identity) or not isinstance(model.fc_norm, nn.Identity),
        "no norm at its end",
    )
    require(plain_norms, f"other norms ({type(block.norm1).__name__})")

    # the rest, under our names; of a head that was replaced, what it is now
    parts = list(model.head) if isinstance(model.head, nn.Sequential) else [model.head]
    kinds, simple = ", ".join(type(part).__name__ for part in parts), _is_linear(parts)
    heads = [part.out_features for part in parts if isinstance(part, nn.Linear) and simple]
    encoder = {
        "image_size": tuple(embed.img_size),
        "patch_size": tuple(embed.patch_size),
        "channels": embed.proj.in_channels,
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "mlp_ratio": mlp.fc2.in_features / model.embed_dim,
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
        "num_classes": heads[-1] if heads else 0,
    }
    labels = settings.get("label_names") or ()
    if isinstance(
        labels, dict
    ):  # keyed by numbers, or by WordNet's codes in the order of the classes
        labels = [
            labels[key]
            for key in sorted(labels, key=lambda key: int(key) if str(key).isdecimal() else 0)
        ]
    mean, std = (tuple(settings[key]) if settings.get(key) else None for key in ("mean", "std"))
    names = class_names(labels) if isinstance(labels, list | tuple) else ()
    mode = settings.get("crop_mode") or "center"
    fitted = (
        f"its settings fit images by {shorten(mode)!r}, which is not supported; assuming 'center'"
    )
    return Hints(
        only_given(encoder),
        mean=mean,
        std=std,
        interpolation=settings.get("interpolation"),
        class_names=names,
        notes=() if mode == "center" else (fitted,),
        crop_share=settings.get("crop_pct"),
        head_eps=next((part.eps for part in parts if isinstance(part, nn.BatchNorm1d)), None),
        no_head=""
        if simple
        else f"its head ({kinds}) computes more than a linear layer, which is all that is computed here",
    )


def _is_linear(parts: list[nn.Module]) -> bool:
    """Return whether a head of these parts is a linear layer, perhaps after a batch norm (see `LINEAR_PROBE`), or nothing."""
    probe = (
        len(parts) > 1 and isinstance(parts[0], nn.BatchNorm1d) and isinstance(parts[1], nn.Linear)
    )
    rest = parts[1:] if probe and parts[0].running_mean is not None else parts
    rest = [part for part in rest if not isinstance(part, nn.Dropout | nn.Identity | nn.Flatten)]
    return not rest or (
        len(rest) == 1 and isinstance(rest[0], nn.Linear) and rest[0].bias is not None
    )


def fetch(name: str) -> Source:
    """Fetch a pretrained timm model, "timm/NAME", with timm's own downloader and cache.

    Raises:
        CheckpointError: timm does not know it, has no weights for it, or cannot fetch them.
    """
    short = name.removeprefix("timm/")
    if not timm.is_model(short):
        raise CheckpointError(
            f"timm has no model {shorten(short)!r}; timm.list_models('vit*', pretrained=True) lists those it has"
        )
    _require_plain(short, name)
    try:
        with _no_waiting():
            model = timm.create_model(short, pretrained=True)
    except Exception as error:  # timm passes on any error of hub, network, cache or a damaged file
        raise CheckpointError(f"{name} cannot be fetched: {shorten(str(error), 300)}") from error
    return of_module(model, name)


@contextmanager
def _no_waiting() -> Iterator[None]:
    """If the hub cannot be reached, make timm use only the cache: its downloader would retry for a minute."""
    hub = urllib.parse.urlsplit(constants.ENDPOINT)
    before = constants.HF_HUB_OFFLINE
    if not urllib.request.getproxies():
        try:
            socket.create_connection((hub.hostname or "", hub.port or 443), timeout=3).close()
        except OSError:
            constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def of_module(model: nn.Module, name: str) -> Source:
    """Return a timm model in memory as a checkpoint called `name`; it describes itself."""
    return Source(Path(name), *flatten(dict(model.state_dict())), module=model)
