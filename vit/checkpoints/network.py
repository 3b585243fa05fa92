"""Choose a checkpoint's network, recognise its format, and give each tensor our name."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field, replace

from torch import Tensor

from vit.checkpoints.formats import FORMATS, Format, Hints, other_file, refusal
from vit.checkpoints.formats.format import first_reason
from vit.checkpoints.formats.native import OWN_FOLDER, is_own_folder
from vit.checkpoints.names import NOTES, KeyRule, map_in
from vit.checkpoints.reading import Source, not_finite, not_weights, shorten
from vit.checkpoints.report import Report, Shape, size_text
from vit.config import DecoderConfig, ViTConfig
from vit.errors import CheckpointError
from vit.load_options import LoadOptions
from vit.mae import Model

# among several copies of the network in a file, the first of these wins: averaged weights before the last ones
BRANCHES = ("teacher", "target_encoder", "model_ema", "state_dict_ema", "ema")
LAST_BRANCHES = ("student",)
# what training files hold besides the network, at any depth
NOT_THE_NETWORK = {
    r"(opt|optim|optimizers?|optimizer_states?|lr_schedulers?|schedulers?|(amp_|grad_)?scaler|loops|callbacks)\..*":
        "the state of the training, not of the network",
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
        tensors: those for the model, by our names: an autoencoder's encoder has no `encoder.` in front.
        encoder: its architecture.
        decoder: likewise; None for an encoder alone.
        norm_pix_loss: the autoencoder's.
        model: the model on the device meta, without values.
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
    model: Model = field(init=False)

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
            raise self.error(
                f"{name} has the shape {size_text(shape)}, where {dimensions} dimensions are expected"
            )
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
        return self.options.allows(
            name, f"encoder.{name}", *theirs, *(key.removeprefix(self.prefix) for key in theirs)
        )

    def problem(self, name: str) -> str:
        """Return why a tensor's values cannot be used, "" if they can; the options allow nan and infinite ones."""
        for key in self.tensors[name].theirs:
            tensor = self.source.tensors[key]
            reason = not_weights(key, tensor)
            if not reason and not self.allows(name):
                reason = not_finite(key, tensor)
            if reason:
                return reason
        return ""


def recognise(source: Source, options: LoadOptions) -> Network:
    """Find the network in a checkpoint, and give every tensor a place, or a reason why it has none.

    A folder of our own format has our names already, and takes none of the tables.

    Raises:
        CheckpointError: no format fits, the family is known but not computed here, or its settings cannot be used.
    """
    if is_own_folder(source) and options.branch is None:
        network = Network(
            source, options, OWN_FOLDER, "", *_read_settings(OWN_FOLDER, source, options)
        )
        names = {name: KeyRule(name, (name,)) for name in source.tensors}
    else:
        source = _without_wrappers(source)
        file_format, prefix, copies = _choose(source, options.branch)
        network = Network(
            source, options, file_format, prefix, *_read_settings(file_format, source, options)
        )
        names = _map_names(network, copies)
    _note_means(network, names)
    _take_tensors(network, names)
    return network


def _without_wrappers(source: Source) -> Source:
    """Remove what torch inserts into the names of a compiled or sharded module."""
    tensors = {WRAPPERS.sub("", name): tensor for name, tensor in source.tensors.items()}
    if len(tensors) != len(source.tensors):
        raise CheckpointError(
            f"{source.path} holds tensors that differ in what torch.compile or FSDP add to a name"
        )
    return replace(source, tensors=tensors)


def _read_settings(
    file_format: Format, source: Source, options: LoadOptions
) -> tuple[Hints, Report]:
    """Return what the settings say, the options' values in their place, and the report with its first notes."""
    try:
        hints = file_format.hints(source)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise source.error(f"its settings cannot be used: {shorten(reason, 200)}") from error
    notes = [*source.notes, *hints.notes]
    if options.mean and options.std:
        hints = replace(hints, mean=tuple(options.mean), std=tuple(options.std))
    if options.crop_share is not None:
        hints = replace(hints, crop_share=options.crop_share)
    return hints, Report(notes=notes)


def _map_names(network: Network, copies: list[str]) -> dict[str, KeyRule]:
    """Return the rules that apply, by our names; report the tensors without a rule: dropped for a reason, or unexpected."""
    prefix = network.prefix
    options = network.options
    report = network.report
    keys = [key.removeprefix(prefix) for key in network.source.tensors if key.startswith(prefix)]

    # the table, also for a linear head beside dropout, or without a head
    rules = network.format.rules
    dropped = network.format.dropped
    in_head = sorted(key.rpartition(".")[2] for key in keys if re.match(r"head\.\d+\.", key))
    if in_head == ["bias", "weight"]:
        rules = (*rules, KeyRule("head.@", ("head.*.@",)))
    if network.hints.no_head:
        network.note(f"{network.hints.no_head}: it is left out")
        rules = tuple(rule for rule in rules if not rule.ours.startswith("head."))
        dropped = ((r"head\..*", network.hints.no_head), *dropped)
    names, unknown = map_in(rules, keys)

    # what has no rule, in the network and outside
    outside = [key for key in network.source.tensors if not key.startswith(prefix)]
    reasons = {prefix + key: first_reason(dropped, key) for key in unknown} | dict.fromkeys(
        outside, ""
    )
    for name, reason in reasons.items():
        reason = reason or _why_outside(name, prefix, copies)
        if reason or options.allows(name, name.removeprefix(prefix)):
            report.dropped[name] = reason or "allowed"
        else:
            report.unexpected.append(name)
    return names


