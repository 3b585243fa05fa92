"""What a checkpoint is, without loading it as a model: for `vit checkpoint inspect`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vit.checkpoints.loading import plan_origin, value_problems
from vit.checkpoints.plan import Plan
from vit.checkpoints.reading import check_finite
from vit.errors import one_line
from vit.load_options import LoadOptions


def facts(plan: Plan, request: LoadOptions) -> dict[str, Any]:
    """All that is known about a checkpoint, in plain values.

    Every tensor is read once, to count values that are nan or infinite: a problem where `load_model` refuses them, a note
    where it would not look at them or they are allowed.
    """
    source, report = plan.source, plan.report
    for target in plan.values:
        report.problems += value_problems(plan, request, target)
    for name, tensor in source.tensors.items():
        bad = 0 if tensor.device.type == "meta" else check_finite(tensor)
        if bad and not any(problem.startswith(f"{name} holds") for problem in report.problems):
            report.notes.append(f"{name} holds {bad} values that are nan or infinite")
    origin = plan_origin(plan)
    sizes = {name: tensor.numel() for name, tensor in source.tensors.items()}
    decoder = [v for name, v in plan.values.items() if name.startswith("decoder.")]
    count = sum(sizes[name] for value in plan.values.values() for name in value.move.sources)
    in_decoder = sum(sizes[name] for value in decoder for name in value.move.sources)
    return {
        "path": str(source.path),
        "files": [str(path) for path in source.files],
        "checksum": "verified" if source.verified else "none in its config.json",
        "format": plan.format.name,
        "encoder": asdict(plan.encoder),
        "decoder": None if plan.decoder is None else asdict(plan.decoder),
        "norm_pix_loss": plan.norm_pix_loss if plan.decoder else None,
        "grid_size": [
            size // patch for size, patch in zip(plan.encoder.image_size, plan.encoder.patch_size, strict=True)
        ],
        "parameters": {"encoder": count - in_decoder, "decoder": in_decoder},
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
    """`facts` as a table for people.

    Args:
        plan: of the checkpoint.
        known: its facts.
        every: list each tensor of the model with its shape and what it comes from.
    """
    encoder, decoder = plan.encoder, plan.decoder
    p, q = encoder.patch_size
    height, width = encoder.image_size
    rows, columns = known["grid_size"]
    prefix = ["class token"] if encoder.class_token else []
    prefix += [f"{encoder.registers} registers"] if encoder.registers else []
    extras = [
        *([] if encoder.qkv_bias else ["no qkv bias"]),
        *(["qk-norm"] if encoder.qk_norm else []),
        *(["layer scale"] if encoder.layer_scale is not None else []),
        *(["SwiGLU"] if encoder.mlp == "swiglu" else []),
        *(["Q = K = V = X"] if encoder.qkv == "identity" else []),
        f"norms with eps {encoder.norm_eps:g}",
    ]
    pool = "class token" if encoder.global_pool == "token" else "mean of the patches"
    where = "after the pooling" if encoder.fc_norm else "before the pooling"
    count = known["parameters"]
    lines = [
        ("file", ", ".join(known["files"]) or known["path"]),
        ("checksum", known["checksum"]),
        ("format", f"{known['format']}, {', '.join(known['dtypes'])}"),
        ("encoder", f"width {encoder.embed_dim}, {encoder.depth} blocks, {encoder.num_heads} heads, "
                    f"MLP x {encoder.mlp_ratio:g}, {', '.join(extras)}"),
        ("input", f"{encoder.channels} x {height} x {width}, patches of {p} x {q}, grid of {rows} x {columns}"),
        ("tokens", f"{rows * columns} patches" + (" + " + ", ".join(prefix) if prefix else "")),
        ("positions", ("fixed sin-cos" if encoder.pos_embed == "sincos" else "learned")
                      + (", none for the prefix" if encoder.no_embed_class else "")),
        ("pooling", f"{pool}, last norm {where}"),
        ("head", f"{encoder.num_classes} classes" if encoder.num_classes else "none"),
        ("decoder", "none" if decoder is None else
         f"width {decoder.dim}, {decoder.depth} blocks, {decoder.num_heads} heads, "
         f"predicts {'normalised ' if known['norm_pix_loss'] else ''}pixels"),
        ("parameters", f"{sum(count.values()):,}" + (f", {count['decoder']:,} of them the decoder's" if decoder else "")),
        ("normalised by", f"mean {_rounded(known['mean'])}, std {_rounded(known['std'])}, {known['interpolation']} resizing"),
    ]  # fmt: skip
    if known["class_names"]:
        names = known["class_names"]
        lines.append(("classes", ", ".join(names[:6]) + (f", ... ({len(names)})" if len(names) > 6 else "")))
    text = [f"{key:<18} {one_line(value)}" for key, value in lines]
    if every:
        width_ = max((len(plan.named(target)) for target in plan.values), default=0)
        text += [""] + [
            f"{plan.named(target):<{width_}}  {' x '.join(map(str, value.shape)):<18} {one_line(', '.join(value.move.sources))}"
            for target, value in plan.values.items()
        ]
    return "\n".join([*text, "", str(plan.report)])


def _rounded(values: list[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
