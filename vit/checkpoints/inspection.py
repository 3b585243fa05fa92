"""What a checkpoint is and what would become of each tensor, without the model: for `vit checkpoint inspect`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vit.checkpoints.origin import Origin, size_text
from vit.checkpoints.plan import Plan
from vit.checkpoints.reading import count_not_finite
from vit.errors import one_line


def facts(plan: Plan) -> dict[str, Any]:
    """Return all that is known about a checkpoint, in plain values.

    Every tensor is read once, to count values that are nan or infinite: a problem if `load_model` refuses them, a note if it
    would not look at them or they are allowed.
    """
    source, report = plan.source, plan.report
    report.problems += filter(None, map(plan.problem, plan.tensors))
    for name, tensor in source.tensors.items():
        bad = 0 if tensor.device.type == "meta" else count_not_finite(tensor)
        if bad and not any(problem.startswith(f"{name} holds") for problem in report.problems):
            report.notes.append(f"{name} holds {bad} values that are nan or infinite")
    origin = Origin.of(source, plan.format, plan.hints, plan.encoder, report)
    (height, width), (p, q) = plan.encoder.image_size, plan.encoder.patch_size
    count = {"encoder": 0, "decoder": 0}
    for ours, planned in plan.tensors.items():
        part = "decoder" if ours.startswith("decoder.") else "encoder"
        count[part] += sum(source.tensors[name].numel() for name in planned.keys.theirs)
    return {
        "path": str(source.path),
        "files": [str(path) for path in source.files],
        "checksum": "verified" if source.verified else "none in its config.json",
        "format": plan.format.name,
        "encoder": asdict(plan.encoder),
        "decoder": None if plan.decoder is None else asdict(plan.decoder),
        "norm_pix_loss": plan.norm_pix_loss if plan.decoder else None,
        "grid_size": [height // p, width // q],
        "parameters": count,
        "dtypes": sorted({str(tensor.dtype).removeprefix("torch.") for tensor in source.tensors.values()}),
        "mean": origin.normalize.mean,
        "std": origin.normalize.std,
        "interpolation": origin.interpolation,
        "class_names": list(origin.class_names),
        "used": report.used,
        "converted": {target: {"from": list(names), "how": how} for target, (names, how) in report.converted.items()},
        "dropped": report.dropped,
        "missing": {name: list(shape) for name, shape in report.missing.items()},
        "unexpected": report.unexpected,
        "notes": report.notes,
        "problems": report.problems,
    }


def describe(plan: Plan, known: dict[str, Any], every: bool = False) -> str:
    """Return the `facts` of a plan as a table for people; with `every`, list each tensor of the model too."""
    encoder, decoder, names = plan.encoder, plan.decoder, known["class_names"]
    prefix = ["class token"] if encoder.class_token else []
    prefix += [f"{encoder.registers} registers"] if encoder.registers else []
    blocks = [
        f"width {encoder.embed_dim}, {encoder.depth} blocks, {encoder.num_heads} heads, MLP x {encoder.mlp_ratio:g}",
        *([] if encoder.qkv_bias else ["no qkv bias"]),
        *(["qk-norm"] if encoder.qk_norm else []),
        *(["layer scale"] if encoder.layer_scale is not None else []),
        *(["SwiGLU"] if encoder.mlp == "swiglu" else []),
        *(["Q = K = V = X"] if encoder.qkv == "identity" else []),
        f"norms with eps {encoder.norm_eps:g}",
    ]
    sizes = f"{size_text((encoder.channels, *encoder.image_size))}, patches of {size_text(encoder.patch_size)}"
    rows, columns = known["grid_size"]
    positions = "fixed sin-cos" if encoder.pos_embed == "sincos" else "learned"
    pool = "class token" if encoder.global_pool == "token" else "mean of the patches"
    count, decoding = known["parameters"], "none"
    if decoder is not None:
        target = "normalised pixels" if known["norm_pix_loss"] else "pixels"
        decoding = f"width {decoder.dim}, {decoder.depth} blocks, {decoder.num_heads} heads, predicts {target}"
    mean, std = (", ".join(f"{value:.3f}" for value in known[key]) for key in ("mean", "std"))
    table = {
        "file": ", ".join(known["files"]) or known["path"],
        "checksum": known["checksum"],
        "format": f"{known['format']}, {', '.join(known['dtypes'])}",
        "encoder": ", ".join(blocks),
        "input": f"{sizes}, grid of {rows} x {columns}",
        "tokens": " + ".join([f"{rows * columns} patches", *([", ".join(prefix)] if prefix else [])]),
        "positions": positions + (", none for the prefix" if encoder.no_embed_class else ""),
        "pooling": f"{pool}, last norm {'after' if encoder.fc_norm else 'before'} the pooling",
        "head": f"{encoder.num_classes} classes" if encoder.num_classes else "none",
        "decoder": decoding,
        "parameters": f"{sum(count.values()):,}" + (f", {count['decoder']:,} of them the decoder's" if decoder else ""),
        "normalised by": f"mean {mean}, std {std}, {known['interpolation']} resizing",
    }
    if names:
        table["classes"] = ", ".join(names[:6]) + (f", ... ({len(names)})" if len(names) > 6 else "")
    lines = [f"{key:<18} {one_line(value)}" for key, value in table.items()]
    if every:
        width = max((len(plan.model_name(ours)) for ours in plan.tensors), default=0)
        lines.append("")
        for ours, tensor in plan.tensors.items():
            theirs = one_line(", ".join(tensor.keys.theirs))
            lines.append(f"{plan.model_name(ours):<{width}}  {size_text(tensor.shape):<18} {theirs}")
    return "\n".join([*lines, "", str(plan.report)])
