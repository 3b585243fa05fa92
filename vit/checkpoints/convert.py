"""Write a loaded model in another format, for others to load."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from vit.atomic import make_folder, replacing, write_json
from vit.checkpoints.network import count_not_finite
from vit.checkpoints.outgoing import to_huggingface, to_timm
from vit.config import changed, user_path
from vit.errors import CheckpointError
from vit.mae import Model
from vit.weights import build_model, save_model, write_weights

FOREIGN = {"timm": to_timm, "huggingface": to_huggingface}


def convert_model(model: Model, to: str, out: str | Path, half: bool = False) -> list[str]:
    """Write a model from `load_model`.

    Args:
        model: with its `origin`, in its present state. It may have another linear head, or none;
            its settings then say so.
        to: "timm" (for `timm.create_model("local-dir:FOLDER")`), "huggingface" (for
            `from_pretrained`), or "safetensors" (the project's own format).
        out: the folder; it must not exist yet, or be empty.
        half: for "safetensors": write the weights in half precision, which halves the file. They
            load as float32.

    Returns:
        One line for each thing that was left out or is computed differently there.
    """
    # the request
    out = user_path(out)
    origin = model.origin
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise CheckpointError(f"{out} exists and is not replaced; name another path")

    # the model in its present state, perhaps with another linear head; a subclass may compute
    # anything
    encoder = model.encoder
    classes = 0
    if type(encoder.head) is nn.Linear:
        classes = encoder.head.out_features
    settings = changed(encoder.config, {"num_classes": classes})
    decoder = None if model.decoder is None else model.decoder.config
    with torch.device("meta"):
        # torch names the parts that differ from its settings
        build_model(settings, decoder, False).load_state_dict(model.state_dict(), assign=True)
    encoder.config = settings
    if origin.problem_type and classes:
        raise CheckpointError(
            f"its head is for {origin.problem_type}, not for one of several classes; "
            "num_classes 0 leaves it out"
        )
    if classes not in (0, len(origin.class_names)):
        origin = replace(origin, class_names=())

    # what is written, after a look at every value: above the range of half precision, one becomes
    # infinite
    notes: list[str] = []
    if to != "safetensors":
        if half:
            raise CheckpointError(f"half precision is for safetensors, not for {to}")
        tensors, config, preprocessor, notes = FOREIGN[to](model, origin)
    elif half:
        for name, value in model.state_dict().items():
            if count_not_finite(value.half()) > count_not_finite(value):
                raise CheckpointError(
                    f"{name} holds values above 65,504, which half precision cannot hold"
                )
        notes.append("rounded to half precision: values change by at most 1 in 2,048, or 3e-8")

    # the folder appears with all its files: some of them would be in the way of a second try
    make_folder(out.parent)
    with nullcontext(out) if out.exists() else replacing(out, folder=True) as folder:
        if to != "safetensors":
            if preprocessor:
                write_json(folder / "preprocessor_config.json", preprocessor)
            write_weights(folder, tensors, config)
        else:
            save_model(folder, model, origin, torch.float16 if half else torch.float32)
    return notes
