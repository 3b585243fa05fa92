"""From the names and shapes in a checkpoint to a model: which architecture, and what becomes of every tensor.

A plan can be shown before, or instead of, loading: of the values it looks at the position table alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch

from vit.checkpoints.architecture import Reader, drop, text
from vit.checkpoints.formats import FORMATS, Format, Hints, refusal
from vit.checkpoints.formats.format import checked
from vit.checkpoints.names import NOTES, Value, moves_in
from vit.checkpoints.origin import Report
from vit.checkpoints.reading import CheckpointError, Source, shown
from vit.config import DecoderConfig, ViTConfig
from vit.encoder import VisionTransformer
from vit.errors import one_line
from vit.load_options import LoadOptions
from vit.mae import Model, build_autoencoder

# Of several copies of the network in one file, the first of these is taken: averaged weights before the last ones.
BRANCHES = ("teacher", "target_encoder", "model_ema", "state_dict_ema", "ema")
LAST_BRANCHES = ("student",)
# What stands in training files beside the network.
NOT_THE_NETWORK = (
    (r"(.*\.)?(opt|optim|optimizers?|optimizer_states?|lr_schedulers?|schedulers?|(amp_|grad_)?scaler|loops|callbacks)\..*",
     "the state of the training, not of the network"),
    (r"watch\..*", "what was recorded of the training"),
    (r"(.*\.)?(rng|\w*(rng|random)_states?(_all)?)(\..*)?", "the state of a random generator"),
    (r"(.*\.)?n_averaged", "how many weights were averaged"),
    (r"(.*\.)?(dino_loss|ibot_patch_loss|koleo_loss|loss_fn)\..*", "the state of a loss"),
    (r"(.*\.)?(head\.(mlp|last_layer|\d+)|dino_head|ibot_head|projection_head|projector)\..*",
     "a projection head of the training"),
    (r"(.*\.)?predictor\..*", "the predictor of the training"),
)  # fmt: skip
# What torch puts into the names of a compiled, sharded or recomputing module, at any depth.
WRAPPERS = re.compile(r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
MOST_COPIES = 64


@dataclass
class Plan:
    """How a checkpoint becomes a model.

    Attributes:
        source: what was read, without `WRAPPERS`.
        format: as recognised.
        prefix: what stands before the names of its tensors.
        encoder: its architecture.
        decoder: likewise; None for an encoder alone.
        norm_pix_loss: of the autoencoder.
        values: by our names (see `vit.checkpoints.names`).
        hints: what the settings said.
        report: for the user.
    """

    source: Source
    format: Format
    prefix: str
    encoder: ViTConfig
    decoder: DecoderConfig | None
    norm_pix_loss: bool
    values: dict[str, Value]
    hints: Hints
    report: Report

    def build(self) -> Model:
        """The model, newly initialised."""
        if self.decoder is None:
            return VisionTransformer(self.encoder)
        return build_autoencoder(self.encoder, self.decoder, self.norm_pix_loss)

    def named(self, target: str) -> str:
        """A name of ours as the model has it: an autoencoder holds its encoder under `encoder.`."""
        return target if self.decoder is None or target.startswith("decoder.") else f"encoder.{target}"

    def allowed(self, request: LoadOptions, target: str) -> bool:
        """Whether `request` allows one of ours, by any name that a message could have called it."""
        value = self.values.get(target)
        theirs = value.move.sources if value else ()
        return request.allows(
            target, f"encoder.{target}", *theirs, *(name.removeprefix(self.prefix) for name in theirs)
        )

    def compare(self, request: LoadOptions) -> None:
        """Hold the values against what the model needs, and put the outcome into the report."""
        report, where = self.report, self.source.path
        try:
            with torch.device("meta"):  # shapes without the memory
                needed = {name: tuple(value.shape) for name, value in self.build().state_dict().items()}
        except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
            raise CheckpointError(f"{where}: its tensors make no model: {error}") from error
        for target, value in list(self.values.items()):
            name = self.named(target)
            if name not in needed:
                allowed = self.allowed(request, target)
                for theirs in self.values.pop(target).move.sources:
                    if allowed:
                        report.dropped[theirs] = "allowed"
                    else:
                        report.unexpected.append(theirs)
            elif needed[name] != value.shape:
                what = f"{', '.join(value.move.sources)} has the shape {text(value.shape)}"
                raise CheckpointError(f"{where}: {what}, where {text(needed[name])} is expected for {target}")
            elif value.notes:
                report.converted[target] = (value.move.sources, "; ".join(value.notes))
            else:
                report.used[value.move.sources[0]] = target
        held = {self.named(target) for target in self.values}
        report.missing = {name: shape for name, shape in needed.items() if name not in held}
        asked = {"head.weight", "head.bias"} if request.num_classes else set()
        asked |= {"cls_token"} if request.class_token else set()
        short = {name: name.removeprefix("encoder.") for name in report.missing}
        for what, names, advice in (
            ("missing", [name for name in short if short[name] not in asked and not self.allowed(request, short[name])],
             "the rest of the model would stay untrained"),
            ("unexpected", report.unexpected, "what they do is not known here"),
        ):  # fmt: skip
            if names:
                some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
                report.problems.append(f"{what}: {some}; {advice}. name them, or patterns, in allow to accept that")


def plan_model(source: Source, request: LoadOptions) -> Plan:
    """Recognise the format, read the architecture off the shapes, and give every tensor its place.

    What is missing or unexpected stands in the report, as problems unless allowed.

    Raises:
        CheckpointError: no format fits, or the tensors make no model; in one line.
    """
    report = Report(notes=list(source.notes))
    source = _unwrapped(source)
    format, prefix, copies = recognise(source, request.branch)
    shapes = {key.removeprefix(prefix): tuple(t.shape) for key, t in source.tensors.items() if key.startswith(prefix)}
    try:
        hints = checked(format.hints(source))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        raise CheckpointError(f"{source.path}: its settings cannot be used: {one_line(what)[:200]}") from error
    report.notes.extend(hints.notes)
    moves, unknown = moves_in(format.rows, shapes)
    left = {prefix + key: format.reason(key) for key in unknown}
    left |= {key: "" for key in source.tensors if not key.startswith(prefix)}
    for name, why in left.items():
        why = why or _why_beside(name, prefix, copies)
        if why or request.allows(name, name.removeprefix(prefix)):
            report.dropped[name] = why or "allowed"
        else:
            report.unexpected.append(name)
    values = {}
    for target, move in moves.items():
        parts = [shapes[name] for name in move.sources]
        shape = (sum(part[0] if part else 0 for part in parts), *parts[0][1:]) if len(parts) > 1 else parts[0]
        full = replace(move, sources=tuple(prefix + name for name in move.sources))
        values[target] = Value(full, shape, notes=[NOTES[move.change]] if move.change else [])
    if request.part == "encoder":
        for target in [name for name in values if name.startswith("decoder.")]:
            drop(values, target, "only the encoder was asked for", report)
    reader = Reader(source, format, hints, request, values, report)
    encoder = reader.encoder()
    decoder = reader.decoder(encoder)
    norm_pix = reader.norm_pix_loss() if decoder is not None else True
    plan = Plan(source, format, prefix, encoder, decoder, norm_pix, values, hints, report)
    plan.compare(request)
    return plan


def recognise(source: Source, branch: str | None = None) -> tuple[Format, str, list[str]]:
    """The format of a checkpoint, what stands before the names of the network's tensors in it, and before its copies'.

    Args:
        source: what was read.
        branch: which of several copies of the network: "student", "teacher", "model_ema", ...

    Raises:
        CheckpointError: no known format, or one that is known and not computed here.
    """
    copies = _copies(source)
    wrappings = {key: max(prefixes.values(), key=len) for key, prefixes in copies.items()}
    chosen = [key for key in copies if branch is None or branch in wrappings[key].split(".")]
    if copies and not chosen:
        there = shown(", ".join(sorted(wrapping.rstrip(".") or "the top level" for wrapping in wrappings.values())))
        raise CheckpointError(f"{source.path}: no copy of the network is called {branch!r}; there is: {there}")
    for key in sorted(chosen, key=lambda key: _preference(wrappings[key])):  # first which copy, then its format
        for format in FORMATS:
            prefix = copies[key].get(format.anchor)
            if prefix is None or not format.marked(source, prefix):
                continue
            inside = [name.removeprefix(prefix) for name in source.tensors if name.startswith(prefix)]
            if refused := refusal(inside):
                raise CheckpointError(f"{source.path}: {refused}")
            return format, prefix, [wrapping for other in copies if other != key for wrapping in copies[other].values()]
    if refused := refusal(source.tensors):
        raise CheckpointError(f"{source.path}: {refused}")
    some = ", ".join(list(source.tensors)[:3])
    if not source.tensors:
        raise CheckpointError(f"{source.path} holds no tensors")
    raise CheckpointError(
        f"{source.path}: its {len(source.tensors)} tensors ({some}, ...) are of no format that is known here; "
        "known are timm, MAE, DINO, DINOv2, torchvision, and Hugging Face's ViT, ViTMAE and Dinov2"
    )


def _copies(source: Source) -> dict[str, dict[str, str]]:
    """The networks in a checkpoint: the key of the patch embedding -> anchor of a format -> what stands before it.

    Raises:
        CheckpointError: they are too many to be copies of one network.
    """
    copies: dict[str, dict[str, str]] = {}
    for anchor in dict.fromkeys(format.anchor for format in FORMATS):
        pattern = re.compile(rf"(?P<prefix>(?:.*?\.)??){anchor}", re.DOTALL)
        for key in source.tensors:
            if match := pattern.fullmatch(key):
                copies.setdefault(key, {})[anchor] = match["prefix"]
    if len(copies) > MOST_COPIES:
        raise CheckpointError(f"{source.path} holds {len(copies):,} networks; at most {MOST_COPIES} are looked at")
    return copies


def _unwrapped(source: Source) -> Source:
    """The checkpoint with the names that the network's own code gives its tensors."""
    tensors = {WRAPPERS.sub("", name): tensor for name, tensor in source.tensors.items()}
    if len(tensors) != len(source.tensors):
        raise CheckpointError(f"{source.path} holds tensors that differ in what torch.compile or FSDP add to a name")
    return replace(source, tensors=tensors)


def _preference(prefix: str) -> tuple[int, int]:
    words = prefix.split(".")
    for rank, name in enumerate(BRANCHES):
        if name in words:
            return rank, len(prefix)
    return len(BRANCHES) + any(name in words for name in LAST_BRANCHES), len(prefix)


def _why_beside(key: str, prefix: str, copies: list[str]) -> str:
    """Why a tensor outside of the network's wrapping is left out; "" where nothing is known about it."""
    for copy in copies:
        if copy and key.startswith(copy):
            words = [word for word in copy.split(".") if word and word not in prefix.split(".")]
            return "another copy of the network" + (f"; branch {words[0]} takes it" if words else "")
    for pattern, why in NOT_THE_NETWORK:
        if re.fullmatch(pattern, key):
            return why
    return ""
