"""Describe a checkpoint, and what would become of each tensor, without building the model.

This is for `vit checkpoint inspect`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vit.checkpoints.loading import origin_of
from vit.checkpoints.network import Network
from vit.checkpoints.reading import size_text
from vit.errors import one_line
from vit.weights import architecture

SHOWN = (
    "path", "checksum", "format", "encoder", "decoder", "parameters", "mean", "std", "crop_share",
    "interpolation", "class_names",
)  # fmt: skip
"""The facts that `describe` prints."""


def facts(network: Network) -> dict[str, Any]:
    """Return what a checkpoint is, and its report, in plain values.

    Every tensor for the model is read once to count nan and infinite values, a problem unless they
    are allowed.
    """
    source = network.source
    # each once: a batch norm that is folded in is needed by weight and bias of the head
    network.report.problems += dict.fromkeys(network.bad_values())
    # its origin, before the report is copied, to which it adds notes
    origin = origin_of(network)
    return {
        "path": source.path,
        "files": source.files,
        "checksum": "verified" if "sha256" in source.config else "none",
        "format": network.format.name,
        **architecture(network.model),
        "parameters": sum(tensor.value.numel() for tensor in network.tensors.values()),
        "mean": origin.normalize.mean,
        "std": origin.normalize.std,
        "interpolation": origin.interpolation,
        "crop_share": origin.crop_share,
        "squash": origin.squash,
        "class_names": list(origin.class_names),
        **asdict(network.report),
    }


def describe(values: dict[str, Any], report: object) -> str:
    """Return the `facts` of a network as lines, and its report."""
    # settings and lists in one line each
    lines = []
    for key in SHOWN:
        value = values[key]
        if isinstance(value, dict):
            value = ", ".join(f"{name} {size_text(setting)}" for name, setting in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value))
        lines.append(f"{key:<18} {one_line(str(value))}")
    return "\n".join([*lines, "", str(report)])
