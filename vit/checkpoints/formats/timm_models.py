"""timm's own description of a model, from its config.json or its name.

Importing this imports timm, which takes seconds.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vit.checkpoints.formats.format import class_names, only_given
from vit.checkpoints.reading import Source
from vit.errors import CheckpointError

# `timm.create_model` accepts more, such as the path of a checkpoint, which it would unpickle
ARGUMENTS = (
    signature(VisionTransformer).parameters.keys() - signature(timm.create_model).parameters.keys()
)
"""The model arguments that a config.json may hold."""


def hints(source: Source) -> dict[str, Any]:
    """Read a model itself, or the architecture and normalisation in timm's config.json."""
    config = source.config
    if "architecture" not in config:
        return _hints_of_model(source.module, getattr(source.module, "pretrained_cfg", None) or {})

    # the arguments that change the architecture; those of our autoencoders have one for timm alone
    arguments = {key: config[key] for key in config.keys() & {"num_classes", "global_pool"}}
    arguments |= config.get("model_args") or {}
    arguments.pop("pretrained_strict", None)
    unknown = sorted(arguments.keys() - ARGUMENTS)
    if unknown:
        raise source.error(
            f"model_args of config.json has {unknown[0]}, "
            "which is not a setting of the architecture"
        )

    # The model that timm builds from them shows the rest. A small twin of two narrow layers, whose
    # values all affect its output, will be compared.
    name = str(config["architecture"])
    _require_plain(name, source.path)
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
        twin = timm.create_model(name, pretrained=False, **arguments | small)
        for parameter in twin.parameters():
            nn.init.normal_(parameter, std=0.3)

    # older folders on its hub have the normalisation at the top level
    settings = config.get("pretrained_cfg") or config
    labels = config.get("label_names") or settings.get("label_names")
    result = _hints_of_model(model, {**settings, "label_names": labels})
    result["encoder"]["num_classes"] = model.num_classes

    # JSON cannot hold the classes that code may have given, of an MLP, an activation, or a norm;
    # then the tensors decide
    described = {(name, value.shape) for name, value in model.state_dict().items()}
    stored = {(name, value.shape) for name, value in source.tensors.items()}
    differing = sorted(name for name, _ in described ^ stored if name.startswith("blocks.0."))
    if differing:
        text = (
            f"its settings describe another block ({differing[0]}) than its tensors, which are "
            "taken: its code may give mlp_layer, act_layer or others, which config.json cannot "
            "hold; assuming SiLU as the gate of a SwiGLU, else an exact GELU"
        )
        result["differences"] += (text,)
    return result | {"twin": twin}


def _require_plain(name: str, checkpoint: str) -> None:
    """Refuse anything but a plain vision transformer before it is built or fetched."""
    if not timm.models.is_model_in_modules(name, ("vision_transformer", "deit")):
        raise CheckpointError(
            f"{checkpoint}: timm knows no plain vision transformer called {name}; only "
            "those load, timm.list_models('vit*', pretrained=True) lists them"
        )


def _hints_of_model(model: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Read the architecture off a model that timm built, and the rest off its settings.

    Args:
        model: the model.
        settings: its pretrained_cfg: normalisation and names of classes.
    """
    # settings that no tensor shows, and two that reveal settings of other tensors
    encoder = {
        "image_size": tuple(model.patch_embed.img_size),
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "num_heads": model.blocks[0].attn.num_heads,
        "no_embed_class": model.no_embed_class or None,
        "global_pool": model.global_pool or None,
        "norm_eps": model.blocks[0].norm1.eps,
    }
    # the input
    crop_mode = settings.get("crop_mode") or "center"
    result = {
        "encoder": only_given(encoder),
        "class_names": class_names(settings.get("label_names") or ()),
        "mean": settings.get("mean") or (),
        "std": settings.get("std") or (),
        "interpolation": settings.get("interpolation"),
        "crop_share": settings.get("crop_pct"),
        "squash": crop_mode == "squash",
        "differences": (),
    }
    if crop_mode not in ("center", "squash"):
        text = f"its settings fit images by {crop_mode!r}, which is not supported"
        result["differences"] = (f"{text}; assuming 'center'",)
    return result


def hub_name(name: str) -> str:
    """Return the place on the hub of a pretrained timm model, "timm/NAME"."""
    short = name.removeprefix("timm/")
    _require_plain(short, name)
    settings = timm.get_pretrained_cfg(short)
    if settings is None or not settings.hf_hub_id:
        raise CheckpointError(f"timm has no weights for {short!r}")
    return settings.hf_hub_id
