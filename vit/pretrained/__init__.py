"""The models that come with the package, a folder each: model.safetensors, config.json, and README.md, the model card.

Light on purpose: nothing here imports torch or reads a weight, so that `vit models` answers at once.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from vit.errors import UserError, one_line

FOLDER = Path(__file__).resolve().parent
FILES = WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"


class ShippedError(UserError):
    """A model of the package that is not as it came; the message is one line."""


def shipped_models() -> dict[str, Path]:
    """What comes with the package: name -> folder, in the order of the names."""
    folders = sorted(path.parent for path in FOLDER.glob(f"*/{WEIGHTS}"))
    return {folder.name: folder for folder in folders if (folder / CONFIG).is_file()}


def shipped(name: str) -> dict[str, Any]:
    """What is known of one of them, in plain values.

    Returns:
        name; folder; parameters, of encoder and decoder together; bytes, of all its files; the encoder's and the decoder's
        arguments (decoder None where there is none); class_names; data, what the training data is called; figures, what was
        measured (see `vit.checkpoints.card`), empty where nothing was.

    Raises:
        ShippedError: there is none of that name, or its files are damaged.
    """
    folder = shipped_models().get(name)
    if folder is None:
        raise ShippedError(f"no model called {name[:100]!r} comes with the package; `vit models` lists those that do")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return {
            "name": name,
            "folder": str(folder),
            "parameters": sum(math.prod(tensor["shape"]) for tensor in _header(folder / WEIGHTS).values()),
            "bytes": sum((folder / file).stat().st_size for file in FILES if (folder / file).is_file()),
            **{key: config[key] for key in ("encoder", "decoder", "class_names", "data")},
            "figures": config.get("figures") or {},
        }
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {one_line(str(error))[:200]}"
        raise ShippedError(f"{folder} is damaged, install the package again: {what}") from error


def _header(path: Path) -> dict[str, Any]:
    """What a safetensors file says of its tensors, by name; no values are read."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}
