"""Any pretrained vision transformer in one call."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vit.checkpoints.formats import timm
from vit.checkpoints.origin import Origin
from vit.checkpoints.plan import Plan, plan_model
from vit.checkpoints.reading import (
    SUFFIXES,
    CheckpointError,
    Source,
    check_finite,
    check_ordinary,
    flatten,
    read_checkpoint,
    shown,
)
from vit.checkpoints.resize import adapt_statistics
from vit.data.augment import Normalization
from vit.load_options import LoadOptions
from vit.mae import Model
from vit.pretrained import shipped_models

INTERPOLATIONS = ("bicubic", "bilinear")
SHIPPED = "the model of that name that comes with the package"


def load_model(
    source: str | Path | Mapping[str, Tensor],
    *,
    part: Literal["encoder"] | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    num_classes: int | None = None,
    class_token: bool | None = None,
    global_pool: Literal["token", "avg"] | None = None,
    fc_norm: bool | None = None,
    num_heads: int | None = None,
    decoder_heads: int | None = None,
    norm_pix_loss: bool | None = None,
    norm_eps: float | None = None,
    grid_size: tuple[int, int] | None = None,
    branch: str | None = None,
    allow: Sequence[str] = (),
) -> Model:
    """Load a pretrained vision transformer, whoever trained it.

    Args:
        source: a run folder or another folder with weights; a .safetensors, .pth, .pt or .bin file; the name of a model
            that comes with the package (`vit models` lists them), unless a file or folder here is called so; "timm/NAME",
            fetched by timm; "hf/ORGANISATION/NAME", fetched by huggingface_hub; or a state dict in memory.
        part: "encoder" leaves a decoder out; None takes all that is there.
        image_size: pixels, a number for squares or (H, W): the position table is resized.
        patch_size: pixels, likewise: patch kernels are resized, and positions with them.
        channels: of the images: patch kernels are summed (1) or repeated.
        num_classes: of the head; 0 leaves it out, another number than the checkpoint's begins a new one.
        class_token: False leaves it out, with its position.
        global_pool: "token" or "avg", what the head reads.
        fc_norm: whether the final norm stands after the pooling.
        num_heads, decoder_heads: where nothing in the checkpoint says so (else they are guessed from the width, with a note).
        norm_pix_loss: of an autoencoder, where nothing in the checkpoint says so.
        norm_eps: of all norms, likewise.
        grid_size: (rows, columns) of the checkpoint's position table, where it is not square and nothing says so.
        branch: of several copies of the network in a file, the one within this key: "student", "teacher", "model_ema".
        allow: names or patterns ("decoder.*"), theirs or ours, of tensors that may be missing, unexpected, or hold nan.

    Returns:
        A `VisionTransformer`, or a `MaskedAutoencoder` where the checkpoint holds a decoder; float32, on the CPU, in eval
        mode. Its `origin` says what became of every tensor and what its input must go through.

    Raises:
        CheckpointError: in one line: the file cannot be read or is not safe, its family is not computed here, or a tensor is
            missing, unexpected, of another shape, or not finite.
    """
    request = LoadOptions(
        part, image_size, patch_size, channels, num_classes, class_token, global_pool, fc_norm, num_heads, decoder_heads,
        norm_pix_loss, norm_eps, grid_size, branch, allow,
    )  # fmt: skip
    plan = plan_model(find(source), request)
    model = build(plan, request)
    if missing := plan.report.missing:
        count = sum(torch.Size(shape).numel() for shape in missing.values())
        warnings.warn(f"{plan.source.path}: untrained, {count:,} parameters: {', '.join(missing)}", stacklevel=2)
    return model


def load_trained(source: str | Path, **asked: Any) -> Model:
    """`load_model`, of a model that is to be looked at or measured: no part of it may be untrained.

    Raises:
        CheckpointError: as `load_model`, or a part is.
    """
    with warnings.catch_warnings(action="ignore"):
        model = load_model(source, **asked)
    if missing := model.origin.report.missing:
        raise CheckpointError(
            f"{source}: parts of this model are untrained ({next(iter(missing))}, {len(missing)} in all)"
        )
    return model


def find(source: str | Path | Mapping[str, Tensor]) -> Source:
    """The checkpoint that `load_model` calls by this name, read.

    Raises:
        CheckpointError: it is not there, cannot be fetched, or cannot be read safely.
    """
    if isinstance(source, Mapping):
        name = "the state dict"
        tensors, other = flatten(dict(source), name)
        for key, tensor in tensors.items():
            check_ordinary(name, key, tensor)
            tensors[key] = tensor.detach() if tensor.device.type == "meta" else tensor.detach().cpu()
        return Source(Path(name), (), tensors, other, {}, {}, False)
    if not isinstance(source, str | Path) or source == "":
        kind = "an empty name" if source == "" else f"a {type(source).__name__}"
        raise CheckpointError(
            f"a checkpoint is a path, a name, or a state dict (of a model, model.state_dict()), got {kind}"
        )
    name = str(source)
    fetched = isinstance(source, str) and not os.path.exists(source)  # Path.exists raises on names that are too long
    if fetched and name.startswith("timm/"):
        return timm.fetch(name)
    if fetched and name.startswith("hf/"):
        from vit.checkpoints.hub import download

        return read_checkpoint(download(name.removeprefix("hf/")))
    named = isinstance(source, str) and not re.search(r"[/\\]", name)
    there = shipped_models() if named else {}
    if fetched and name in there:
        return replace(read_checkpoint(there[name]), path=Path(name))
    try:
        found = read_checkpoint(source)
    except CheckpointError as error:
        if name in there:
            raise CheckpointError(
                f"{error}; it stands before {SHIPPED}, rename it or call that from elsewhere"
            ) from error
        if fetched and there and Path(name).suffix not in SUFFIXES:
            raise CheckpointError(f"{error}; with the package come {', '.join(there)}") from error
        raise
    if name in there:
        return replace(found, notes=(f"this is what is called {name} here, not {SHIPPED}",))
    return found


@torch.no_grad()
def build(plan: Plan, request: LoadOptions) -> Model:
    """The model of a plan, with its weights.

    Raises:
        CheckpointError: the plan has problems, or a tensor is not finite.
    """
    report, where = plan.report, plan.source.path
    if report.problems:
        raise CheckpointError(f"{where}: {report.problems[0]}")
    try:
        return _build(plan, request)
    except (RuntimeError, MemoryError) as error:  # of sizes that were asked for, or are in the file
        raise CheckpointError(f"{where}: the model cannot be made: {shown(str(error), 200)}") from error


def _build(plan: Plan, request: LoadOptions) -> Model:
    state: dict[str, Tensor] = {}
    for target, value in plan.values.items():
        if problems := value_problems(plan, request, target):
            raise CheckpointError(f"{plan.source.path}: {problems[0]}")
        tensors = [plan.source.tensors[name] for name in value.move.sources]
        result = value.move.read(tensors, plan.encoder.channels)
        for step in value.steps:
            result = step(result)
        # The model's values are its own. What is new already is not copied again: freed copies would stay in the heap.
        sources = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        borrowed = result.untyped_storage().data_ptr() in sources
        state[plan.named(target)] = result.to(torch.float32, copy=borrowed).contiguous()
    # A fresh model is only needed for what the checkpoint does not hold.
    missing = bool(plan.report.missing)
    with torch.device("cpu" if missing else "meta"):
        model = plan.build()
    model.load_state_dict(state, strict=not missing, assign=True)
    model.origin = plan_origin(plan)
    return model.eval()


def value_problems(plan: Plan, request: LoadOptions, target: str) -> list[str]:
    """Why the values of one of the model's tensors cannot be used: no weights, or not finite and not allowed to be."""
    problems = []
    for name in plan.values[target].move.sources:
        tensor = plan.source.tensors[name]
        if tensor.device.type == "meta":
            problems.append(f"{name} is on the device meta: it has a shape and no values")
        elif not tensor.is_floating_point() or tensor.dtype is torch.float4_e2m1fn_x2:  # the last, torch cannot convert
            problems.append(f"{name} holds {str(tensor.dtype).removeprefix('torch.')}, not weights")
        elif (bad := check_finite(tensor)) and not plan.allowed(request, target):
            advice = "the training that made it diverged, or the file is damaged"
            problems.append(f"{name} holds {bad} values that are nan or infinite; {advice}")
    return problems


