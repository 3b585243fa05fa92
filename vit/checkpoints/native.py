"""The project's own format: model.safetensors (the weights) beside config.json (all else that is needed to use them)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from vit.atomic import replacing, write_json
from vit.data.augment import Normalization
from vit.errors import UserError
from vit.mae import MaskedAutoencoder, build_autoencoder

WEIGHTS, CONFIG, FORMAT = "model.safetensors", "config.json", "vit-patch-trainer/1"


class CheckpointError(UserError):
    """A checkpoint that cannot be used; the message is one line: what, where, what to do."""


@dataclass(frozen=True)
class LoadedModel:
    """A model with what travels with it.

    Attributes:
        model: in eval mode, on the CPU, float32.
        normalize: what the input went through in training.
        class_names: of the data it was trained on; empty where that had none.
        details: all of config.json.
    """

    model: MaskedAutoencoder
    normalize: Normalization
    class_names: tuple[str, ...]
    details: dict[str, Any]


def save_model(
    folder: Path,
    model: MaskedAutoencoder,
    encoder: dict[str, Any],
    decoder: dict[str, Any],
    normalize: Normalization,
    class_names: tuple[str, ...],
    data: str,
) -> None:
    """Write model.safetensors and config.json into `folder`.

    Args:
        folder: made where missing.
        model: encoder and decoder, saved in float32.
        encoder, decoder: the arguments of `vit.mae.build_autoencoder` that made it.
        normalize: of the input.
        class_names: of the training data.
        data: what the training data is called.
    """
    weights = save({name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()})
    with replacing(folder / WEIGHTS) as temporary:
        temporary.write_bytes(weights)
    details = {
        "format": FORMAT,
        "encoder": encoder,
        "decoder": decoder,
        "norm_pix_loss": model.norm_pix_loss,
        "mean": normalize.mean,
        "std": normalize.std,
        "class_names": class_names,
        "data": data,
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    write_json(folder / CONFIG, details)


def load_model(folder: str | Path) -> LoadedModel:
    """Load what `save_model` wrote, or a run folder, which holds the same two files.

    Raises:
        CheckpointError: a file is missing, damaged (its SHA-256 is compared), or of another format.
    """
    folder = Path(folder)
    try:
        details = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        weights = (folder / WEIGHTS).read_bytes()
    except OSError as error:
        raise CheckpointError(f"no model in {folder}: {Path(error.filename).name}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{folder / CONFIG} is damaged: {error}") from error
    if not isinstance(details, dict) or details.get("format") != FORMAT:
        raise CheckpointError(f"{folder / CONFIG} is not of the format {FORMAT}")
    try:
        if hashlib.sha256(weights).hexdigest() != details["sha256"]:
            raise CheckpointError(f"{folder / WEIGHTS} is damaged: its SHA-256 is not the one in {CONFIG}")
        encoder = {key: tuple(v) if isinstance(v, list) else v for key, v in details["encoder"].items()}
        model = build_autoencoder(encoder, details["decoder"], details["norm_pix_loss"])
        normalize, class_names = Normalization(details["mean"], details["std"]), tuple(details["class_names"])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"{folder / CONFIG} is damaged: {type(error).__name__}: {error}") from error
    try:
        model.load_state_dict(load(weights))
    except (SafetensorError, RuntimeError) as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise CheckpointError(f"{folder / WEIGHTS} does not fit {CONFIG}: {first}") from error
    return LoadedModel(model.eval(), normalize, class_names, details)
