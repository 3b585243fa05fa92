"""The project's own format: model.safetensors (the weights) beside config.json (all else that is needed to use them)."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from vit.atomic import replacing, write_json
from vit.checkpoints.formats.native import FORMAT
from vit.data.augment import Normalization
from vit.mae import Model

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def save_model(
    folder: Path,
    model: Model,
    normalize: Normalization,
    class_names: tuple[str, ...] = (),
    data: str = "",
    *,
    interpolation: str = "bicubic",
    data_content_hash: str = "",
    dtype: torch.dtype = torch.float32,
    figures: dict[str, Any] | None = None,
) -> None:
    """Write model.safetensors and config.json into `folder`, for `vit.checkpoints.load_model`.

    Args:
        folder: made where missing.
        model: an encoder, or an autoencoder with its decoder.
        normalize: of the input.
        class_names: of the head, or of the training data.
        data: what the training data is called.
        interpolation: of resizing images to the model's size.
        data_content_hash: of the training data's images (`vit.data.Dataset.content_hash`).
        dtype: of the weights on disk; they are loaded as float32 whatever it is.
        figures: what was measured (see `vit.checkpoints.card.figures_of`), for config.json.
    """
    tensors = {name: value.detach().cpu().to(dtype).contiguous() for name, value in model.state_dict().items()}
    details = settings_of(model, normalize, class_names, data, interpolation, data_content_hash)
    details["content_hash"] = content_hash(model)
    write_weights(folder, tensors, details | ({"figures": figures} if figures else {}))


def settings_of(
    model: Model,
    normalize: Normalization,
    class_names: tuple[str, ...],
    data: str,
    interpolation: str,
    data_content_hash: str,
) -> dict[str, Any]:
    """What config.json says of a model, as `save_model` takes it."""
    return {
        "format": FORMAT,
        **architecture(model),
        "mean": normalize.mean,
        "std": normalize.std,
        "interpolation": interpolation,
        "class_names": class_names,
        "data": data,
        "data_content_hash": data_content_hash,
    }


def architecture(model: Model) -> dict[str, Any]:
    """What is needed to build a model again, as plain values: its encoder's settings, its decoder's, its target."""
    return {
        "encoder": asdict(model.encoder.config),
        "decoder": None if model.decoder is None else asdict(model.decoder.config),
        "norm_pix_loss": None if model.decoder is None else model.norm_pix_loss,
    }


def content_hash(model: Model) -> str:
    """16 hexadecimal digits that identify a model's weights; a copy in half precision has the same.

    A loaded model has that of its checkpoint, where config.json says it: also one that was resized, or left its head behind.
    """
    details = getattr(getattr(model, "origin", None), "details", {})  # fingerprint: its name before
    if isinstance(said := details.get("content_hash", details.get("fingerprint")), str):
        return said
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().half().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def write_weights(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """model.safetensors, then config.json with the weights' SHA-256, which `load_model` compares."""
    weights = save(tensors, metadata={"format": "pt"})  # transformers asks for it
    with replacing(folder / WEIGHTS) as temporary:
        temporary.write_bytes(weights)
    write_json(folder / CONFIG, {**config, "sha256": hashlib.sha256(weights).hexdigest()})