def _note_means(network: Network, names: dict[str, KeyRule]) -> None:
    """Say which mean and deviation are assumed, and refuse those from the options if they are for other channels."""
    usual = network.format
    given = network.options.mean
    if network.hints.mean is None:
        values = f"mean {usual.mean}, std {usual.std}, {usual.other_inputs or f'the default of {usual.name}'}"
        assumed = f"nothing says how its input was normalised; assuming {values}; mean, std and crop_share set them"
        if usual.other_inputs and network.source.module is None:
            network.guess(assumed)
        else:
            network.note(assumed)
    channels = _channels(network, names)
    if given and len(given) not in (1, channels, network.options.channels):
        counts = f"{len(given)} numbers each, but {channels} channels"
        raise network.error(f"mean and std: {counts}; give one, or one per channel")


def _channels(network: Network, names: dict[str, KeyRule]) -> int:
    """Return C of the images, as the patch kernels have it."""
    embed = names.get("patch_embed.proj.weight")
    kernels = network.source.tensors[network.prefix + embed.theirs[0]].shape if embed else ()
    return kernels[1] if len(kernels) == 4 else 1


def _take_tensors(network: Network, names: dict[str, KeyRule]) -> None:
    """Turn their tensors into ours; the order of a patch's pixels depends on the channels."""
    channels = _channels(network, names)
    for ours, rule in names.items():
        theirs = tuple(network.prefix + name for name in rule.theirs)
        if network.options.part == "encoder" and ours.startswith("decoder."):
            network.report.dropped |= dict.fromkeys(theirs, "only the encoder was requested")
            continue
        tensors = [network.source.tensors[name] for name in theirs]
        changes = [NOTES[rule.change]] if rule.change else []
        network.tensors[ours] = ModelTensor(
            rule.read(tensors, channels, network.hints.head_eps), theirs, changes
        )


def _choose(source: Source, branch: str | None) -> tuple[Format, str, list[str]]:
    """Return the format, the prefix of the network's tensors, and the prefixes of its copies."""
    networks = _find_networks(source)

    # the copies that are asked for, the best first
    wrappings = {key: max(prefixes.values(), key=len) for key, prefixes in networks.items()}
    chosen = [key for key in networks if branch is None or branch in wrappings[key].split(".")]
    if networks and not chosen:
        there = sorted(wrapping.rstrip(".") or "the top level" for wrapping in wrappings.values())
        raise source.error(
            f"no copy of the network is called {branch!r}; it has: {shorten(', '.join(there))}"
        )
    chosen.sort(key=lambda key: _preference(wrappings[key]))

    # the first format that fits
    for key in chosen:
        for file_format in FORMATS:
            prefix = networks[key].get(file_format.anchor)
            if prefix is None or not file_format.marked(source, prefix):
                continue
            refused = refusal(
                name.removeprefix(prefix) for name in source.tensors if name.startswith(prefix)
            )
            if refused:
                raise source.error(refused)
            copies: list[str] = []
            for other, prefixes in networks.items():
                if other != key:
                    copies += prefixes.values()
            return file_format, prefix, copies
    raise _no_network(source)


def _find_networks(source: Source) -> dict[str, dict[str, str]]:
    """Return the networks in a checkpoint: key of the patch embedding -> anchor of a format -> prefix."""
    networks: dict[str, dict[str, str]] = {}
    for anchor in dict.fromkeys(file_format.anchor for file_format in FORMATS):
        pattern = re.compile(rf"(?P<prefix>(?:.*?\.)??){anchor}", re.DOTALL)
        for key in source.tensors:
            match = pattern.fullmatch(key)
            if match:
                networks.setdefault(key, {})[anchor] = match["prefix"]
    return networks


def _no_network(source: Source) -> CheckpointError:
    """Return the error about a file in no format: what it is instead, or what is known."""
    reason = refusal(source.tensors) or other_file(source.tensors)
    if reason:
        return source.error(reason)
    if not source.tensors:
        return CheckpointError(f"{source.path} holds no tensors")
    first = ", ".join(list(source.tensors)[:3])
    return source.error(
        f"its {len(source.tensors)} tensors ({first}, ...) are in no known format; "
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
            return "another copy of the network" + (
                f"; branch {words[0]} takes it" if words else ""
            )
    patterns = {rf"(.*\.)?({pattern})": reason for pattern, reason in NOT_THE_NETWORK.items()}
    return first_reason(patterns.items(), key)
