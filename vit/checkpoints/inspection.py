"""What a checkpoint is and what would become of each tensor, without building the model: for `vit checkpoint inspect`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vit.checkpoints.loading import origin_of
from vit.checkpoints.network import Network
from vit.checkpoints.reading import count_not_finite
from vit.checkpoints.report import size_text
from vit.errors import one_line


def facts(network: Network) -> dict[str, Any]:
    """Return what is known about a checkpoint, and its report, in plain values.

    Every tensor is read once to count nan and infinite values: a problem if `load_model` would refuse them, a note if it would
    ignore or allow them.
    """
    source = network.source
    report = network.report
    report.problems += filter(None, map(network.problem, network.tensors))
    for name, tensor in source.tensors.items():
        bad = 0 if tensor.device.type == "meta" else count_not_finite(tensor)
        if bad and not any(problem.startswith(f"{name} holds") for problem in report.problems):
            network.note(f"{name} holds {bad} values that are nan or infinite")
    origin = origin_of(network)
    decoder = network.decoder
    return {
        "path": str(source.path),
        "files": [str(path) for path in source.files],
        "checksum": "verified" if source.verified else "none",
        "format": network.format.name,
        "encoder": asdict(network.encoder),
        "decoder": None if decoder is None else asdict(decoder),
        "norm_pix_loss": None if decoder is None else network.norm_pix_loss,
        "parameters": sum(tensor.value.numel() for tensor in network.tensors.values()),
        "mean": origin.normalize.mean,
        "std": origin.normalize.std,
        "interpolation": origin.interpolation,
        "crop_share": origin.crop_share,
        "class_names": list(origin.class_names),
        **asdict(report),
    }


def describe(known: dict[str, Any], report: object) -> str:
    """Return the `facts` of a network as lines, and its report."""
    lines = []
    for key in (
        "path",
        "checksum",
        "format",
        "encoder",
        "decoder",
        "parameters",
        "mean",
        "std",
        "class_names",
    ):
        value = known[key]
        if isinstance(value, dict):
            value = ", ".join(f"{name} {size_text(setting)}" for name, setting in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        lines.append(f"{key:<18} {one_line(str(value))}")
    return "\n".join([*lines, "", str(report)])
