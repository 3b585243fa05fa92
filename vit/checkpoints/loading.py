"""Any pretrained vision transformer in one call: a short path for our own, and one for all others, step by step."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints import hub
from vit.checkpoints.adapt import adapt_class_token, adapt_head, adapt_sizes
from vit.checkpoints.architecture import read_decoder, read_encoder
from vit.checkpoints.formats import timm
from vit.checkpoints.formats.native import FORMAT
from vit.checkpoints.native import build_model, load_native
from vit.checkpoints.origin import Origin, size_text
from vit.checkpoints.plan import Plan
from vit.checkpoints.reading import SUFFIXES, Source, flatten, read_checkpoint, shorten
from vit.checkpoints.recognise import recognise
from vit.config import ViTConfig
from vit.load_options import CheckpointError, LoadOptions
from vit.mae import Model
from vit.pretrained import shipped_models

SHIPPED = "the model of that name that comes with the package"


def load_model(
    checkpoint: str | Path | Mapping[str, Tensor], options: LoadOptions | None = None, **fields: Any
) -> Model:
    """Load a pretrained vision transformer, whoever trained it.

    Args:
        checkpoint: a run folder or another folder with weights; a .safetensors, .pth, .pt or .bin file; the name of a model
            that comes with the package (`vit models` lists them), unless a file or folder here is called so; "timm/NAME",
            fetched by timm; "hf/ORGANISATION/NAME", fetched by huggingface_hub; or a state dict in memory.
        options: how it is read; by default as it is.
        fields: of `LoadOptions`, one by one: part="encoder", image_size=64, num_classes=0, ...

    Returns:
        A `VisionTransformer`, or a `MaskedAutoencoder` if the checkpoint holds a decoder; float32, on the CPU, in eval mode.
        Its `origin` says what became of every tensor and how to prepare its input.

    Raises:
        CheckpointError: in one line: the file cannot be read or is not safe, its family is not computed here, or a tensor is
            missing, unexpected, of another shape, or not finite.
    """
    options = replace(options or LoadOptions(), **fields)
    source = find(checkpoint)
    if source.config.get("format") == FORMAT and options == LoadOptions():
        return load_native(source)
    plan = plan_model(source, options)
    model = build(plan)
    if missing := plan.report.missing:
        count = sum(torch.Size(shape).numel() for shape in missing.values())
        warnings.warn(f"{source.path}: untrained, {count:,} parameters: {', '.join(missing)}", stacklevel=2)
    return model


def load_trained(checkpoint: str | Path, options: LoadOptions | None = None, **fields: Any) -> Model:
    """`load_model`, of a model that is to be looked at or measured: no part of it may be untrained.

    Raises:
        CheckpointError: as `load_model`, or a part is.
    """
    with warnings.catch_warnings(action="ignore"):
        model = load_model(checkpoint, options, **fields)
    if missing := model.origin.report.missing:
        some = f"{next(iter(missing))}, {len(missing)} in all"
        raise CheckpointError(f"{checkpoint}: parts of this model are untrained ({some})")
    return model


def find(checkpoint: str | Path | Mapping[str, Tensor]) -> Source:
    """Read the checkpoint that `load_model` calls by this name.

    Raises:
        CheckpointError: it is not there, cannot be fetched, or cannot be read safely.
    """
    if isinstance(checkpoint, Mapping):
        tensors, other = flatten(dict(checkpoint))
        return Source(Path("the state dict"), (), tensors, other, {}, {}, False)
    if not isinstance(checkpoint, str | Path) or checkpoint == "":
        kind = "an empty name" if checkpoint == "" else f"a {type(checkpoint).__name__}"
        raise CheckpointError(
            f"a checkpoint is a path, a name, or a state dict (of a model, model.state_dict()), got {kind}"
        )

    # a name, unless a file or folder here is called so
    name = str(checkpoint)
    here = isinstance(checkpoint, Path) or os.path.exists(name)  # Path.exists raises on names that are too long
    if not here and name.startswith("timm/"):
        return timm.fetch(name)
    if not here and name.startswith("hf/"):
        return read_checkpoint(hub.download(name.removeprefix("hf/")))
    shipped = {} if isinstance(checkpoint, Path) or re.search(r"[/\\]", name) else shipped_models()
    if not here and name in shipped:
        return replace(read_checkpoint(shipped[name]), path=Path(name))

    # a path
    try:
        source = read_checkpoint(name)
    except CheckpointError as error:
        if name in shipped:
            raise CheckpointError(
                f"{error}; it stands before {SHIPPED}, rename it or call that from elsewhere"
            ) from error
        if not here and shipped and Path(name).suffix not in SUFFIXES:
            raise CheckpointError(f"{error}; with the package come {', '.join(shipped)}") from error
        raise
    if name in shipped:
        return replace(source, notes=(f"this is what is called {name} here, not {SHIPPED}",))
    return source


def plan_model(source: Source, options: LoadOptions) -> Plan:
    """Recognise the format, read the architecture off the shapes, change what was asked for, and account for every tensor.

    What is missing or unexpected stands in the report, as problems unless allowed.

    Raises:
        CheckpointError: no format fits, or the tensors make no model; in one line.
    """
    plan = recognise(source, options)
    encoder = read_encoder(plan)
    adapt_head(plan, encoder)
    adapt_class_token(plan, encoder)
    adapt_sizes(plan, encoder)
    plan.encoder = ViTConfig(**encoder)
    plan.decoder = read_decoder(plan, plan.encoder)
    _account(plan)
    return plan


def _account(plan: Plan) -> None:
    """Hold the tensors against what the model needs, and put the outcome into the report."""
    report, options = plan.report, plan.options
    try:
        with torch.device("meta"):  # shapes without the memory
            model = build_model(plan.encoder, plan.decoder, plan.norm_pix_loss)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
        raise plan.error(f"its tensors make no model: {error}") from error
    needed = {name: tuple(value.shape) for name, value in model.state_dict().items()}

    # what there is: used, converted, or without a place
    for ours, tensor in list(plan.tensors.items()):
        name, theirs = plan.model_name(ours), tensor.keys.theirs
        if name not in needed:
            if plan.allows(ours):
                plan.drop(ours, "allowed")
            else:
                del plan.tensors[ours]
                report.unexpected += theirs
        elif needed[name] != tensor.shape:
            what = f"{', '.join(theirs)} has the shape {size_text(tensor.shape)}"
            raise plan.error(f"{what}, where {size_text(needed[name])} is expected for {ours}")
        elif tensor.notes:
            report.converted[ours] = (theirs, "; ".join(tensor.notes))
        else:
            report.used[theirs[0]] = ours

    # what there is not
    held = {plan.model_name(ours) for ours in plan.tensors}
    report.missing = {name: shape for name, shape in needed.items() if name not in held}
    new = {"head.weight", "head.bias"} if options.num_classes else set()
    new |= {"cls_token"} if options.class_token else set()
    short = {name: name.removeprefix("encoder.") for name in report.missing}
    missing = [name for name in short if short[name] not in new and not plan.allows(short[name])]
    for what, names, advice in (
        ("missing", missing, "the rest of the model would stay untrained"),
        ("unexpected", report.unexpected, "what they do is not known here"),
    ):
        if names:
            some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            report.problems.append(f"{what}: {some}; {advice}. name them, or patterns, in allow to accept that")


@torch.no_grad()
def build(plan: Plan) -> Model:
    """Build the model of a plan, with its weights.

    Raises:
        CheckpointError: the plan has problems, or a tensor is not finite.
    """
    if plan.report.problems:
        raise plan.error(plan.report.problems[0])
    state: dict[str, Tensor] = {}
    try:
        for ours, tensor in plan.tensors.items():
            if problem := plan.problem(ours):
                raise plan.error(problem)
            theirs = [plan.source.tensors[name] for name in tensor.keys.theirs]
            value = tensor.keys.read(theirs, plan.encoder.channels)
            for step in tensor.steps:
                value = step(value)
            # The model's values are its own. What is new already is not copied again: freed copies would stay in the heap.
            borrowed = any(value.untyped_storage().data_ptr() == part.untyped_storage().data_ptr() for part in theirs)
            state[plan.model_name(ours)] = value.to(torch.float32, copy=borrowed).contiguous()
        # A fresh model is only needed for what the checkpoint does not hold.
        missing = bool(plan.report.missing)
        with torch.device("cpu" if missing else "meta"):
            model = build_model(plan.encoder, plan.decoder, plan.norm_pix_loss)
        model.load_state_dict(state, strict=not missing, assign=True)
    except (RuntimeError, MemoryError) as error:  # of sizes that were asked for, or are in the file
        raise plan.error(f"the model cannot be made: {shorten(str(error), 200)}") from error
    model.origin = Origin.of(plan.source, plan.format, plan.hints, plan.encoder, plan.report)
    return model.eval()