def plan_origin(plan: Plan) -> Origin:
    """What travels with the model, from the settings or else by the format's habit, which is noted."""
    hints, format, report = plan.hints, plan.format, plan.report
    if hints.mean is None or hints.std is None:
        what = f"mean {format.mean}, std {format.std}"
        report.notes.append(
            f"nothing says how its input was normalised; taken as {what}, as is usual for {format.name}"
        )
    mean, std = hints.mean or format.mean, hints.std or format.std
    channels = plan.encoder.channels
    if len(mean) != channels:
        report.notes.append(f"mean and deviation of its input are for {len(mean)} channels, made {channels}")
        mean, std = adapt_statistics(mean, channels), adapt_statistics(std, channels)
    interpolation = format.interpolation if hints.interpolation is None else hints.interpolation
    if interpolation not in INTERPOLATIONS:
        report.notes.append(
            f"its settings resize images by {interpolation!r}, which is not done here; taken as {format.interpolation}"
        )
        interpolation = format.interpolation
    details: dict[str, Any] = plan.source.config
    return Origin(
        source=str(plan.source.path),
        format=format.name,
        normalize=Normalization(list(mean), list(std)),
        interpolation=interpolation,
        image_size=plan.encoder.image_size,
        channels=channels,
        class_names=hints.class_names if plan.encoder.num_classes in (0, len(hints.class_names)) else (),
        data=str(details.get("data") or plan.source.other.get("data", "")),
        data_stamp=str(details.get("data_stamp") or plan.source.other.get("data_stamp", "")),
        report=report,
        details=details,
    )
