"""Choose a checkpoint's network, recognise its format, and give each tensor our name."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field, replace

from torch import Tensor

from vit.checkpoints.formats import FORMATS, Format, Hints, other_file, refusal
from vit.checkpoints.formats.format import only_given
from vit.checkpoints.names import NOTES, KeyRule, map_in
from vit.checkpoints.reading import Source, shorten, weight_problem
from vit.checkpoints.report import Report, Shape, size_text
from vit.config import DecoderConfig, ViTConfig
from vit.load_options import CheckpointError, LoadOptions

# among several copies of the network in a file, the first of these wins: averaged weights before the last ones
BRANCHES = ("teacher", "target_encoder", "model_ema", "state_dict_ema", "ema")
LAST_BRANCHES = ("student",)
# what training files hold besides the network, at any depth
NOT_THE_NETWORK = {
    r"(opt|optim|optimizers?|optimizer_states?|lr_schedulers?|schedulers?|(amp_|grad_)?scaler|loops|callbacks)\..*":
        "the state of the training, not of the network",
    r"watch\..*": "what was recorded of the training",
    r"(rng|\w*(rng|random)_states?(_all)?)(\..*)?": "the state of a random generator",
    r"n_averaged|initted|(?<!.)((model_)?ema\.)?step": "the state of an average of weights",
    r"((dino|ibot|ibot_patch|koleo)_loss|loss_fn)\..*|prototypes": "the state of a loss",
    r"(head\.(mlp2?|last_(layer|norm)2?|\d+)|fc\.(fc|bn)\d|dino_head|ibot_head|projection_head|projector)\..*":
        "a projection head of the training",
    r"predictor\..*": "the predictor of the training",
}  # fmt: skip
# what torch inserts into the names of a compiled, sharded or recomputing module, at any depth
WRAPPERS = re.compile(r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


@dataclass
class ModelTensor:
    """A tensor for the model: its value, its names in the checkpoint, and its changes in words for the user."""

    value: Tensor
    theirs: tuple[str, ...]
    changes: list[str] = field(default_factory=list)

    def change(self, value: Tensor, note: str) -> None:
        """Replace the value; `note` tells the user."""
        self.value = value
        self.changes.append(note)


@dataclass
class Network:
    """A network read from a checkpoint, to be loaded or shown.

    Attributes:
        source: the checkpoint's contents.
        options: how to load it.
        format: as recognised.
        prefix: precedes the names of its tensors.
        hints: what its settings say.
        report: for the user.
        tensors: those for the model, by our names.
        encoder: its architecture.
        decoder: likewise; None for an encoder alone.
        norm_pix_loss: the autoencoder's.
    """

    source: Source
    options: LoadOptions
    format: Format
    prefix: str
    hints: Hints
    report: Report
    tensors: dict[str, ModelTensor] = field(default_factory=dict)
    encoder: ViTConfig = field(init=False)
    decoder: DecoderConfig | None = None
    norm_pix_loss: bool = False

    def error(self, what: str) -> CheckpointError:
        """Return an error that names the checkpoint."""
        return self.source.error(what)

    def note(self, what: str) -> None:
        """Tell the user."""
        self.report.notes.append(what)

    def guess(self, what: str) -> None:
        """Tell the user, also in a warning, about a guess that neither tensors nor settings confirm."""
        self.note(what)
        warnings.warn(f"{self.source.path}: {what}", stacklevel=2)

    def shape(self, name: str, dimensions: int) -> Shape:
        """Return the shape of a tensor that every model must have."""
        if name not in self.tensors:
            raise self.error(
                f"no {name} in it, so this is not a vision transformer that can be loaded ({self.format.name})"
            )
        shape = tuple(self.tensors[name].value.shape)
        if len(shape) != dimensions or not all(shape):
            raise self.error(f"{name} has the shape {size_text(shape)}, where {dimensions} dimensions are expected")
        return shape

    def has_decoder(self) -> bool:
        """Return whether a decoder is among the tensors."""
        return any(name.startswith("decoder.") for name in self.tensors)

    def drop(self, name: str, why: str) -> None:
        """Leave a tensor out."""
        if name in self.tensors:
            self.report.dropped |= dict.fromkeys(self.tensors.pop(name).theirs, why)

    def allows(self, name: str) -> bool:
        """Return whether the options allow a tensor, under any name that a message may have used."""
        theirs = self.tensors[name].theirs if name in self.tensors else ()
        return self.options.allows(name, f"encoder.{name}", *theirs, *(key.removeprefix(self.prefix) for key in theirs))

    def problem(self, name: str) -> str:
        """Return why a tensor's values cannot be used, "" if they can."""
        allowed, theirs = self.allows(name), self.tensors[name].theirs
        return next(filter(None, (weight_problem(key, self.source.tensors[key], allowed) for key in theirs)), "")

    def model_name(self, name: str) -> str:
        """Return a tensor's name in the model: an autoencoder's encoder is under `encoder.`."""
        return name if self.decoder is None or name.startswith("decoder.") else f"encoder.{name}"


