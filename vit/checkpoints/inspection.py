"""What a checkpoint is and what would become of each tensor, without building the model: for `vit checkpoint inspect`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vit.checkpoints.loading import origin_of
from vit.checkpoints.network import Network
from vit.checkpoints.reading import count_not_finite
from vit.checkpoints.report import size_text
from vit.config import ViTConfig
from vit.errors import one_line

SIZES = ("image_size", "patch_size", "channels", "embed_dim", "dim", "depth", "num_heads")


def facts(network: Network) -> dict[str, Any]:
    """Return all that is known about a checkpoint, in plain values.

    Every tensor is read once to count nan and infinite values: a problem if `load_model` would refuse them, a note if it would
    ignore or allow them.
    """
    source, report = network.source, network.report
    report.problems += filter(None, map(network.problem, network.tensors))
    for name, tensor in source.tensors.items():
        bad = 0 if tensor.device.type == "meta" else count_not_finite(tensor)
        if bad and not any(problem.startswith(f"{name} holds") for problem in report.problems):
            report.notes.append(f"{name} holds {bad} values that are nan or infinite")
    origin = origin_of(network)
    (height, width), (p, q) = network.encoder.image_size, network.encoder.patch_size
    count = {"encoder": 0, "decoder": 0}
    for ours, taken in network.tensors.items():
        part = "decoder" if ours.startswith("decoder.") else "encoder"
        count[part] += taken.value.numel()
    return {
        "path": str(source.path),
        "files": [str(path) for path in source.files],
        "checksum": "verified" if source.verified else "none in its config.json" if source.config else "none",
        "format": network.format.name,
        "encoder": asdict(network.encoder),
        "decoder": None if network.decoder is None else asdict(network.decoder),
        "norm_pix_loss": network.norm_pix_loss if network.decoder else None,
        "grid_size": [height // p, width // q],
        "parameters": count,
        "dtypes": sorted({str(tensor.dtype).removeprefix("torch.") for tensor in source.tensors.values()}),
        "mean": origin.normalize.mean,
        "std": origin.normalize.std,
        "interpolation": origin.interpolation,
        "crop_share": origin.crop_share,
        "class_names": list(origin.class_names),
        "used": report.used,
        "converted": {target: {"from": list(names), "how": how} for target, (names, how) in report.converted.items()},
        "dropped": report.dropped,
        "missing": {name: list(shape) for name, shape in report.missing.items()},
        "unexpected": report.unexpected,
        "notes": report.notes,
        "problems": report.problems,
    }


def describe(network: Network, known: dict[str, Any], every: bool = False) -> str:
    """Return the `facts` of a network as a readable table; with `every`, also list each tensor of the model."""
    decoder, names, count = network.decoder, known["class_names"], known["parameters"]
    mean, std = (", ".join(f"{value:.3f}" for value in known[key]) for key in ("mean", "std"))
    cropped = f", the middle {known['crop_share']:.1%}" if known["crop_share"] < 1 else ""
    table = {
        "file": ", ".join(known["files"]) or known["path"],
        "checksum": known["checksum"],
        "format": f"{known['format']}, {', '.join(known['dtypes'])}",
        "encoder": _settings(known["encoder"]),
        "grid": f"{size_text(known['grid_size'])} patches",
        "decoder": "none",
        "parameters": f"{sum(count.values()):,}" + (f", {count['decoder']:,} of them the decoder's" if decoder else ""),
        "normalised by": f"mean {mean}, std {std}, {known['interpolation']} resizing{cropped}",
    }
    if decoder:
        target = "normalised pixels" if network.norm_pix_loss else "pixels"
        table["decoder"] = f"{_settings(known['decoder'])}, predicts {target}"
    if names:
        table["classes"] = ", ".join(names[:6]) + (f", ... ({len(names)})" if len(names) > 6 else "")
    lines = [f"{key:<18} {one_line(value)}" for key, value in table.items()]
    if every:
        width = max((len(network.model_name(ours)) for ours in network.tensors), default=0)
        lines.append("")
        for ours, tensor in network.tensors.items():
            shape, theirs = size_text(tuple(tensor.value.shape)), one_line(", ".join(tensor.theirs))
            lines.append(f"{network.model_name(ours):<{width}}  {shape:<18} {theirs}")
    return "\n".join([*lines, "", str(network.report)])


def _settings(config: dict[str, Any]) -> str:
    """Return the sizes, and all settings that are not defaults."""
    defaults = asdict(ViTConfig())
    shown = {key: value for key, value in config.items() if key in SIZES or value != defaults.get(key, value)}
    return ", ".join(f"{key} {size_text(value)}" for key, value in shown.items())
