"""The project's own format: model.safetensors (the weights) and config.json (everything else needed to use them).

The encoder's tensors have timm's names, and if timm computes the same, config.json also holds timm's settings, so that timm's
"local-dir:FOLDER" and transformers' AutoModel (through its TimmWrapper) load such a folder too.
"""

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
from vit.checkpoints.formats.timm import same_in_timm, timm_config
from vit.checkpoints.reading import CONFIG_HASH, config_hash
from vit.config import DecoderConfig, ViTConfig
from vit.encoder import VisionTransformer
from vit.inputs import Normalization, Preparation
from vit.mae import Model, build_autoencoder
from vit.pretrained import CONFIG, WEIGHTS


def build_model(encoder: ViTConfig, decoder: DecoderConfig | None, norm_pix_loss: bool) -> Model:
    """Build an encoder, or an autoencoder if there is a decoder, with new weights."""
    if decoder is None:
        return VisionTransformer(encoder)
    return build_autoencoder(encoder, decoder, norm_pix_loss)


def save_model(
    folder: str | Path,
    model: Model,
    normalize: Normalization,
    class_names: tuple[str, ...] = (),
    data: str = "",
    *,
    interpolation: str = "bicubic",
    crop_share: float = 1.0,
    data_content_hash: str = "",
    problem_type: str = "",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write model.safetensors and config.json into `folder`, for `vit.checkpoints.load_model`.

    Args:
        folder: created if missing.
        model: an encoder, or an autoencoder with its decoder.
        normalize: of the input.
        class_names: of the head, or of the training data.
        data: name of the training data.
        interpolation: how images are resized to the model's size.
        crop_share: share to keep of an image's centred part.
        data_content_hash: the training data's (`vit.data.Dataset.content_hash`).
        problem_type: what the head tells, as transformers calls it, if not one of several classes.
        dtype: of the weights on disk; they always load as float32.
    """
    state = {name.removeprefix("encoder."): value for name, value in model.state_dict().items()}
    tensors = {name: value.detach().cpu().to(dtype).contiguous() for name, value in state.items()}
    config: dict[str, Any] = {
        "format": FORMAT,
        **architecture(model),
        "mean": normalize.mean,
        "std": normalize.std,
        "interpolation": interpolation,
        "crop_share": crop_share,
        "class_names": class_names,
        "data": data,
        "data_content_hash": data_content_hash,
        "content_hash": _hash_weights(model),
        **({"problem_type": problem_type} if problem_type else {}),
    }
    if same_in_timm(model.encoder.config):
        config |= timm_config(model.encoder.config, normalize, Preparation(interpolation, crop_share), class_names)
        if model.decoder is not None:
            config["model_args"]["pretrained_strict"] = False  # timm has no place for the decoder
    write_weights(Path(folder), tensors, config)


def architecture(model: Model) -> dict[str, Any]:
    """Return plain values from which a model can be rebuilt: the settings of encoder and decoder, and the target."""
    return {
        "encoder": asdict(model.encoder.config),
        "decoder": None if model.decoder is None else asdict(model.decoder.config),
        "norm_pix_loss": None if model.decoder is None else model.norm_pix_loss,
    }


def content_hash(model: Model) -> str:
    """Return 16 hexadecimal digits that identify a model's weights; a copy in half precision has the same.

    A loaded model keeps the hash in its checkpoint's config.json, if any, even if it was resized or lost its head.
    """
    details = getattr(getattr(model, "origin", None), "details", {})  # earlier versions call it fingerprint
    said = details.get("content_hash", details.get("fingerprint"))
    return said if isinstance(said, str) else _hash_weights(model)


def _hash_weights(model: Model) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().half().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def write_weights(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write model.safetensors, then config.json with the weights' SHA-256 and its own, which `load_model` checks."""
    weights = save(tensors, metadata={"format": "pt"})  # transformers requires the format
    with replacing(folder / WEIGHTS) as temporary:
        temporary.write_bytes(weights)
    config = {**config, "sha256": hashlib.sha256(weights).hexdigest()}
    write_json(folder / CONFIG, {**config, CONFIG_HASH: config_hash(config)})