def recognise(source: Source, options: LoadOptions) -> Network:
    """Find the network in a checkpoint, and give every tensor a place, or a reason why it has none.

    Raises:
        CheckpointError: no format fits, the family is known but not computed here, or its settings cannot be used.
    """
    # remove what torch inserts into names
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
        raise source.error(f"its settings cannot be used: {shorten(what, 200)}") from error
    given = {"mean": options.mean and tuple(options.mean), "std": options.std and tuple(options.std)}
    hints = replace(hints, **only_given(given | {"crop_share": options.crop_share}))
    report = Report(notes=[*source.notes, *hints.notes])

    # tensors without a rule: dropped for a reason, or unexpected
    shapes = {key.removeprefix(prefix): tuple(t.shape) for key, t in tensors.items() if key.startswith(prefix)}
    within_head = sorted(key.rpartition(".")[2] for key in shapes if re.match(r"head\.\d+\.", key))
    alone = (KeyRule("head.@", ("head.*.@",)),) if within_head == ["bias", "weight"] else ()  # beside dropout
    rules = (*format.rules, *alone)
    if hints.no_head:
        report.notes.append(f"{hints.no_head}: it is left out")
        rules = tuple(rule for rule in rules if not rule.ours.startswith("head."))
        format = replace(format, dropped=((r"head\..*", hints.no_head), *format.dropped))
    maps, unknown = map_in(rules, shapes)
    outside = [prefix + key for key in unknown] + [key for key in tensors if not key.startswith(prefix)]
    for name in outside:
        why = format.reason(name.removeprefix(prefix)) if name.startswith(prefix) else ""
        why = why or _why_outside(name, prefix, copies)
        if why or options.allows(name, name.removeprefix(prefix)):
            report.dropped[name] = why or "allowed"
        else:
            report.unexpected.append(name)

    # tensors with a rule: convert them to ours; the order of a patch's pixels depends on the channels
    network = Network(source, options, format, prefix, hints, report)
    if hints.mean is None:
        usual = f"mean {format.mean}, std {format.std}, {format.other_inputs or f'the default of {format.name}'}"
        assumed = f"nothing says how its input was normalised; assuming {usual}; mean, std and crop_share set them"
        (network.guess if format.other_inputs and source.module is None else network.note)(assumed)
    embed = maps.get("patch_embed.proj.weight")
    kernels = shapes[embed.theirs[0]] if embed else ()
    channels = kernels[1] if len(kernels) == 4 else 1
    if options.mean and len(options.mean) not in (1, channels, options.channels):
        raise network.error(
            f"mean and std: {len(options.mean)} numbers each, but {channels} channels; give one, or one per channel"
        )
    for ours, rule in maps.items():
        theirs = tuple(prefix + name for name in rule.theirs)
        if options.part == "encoder" and ours.startswith("decoder."):
            report.dropped |= dict.fromkeys(theirs, "only the encoder was requested")
        else:
            value = rule.read([tensors[name] for name in theirs], channels, hints.head_eps)
            network.tensors[ours] = ModelTensor(value, theirs, [NOTES[rule.change]] if rule.change else [])
    return network


def _choose(source: Source, branch: str | None) -> tuple[Format, str, list[str]]:
    """Return the format, the prefix of the network's tensors, and the prefixes of its copies."""
    # the networks in it: key of the patch embedding -> anchor of a format -> prefix
    networks: dict[str, dict[str, str]] = {}
    for anchor in dict.fromkeys(format.anchor for format in FORMATS):
        pattern = re.compile(rf"(?P<prefix>(?:.*?\.)??){anchor}", re.DOTALL)
        for key in source.tensors:
            if match := pattern.fullmatch(key):
                networks.setdefault(key, {})[anchor] = match["prefix"]

    # choose the copy, then its format
    wrappings = {key: max(prefixes.values(), key=len) for key, prefixes in networks.items()}
    chosen = [key for key in networks if branch is None or branch in wrappings[key].split(".")]
    if networks and not chosen:
        there = shorten(", ".join(sorted(wrapping.rstrip(".") or "the top level" for wrapping in wrappings.values())))
        raise source.error(f"no copy of the network is called {branch!r}; it has: {there}")
    for key in sorted(chosen, key=lambda key: _preference(wrappings[key])):
        for format in FORMATS:
            prefix = networks[key].get(format.anchor)
            if prefix is not None and format.marked(source, prefix):
                inside = [name.removeprefix(prefix) for name in source.tensors if name.startswith(prefix)]
                if refused := refusal(inside):
                    raise source.error(refused)
                copies = [wrapping for other in networks if other != key for wrapping in networks[other].values()]
                return format, prefix, copies

    if refused := refusal(source.tensors) or other_file(source.tensors):
        raise source.error(refused)
    if not source.tensors:
        raise CheckpointError(f"{source.path} holds no tensors")
    some = ", ".join(list(source.tensors)[:3])
    raise source.error(
        f"its {len(source.tensors)} tensors ({some}, ...) are in no known format; "
        "known are timm, MAE, DINO, iBOT, DINOv2, MSN, I-JEPA, torchvision, and Hugging Face's ViT, ViTMAE, ViTMSN, DeiT, "
        "I-JEPA and Dinov2"
    )


def _preference(prefix: str) -> tuple[int, int]:
    """Return the sort key of a copy: its branch, then its depth."""
    words = prefix.split(".")
    rank = next((rank for rank, name in enumerate(BRANCHES) if name in words), len(BRANCHES))
    last = rank == len(BRANCHES) and any(name in words for name in LAST_BRANCHES)
    return rank + last, len(prefix)


def _why_outside(key: str, prefix: str, copies: list[str]) -> str:
    """Return why a tensor outside the network is left out; "" if it is unknown."""
    for copy in copies:
        if copy and key.startswith(copy):
            words = [word for word in copy.split(".") if word and word not in prefix.split(".")]
            return "another copy of the network" + (f"; branch {words[0]} takes it" if words else "")
    return next((why for pattern, why in NOT_THE_NETWORK.items() if re.fullmatch(rf"(.*\.)?({pattern})", key)), "")
