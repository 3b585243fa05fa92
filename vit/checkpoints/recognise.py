"""Which format a checkpoint has, which of several networks in it is taken, and which of its tensors is which of ours."""

from __future__ import annotations

import re
from dataclasses import replace

from vit.checkpoints.formats import FORMATS, Format, refusal
from vit.checkpoints.names import NOTES, map_in
from vit.checkpoints.origin import Report
from vit.checkpoints.plan import Plan, TensorPlan
from vit.checkpoints.reading import Source, shorten
from vit.load_options import CheckpointError, LoadOptions

# Of several copies of the network in one file, the first of these is taken: averaged weights before the last ones.
BRANCHES = ("teacher", "target_encoder", "model_ema", "state_dict_ema", "ema")
LAST_BRANCHES = ("student",)
# What stands in training files beside the network, at any depth.
NOT_THE_NETWORK = {
    r"(opt|optim|optimizers?|optimizer_states?|lr_schedulers?|schedulers?|(amp_|grad_)?scaler|loops|callbacks)\..*":
        "the state of the training, not of the network",
    r"watch\..*": "what was recorded of the training",
    r"(rng|\w*(rng|random)_states?(_all)?)(\..*)?": "the state of a random generator",
    r"n_averaged": "how many weights were averaged",
    r"(dino_loss|ibot_patch_loss|koleo_loss|loss_fn)\..*": "the state of a loss",
    r"(head\.(mlp|last_layer|\d+)|dino_head|ibot_head|projection_head|projector)\..*": "a projection head of the training",
    r"predictor\..*": "the predictor of the training",
}  # fmt: skip
# What torch puts into the names of a compiled, sharded or recomputing module, at any depth.
WRAPPERS = re.compile(r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def recognise(source: Source, options: LoadOptions) -> Plan:
    """Find the network in a checkpoint, and give every tensor its place, or the reason why it has none.

    Raises:
        CheckpointError: no format fits, or one that is known and not computed here, or its settings cannot be used.
    """
    # the names that the network's own code gives its tensors
    tensors = {WRAPPERS.sub("", name): tensor for name, tensor in source.tensors.items()}
    if len(tensors) != len(source.tensors):
        raise CheckpointError(f"{source.path} holds tensors that differ in what torch.compile or FSDP add to a name")
    source = replace(source, tensors=tensors)

    # the format and its settings
    format, prefix, copies = _choose(source, options.branch)
    try:
        hints = format.hints(source)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{source.path}: its settings cannot be used: {shorten(what, 200)}") from error
    report = Report(notes=[*source.notes, *hints.notes])

    # what no rule knows has a reason, or is unexpected
    shapes = {key.removeprefix(prefix): tuple(t.shape) for key, t in tensors.items() if key.startswith(prefix)}
    maps, unknown = map_in(format.rules, shapes)
    beside = [prefix + key for key in unknown] + [key for key in tensors if not key.startswith(prefix)]
    for name in beside:
        why = format.reason(name.removeprefix(prefix)) if name.startswith(prefix) else ""
        why = why or _why_beside(name, prefix, copies)
        if why or options.allows(name, name.removeprefix(prefix)):
            report.dropped[name] = why or "allowed"
        else:
            report.unexpected.append(name)

    # what a rule knows becomes one of ours
    plan = Plan(source, options, format, prefix, hints, {}, report)
    for ours, keys in maps.items():
        parts = [shapes[name] for name in keys.theirs]
        shape = (sum(part[0] if part else 0 for part in parts), *parts[0][1:]) if len(parts) > 1 else parts[0]
        keys = replace(keys, theirs=tuple(prefix + name for name in keys.theirs))
        plan.tensors[ours] = TensorPlan(keys, shape, notes=[NOTES[keys.change]] if keys.change else [])
    if options.part == "encoder":
        for name in [name for name in plan.tensors if name.startswith("decoder.")]:
            plan.drop(name, "only the encoder was asked for")
    return plan


def _choose(source: Source, branch: str | None) -> tuple[Format, str, list[str]]:
    """Return the format, what stands before the names of the network's tensors, and before those of its copies."""
    # the networks in it: the key of the patch embedding -> anchor of a format -> what stands before it
    networks: dict[str, dict[str, str]] = {}
    for anchor in dict.fromkeys(format.anchor for format in FORMATS):
        pattern = re.compile(rf"(?P<prefix>(?:.*?\.)??){anchor}", re.DOTALL)
        for key in source.tensors:
            if match := pattern.fullmatch(key):
                networks.setdefault(key, {})[anchor] = match["prefix"]

    # first which copy, then its format
    wrappings = {key: max(prefixes.values(), key=len) for key, prefixes in networks.items()}
    chosen = [key for key in networks if branch is None or branch in wrappings[key].split(".")]
    if networks and not chosen:
        there = shorten(", ".join(sorted(wrapping.rstrip(".") or "the top level" for wrapping in wrappings.values())))
        raise CheckpointError(f"{source.path}: no copy of the network is called {branch!r}; there is: {there}")
    for key in sorted(chosen, key=lambda key: _preference(wrappings[key])):
        for format in FORMATS:
            prefix = networks[key].get(format.anchor)
            if prefix is not None and format.marked(source, prefix):
                inside = [name.removeprefix(prefix) for name in source.tensors if name.startswith(prefix)]
                if refused := refusal(inside):
                    raise CheckpointError(f"{source.path}: {refused}")
                copies = [wrapping for other in networks if other != key for wrapping in networks[other].values()]
                return format, prefix, copies

    if refused := refusal(source.tensors):
        raise CheckpointError(f"{source.path}: {refused}")
    if not source.tensors:
        raise CheckpointError(f"{source.path} holds no tensors")
    some = ", ".join(list(source.tensors)[:3])
    raise CheckpointError(
        f"{source.path}: its {len(source.tensors)} tensors ({some}, ...) are of no format that is known here; "
        "known are timm, MAE, DINO, DINOv2, torchvision, and Hugging Face's ViT, ViTMAE and Dinov2"
    )


def _preference(prefix: str) -> tuple[int, int]:
    """Return by what copies are sorted: the branch, then how deep it stands."""
    words = prefix.split(".")
    rank = next((rank for rank, name in enumerate(BRANCHES) if name in words), len(BRANCHES))
    last = rank == len(BRANCHES) and any(name in words for name in LAST_BRANCHES)
    return rank + last, len(prefix)


def _why_beside(key: str, prefix: str, copies: list[str]) -> str:
    """Return why a tensor that is none of the network's is left out; "" if nothing is known about it."""
    for copy in copies:
        if copy and key.startswith(copy):
            words = [word for word in copy.split(".") if word and word not in prefix.split(".")]
            return "another copy of the network" + (f"; branch {words[0]} takes it" if words else "")
    return next((why for pattern, why in NOT_THE_NETWORK.items() if re.fullmatch(rf"(.*\.)?({pattern})", key)), "")
