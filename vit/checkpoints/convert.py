"""A loaded model out into another format, so that others load it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import torch

from vit.atomic import replacing, write_json
from vit.checkpoints.formats.huggingface import to_huggingface
from vit.checkpoints.formats.mae import to_mae
from vit.checkpoints.formats.outgoing import Model, origin_of
from vit.checkpoints.formats.timm import to_timm
from vit.checkpoints.native import save_model, write_weights
from vit.checkpoints.reading import CheckpointError

FOLDERS = {"timm": to_timm, "huggingface": to_huggingface}


def convert_model(model: Model, to: str, out: str | Path) -> list[str]:
    """Write a model that `load_model` gave.

    Args:
        model: with its `origin`.
        to: "timm" (a folder for `timm.create_model("local-dir:FOLDER")`), "huggingface" (a folder for `from_pretrained`),
            "mae" (a .pth for facebookresearch/mae), or "safetensors" (a folder in the project's own format).
        out: the folder or file; it must not exist yet, a folder may be empty.

    Returns:
        What was left out, or will be computed otherwise there, a line each.

    Raises:
        CheckpointError: the format cannot hold the model, or `out` is taken; nothing is written then.
    """
    out = Path(out)
    origin = origin_of(model)
    if not isinstance(to, str) or to not in (*FOLDERS, "mae", "safetensors"):
        raise CheckpointError(f"formats are timm, mae, huggingface and safetensors, got {to!r}")
    if os.path.lexists(out) and (out.is_symlink() or not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} exists; name another place, what is there is not replaced")
    if to == "safetensors":
        save_model(out, model, origin.normalize, origin.class_names, origin.data, origin.interpolation)
        return []
    if to == "mae":
        if out.suffix != ".pth":
            raise CheckpointError(f"{out}: for MAE's code, name a file that ends in .pth")
        outgoing = to_mae(model, origin)
        buffer = io.BytesIO()
        torch.save({"model": outgoing.tensors, "args": outgoing.config}, buffer)
        with replacing(out) as temporary:
            temporary.write_bytes(buffer.getbuffer())
        return outgoing.notes
    outgoing = FOLDERS[to](model, origin)
    write_weights(out, outgoing.tensors, outgoing.config)
    if outgoing.preprocessor:
        write_json(out / "preprocessor_config.json", outgoing.preprocessor)
    return outgoing.notes
