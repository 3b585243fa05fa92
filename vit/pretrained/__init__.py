"""The models that come with the package, each in a folder.

A folder holds model.safetensors, config.json, trained_on.npy, which has a hash of each image that
it was trained on, and README.md, the model card.
Nothing here imports torch or reads a weight, so `vit models` is instant.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from safetensors import safe_open

from vit.config import user_path
from vit.errors import CheckpointError

FOLDER = Path(__file__).resolve().parent
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
OF_CONFIG = ("encoder", "decoder", "class_names", "data", "figures")
"""What a description has of the model's config.json."""


def shipped_models() -> dict[str, Path]:
    """Return the models of the package: name -> folder, in the order of the names."""
    folders = sorted(path.parent for path in FOLDER.glob(f"*/{WEIGHTS}"))
    return {folder.name: folder for folder in folders}


def located(name: str) -> Path | None:
    """Return where a checkpoint is: an existing path, else a model of the package.

    Returns:
        None for a timm/ or hf/ name, whose checkpoint is yet to be fetched.
    """
    if not name:
        raise CheckpointError("a checkpoint is a path, a name, or a state dict, got an empty name")

    # a path, or else a name
    path = user_path(name)
    if os.path.exists(path):
        return path
    if name.startswith(("timm/", "hf/")):
        return None
    models = shipped_models()
    if name in models:
        return models[name]

    # nothing: say which names there are
    raise CheckpointError(
        f"no checkpoint at {name}; timm's models are called timm/NAME, the hub's "
        f"hf/ORGANISATION/NAME; the package has {', '.join(models)}"
    )


def shipped(name: str) -> dict[str, Any]:
    """Return the description of a model of the package, in plain values.

    Returns:
        name; folder; parameters of encoder and decoder together; bytes of all its files; encoder
        and decoder, their arguments (decoder None if there is none); class_names; data, the name
        of the training data; figures, its measured scores.
    """
    folder = shipped_models()[name]
    # the names and sizes of tensors are in the header of the weights
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return {
            "name": name,
            "folder": str(folder),
            "parameters": count_parameters(folder / WEIGHTS),
            "bytes": sum(file.stat().st_size for file in folder.iterdir()),
            **{key: config[key] for key in OF_CONFIG},
        }
    except Exception as error:  # damaged files may raise nearly anything
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise CheckpointError(f"{folder} is damaged, reinstall the package: {reason}") from error


def count_parameters(weights: Path) -> int:
    """Return how many numbers a safetensors file holds, without reading them."""
    count = 0
    with safe_open(weights, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118  # it is no dict
            count += math.prod(file.get_slice(name).get_shape())
    return count
