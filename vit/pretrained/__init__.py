"""The models that come with the package, a folder each: model.safetensors, config.json, and README.md, the model card.

Nothing here imports torch or reads a weight, so `vit models` answers at once.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from vit.errors import CheckpointError, one_line

FOLDER = Path(__file__).resolve().parent
FILES = WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"


def shipped_models() -> dict[str, Path]:
    """Return the models of the package: name -> folder, in the order of the names."""
    folders = sorted(path.parent for path in FOLDER.glob(f"*/{WEIGHTS}"))
    return {folder.name: folder for folder in folders if (folder / CONFIG).is_file()}


def entry_points() -> dict[str, Path]:
    """Return the same, by the names that timm and torch.hub ask for: vit_tiny_p4_cifar10."""
    return {name.replace("-", "_"): folder for name, folder in shipped_models().items()}


def located(name: str) -> Path | None:
    """Return where a checkpoint is: an existing path, else a model of the package; None for a timm/ or hf/ name to fetch.

    Raises:
        CheckpointError: nothing has this name.
    """
    try:
        if not name:
            raise CheckpointError(
                "a checkpoint is a path, a name, or a state dict, got an empty name"
            )
        os.stat(name)  # unlike Path.exists, it says why not
        return Path(name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
    if name.startswith(("timm/", "hf/")):
        return None
    models = shipped_models()
    if name in models:
        return models[name]
    known = f"; the package has {', '.join(models)}" if models else ""
    elsewhere = "timm's models are called timm/NAME, the hub's hf/ORGANISATION/NAME"
    raise CheckpointError(f"no checkpoint at {name}: {reason}; {elsewhere}{known}")


def shipped(name: str) -> dict[str, Any]:
    """Return what is known about one of them, in plain values.

    Returns:
        name; folder; parameters of encoder and decoder together; bytes of all its files; encoder and decoder, their arguments
        (decoder None if there is none); class_names; data, the name of the training data; figures, what was
        measured, empty if nothing was.

    Raises:
        CheckpointError: there is none of that name, or its files are damaged.
    """
    folder = shipped_models().get(name)
    if folder is None:
        raise CheckpointError(
            f"no model called {name[:100]!r} comes with the package; `vit models` lists those that do"
        )
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return {
            "name": name,
            "folder": str(folder),
            "parameters": count_parameters(folder / WEIGHTS),
            "bytes": sum(
                (folder / file).stat().st_size for file in FILES if (folder / file).is_file()
            ),
            **{key: config[key] for key in ("encoder", "decoder", "class_names", "data")},
            "figures": config.get("figures") or {},
        }
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {one_line(str(error))[:200]}"
        raise CheckpointError(f"{folder} is damaged, reinstall the package: {what}") from error


def count_parameters(weights: Path) -> int:
    """Return how many numbers a safetensors file holds, without reading them."""
    with safe_open(weights, framework="numpy") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118  # it is no dict
