"""The network in a checkpoint: choose it, recognise its format, and give each tensor our name."""

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
from vit.inputs import INTERPOLATIONS
from vit.load_options import LoadOptions
from vit.mae import Model

# among several copies of the network in a file, the first of these wins: averaged weights before
# the last ones
BRANCHES = ("teacher", "target_encoder", "model_ema", "state_dict_ema", "ema")
LAST_BRANCHES = ("student",)
# what training files hold besides the network, at any depth
NOT_THE_NETWORK = {
    r"(opt|optim|optimizers?|optimizer_states?|lr_schedulers?|schedulers?|(amp_|grad_)?scaler|loops"
    r"|callbacks)\..*":
        "the state of the training, not of the network",
    r"(rng|\w*(rng|random)_states?(_all)?)(\..*)?": "the state of a random generator",
    r"n_averaged|initted|(?<!.)((model_)?ema\.)?step": "the state of an average of weights",
    r"((dino|ibot|ibot_patch|koleo)_loss|loss_fn)\..*|prototypes": "the state of a loss",
    r"(head\.(mlp2?|last_(layer|norm)2?|\d+)|fc\.(fc|bn)\d|dino_head|ibot_head|projection_head"
    r"|projector)\..*":
        "a projection head of the training",
    r"predictor\..*": "the predictor of the training",
}  # fmt: skip
# what torch inserts into the names of a compiled, sharded or recomputing module, at any depth
WRAPPERS = re.compile(r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


@dataclass
class ModelTensor:
    """A tensor for the model.

    Attributes:
        value: as it is now.
        theirs: its names in the checkpoint; several if they were joined.
        changes: what was done to the value, in words for the user.
    """

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

    `recognise` makes it; `rename`, `vit.checkpoints.architecture` and `vit.checkpoints.loading` set
    the attributes from `tensors` on.

    Attributes:
        source: the checkpoint's contents.
        options: how to load it.
        format: as recognised.
        prefix: precedes the names of its tensors.
        copies: the prefixes of other copies of it.
        hints: what its settings say.
        report: for the user.
        tensors: those for the model, by our names; an autoencoder's encoder has no `encoder.` in
            front.
        encoder: the encoder's architecture.
        decoder: the decoder's architecture; None for an encoder alone.
        norm_pix_loss: whether the decoder predicts normalised patches.
        model: the model on the device meta, without values.
    """

    source: Source
    options: LoadOptions
    format: Format
    prefix: str
    copies: list[str]
    hints: Hints
    report: Report
    tensors: dict[str, ModelTensor] = field(default_factory=dict)
    encoder: ViTConfig = field(init=False)
    decoder: DecoderConfig | None = None
    norm_pix_loss: bool = False
    model: Model = field(init=False)

    def error(self, problem: str) -> CheckpointError:
        """Return an error that names the checkpoint."""
        return self.source.error(problem)

    def note(self, text: str) -> None:
        """Tell the user."""
        self.report.notes.append(text)

    def guess(self, text: str) -> None:
        """Tell the user, also in a warning, of a guess that nothing in the checkpoint confirms."""
        self.note(text)
        warnings.warn(f"{self.source.path}: {text}", stacklevel=2)

    def shape(self, name: str, dimensions: int) -> Shape:
        """Return the shape of a tensor that every model must have.

        Raises:
            CheckpointError: it is missing, or has another number of dimensions.
        """
        if name not in self.tensors:
            raise self.error(
                f"no {name} in it, so this is not a vision transformer that can be loaded "
                f"({self.format.name})"
            )
        shape = tuple(self.tensors[name].value.shape)
        if len(shape) != dimensions or not all(shape):
            raise self.error(
                f"{name} has the shape {size_text(shape)}, "
                f"where {dimensions} dimensions are expected"
            )
        return shape

    def has_decoder(self) -> bool:
        """Return whether a decoder is among the tensors."""
        return any(name.startswith("decoder.") for name in self.tensors)

    def drop(self, name: str, reason: str) -> None:
        """Leave a tensor out, if it is there."""
        if name in self.tensors:
            for key in self.tensors.pop(name).theirs:
                self.report.dropped[key] = reason

    def allows(self, name: str) -> bool:
        """Return whether the options allow a tensor, by any name that a message may have used."""
        names = [name, f"encoder.{name}"]
        if name in self.tensors:
            for key in self.tensors[name].theirs:
                names += [key, key.removeprefix(self.prefix)]
        return self.options.allows(*names)

    def problem(self, name: str) -> str:
        """Return why a tensor's values cannot be used, "" if they can.

        The options may allow values that are nan or infinite.
        """
        for key in self.tensors[name].theirs:
            tensor = self.source.tensors[key]
            reason = not_weights(key, tensor)
            if not reason and not self.allows(name):
                reason = not_finite(key, tensor)
            if reason:
                return reason
        return ""


# ---- Recognise -----------------------------------------------------------------------------------


def recognise(source: Source, options: LoadOptions) -> Network:
    """Find the network in a checkpoint: its format, its place, and what its settings say.

    Raises:
        CheckpointError: no format fits, the family is known but not computed here, or its settings
            cannot be used.
    """
    # A folder of our own has one network, with our names, and needs none of the tables.
    file_format = OWN_FOLDER
    prefix = ""
    copies: list[str] = []
    if options.branch is not None or not is_own_folder(source):
        source = _without_wrappers(source)
        file_format, prefix, copies = _choose(source, options.branch)
    hints = _read_hints(file_format, source, options)
    report = Report(notes=[*source.notes, *hints.notes])
    network = Network(source, options, file_format, prefix, copies, hints, report)
    _warn_of_differences(network)
    return network


def _without_wrappers(source: Source) -> Source:
    """Remove what torch inserts into the names of a compiled or sharded module."""
    tensors = {WRAPPERS.sub("", name): tensor for name, tensor in source.tensors.items()}
    if len(tensors) != len(source.tensors):
        raise CheckpointError(
            f"{source.path} holds tensors that differ in what torch.compile or FSDP add to a name"
        )
    return replace(source, tensors=tensors)


def _choose(source: Source, branch: str | None) -> tuple[Format, str, list[str]]:
    """Return the format, the prefix of the network's tensors, and the prefixes of its copies.

    Args:
        source: the checkpoint's contents.
        branch: a key on the way to the copy to take; None for the best one.
    """
    # the copies to choose from, the best first; the longest prefix is the whole way to a copy
    networks = _find_networks(source)
    paths = {key: max(prefixes.values(), key=len) for key, prefixes in networks.items()}
    keys = [key for key in networks if branch is None or branch in paths[key].split(".")]
    if networks and not keys:
        names = sorted(path.rstrip(".") or "the top level" for path in paths.values())
        raise source.error(
            f"no copy of the network is called {branch!r}; it has: {shorten(', '.join(names))}"
        )
    keys.sort(key=lambda key: _preference(paths[key]))

    # the first format that fits
    for key in keys:
        for file_format in FORMATS:
            prefix = networks[key].get(file_format.anchor)
            if prefix is None or not file_format.marked(source, prefix):
                continue
            reason = refusal(
                name.removeprefix(prefix) for name in source.tensors if name.startswith(prefix)
            )
            if reason:
                raise source.error(reason)
            copies: list[str] = []
            for copy, prefixes in networks.items():
                if copy != key:
                    copies += prefixes.values()
            return file_format, prefix, copies
    raise _no_network(source)


def _find_networks(source: Source) -> dict[str, dict[str, str]]:
    """Return the networks: key of the patch embedding -> anchor of a format -> prefix."""
    networks: dict[str, dict[str, str]] = {}
    for anchor in dict.fromkeys(file_format.anchor for file_format in FORMATS):
        pattern = re.compile(rf"(?P<prefix>(?:.*?\.)??){anchor}", re.DOTALL)
        for key in source.tensors:
            match = pattern.fullmatch(key)
            if match:
                networks.setdefault(key, {})[anchor] = match["prefix"]
    return networks


def _preference(prefix: str) -> tuple[int, int]:
    """Return the sort key of a copy: its branch, then its depth."""
    words = prefix.split(".")
    for rank, name in enumerate(BRANCHES):
        if name in words:
            return rank, len(prefix)
    if any(name in words for name in LAST_BRANCHES):
        return len(BRANCHES) + 1, len(prefix)
    return len(BRANCHES), len(prefix)


def _no_network(source: Source) -> CheckpointError:
    """Return the error about a file in no format: what it is instead, or which formats load."""
    reason = refusal(source.tensors) or other_file(source.tensors)
    if reason:
        return source.error(reason)
    if not source.tensors:
        return CheckpointError(f"{source.path} holds no tensors")
    first = ", ".join(list(source.tensors)[:3])
    return source.error(
        f"its {len(source.tensors)} tensors ({first}, ...) are in no known format; known are timm, "
        "MAE, DINO, iBOT, DINOv2, MSN, I-JEPA, torchvision, Google's .npz, SWAG, mmpretrain, and "
        "Hugging Face's ViT, ViTMAE, ViTMSN, DeiT, I-JEPA and Dinov2"
    )


def _read_hints(file_format: Format, source: Source, options: LoadOptions) -> Hints:
    """Return what the settings say, with the options in place of what they say of the input."""
    try:
        hints = file_format.hints(source)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # settings come from outside and may hold anything
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ValueError):
            reason = str(error)
        raise source.error(f"its settings cannot be used: {shorten(reason, 200)}") from error
    if options.mean and options.std:
        hints = replace(hints, mean=tuple(options.mean), std=tuple(options.std))
    if options.crop_share is not None:
        hints = replace(hints, crop_share=options.crop_share)
    return hints


def _warn_of_differences(network: Network) -> None:
    """Warn of all that the settings request of the input and that is not done here."""
    for difference in network.hints.differences:
        network.guess(difference)

    # a filter that is not supported
    interpolation = network.hints.interpolation
    if interpolation not in (None, *INTERPOLATIONS):
        usual = network.format.interpolation
        network.guess(
            f"its settings resize images by {interpolation!r}, which is not supported; "
            f"assuming {usual}"
        )
        network.hints = replace(network.hints, interpolation=usual)

    # a size for which the tensors are not, and that transformers' Dinov2 takes all the same
    size = network.hints.prepared_size
    if size is not None and network.options.image_size is None:
        option = str(size[0])
        if size[0] != size[1]:
            option = f"{size[0]},{size[1]}"
        network.guess(
            f"its settings make images of {size_text(size)} pixels, but its model is for others; "
            f"image_size {option} does so here"
        )


# ---- Rename --------------------------------------------------------------------------------------


def rename(network: Network) -> None:
    """Set the network's `tensors`, by our names; report those that have no place, with the reason.

    Raises:
        CheckpointError: two tensors have the same name of ours, or the options' mean and deviation
            are for other channels than the images have.
    """
    # which of their tensors is which of ours
    rules = {name: KeyRule(name, (name,)) for name in network.source.tensors}
    if network.format is not OWN_FOLDER:
        rules = _map_names(network)

    # C of the images, by the patch kernels (D, C, p, q): the order of a patch's pixels needs it
    channels = 1
    if "patch_embed.proj.weight" in rules:
        rule = rules["patch_embed.proj.weight"]
        kernels = network.source.tensors[network.prefix + rule.theirs[0]]
        if kernels.ndim == 4:
            channels = rule.read([kernels], channels).shape[1]
    _check_normalization(network, channels)

    # their tensors, turned into ours
    for name, rule in rules.items():
        theirs = tuple(network.prefix + key for key in rule.theirs)
        if network.options.part == "encoder" and name.startswith("decoder."):
            for key in theirs:
                network.report.dropped[key] = "only the encoder was requested"
            continue
        tensors = [network.source.tensors[key] for key in theirs]
        network.tensors[name] = ModelTensor(
            rule.read(tensors, channels, network.hints.head_eps), theirs
        )
        if rule.change:
            network.tensors[name].changes.append(NOTES[rule.change])


def _map_names(network: Network) -> dict[str, KeyRule]:
    """Return the rules of the format's table that apply, by our names.

    Report the tensors without a rule: dropped for a reason, or unexpected.
    """
    prefix = network.prefix
    tensors = network.source.tensors
    keys = [key.removeprefix(prefix) for key in tensors if key.startswith(prefix)]
    rules = network.format.rules
    dropped = network.format.dropped

    # A head may be a list of one linear layer beside dropout, which has no tensors.
    in_head = sorted(key.rpartition(".")[2] for key in keys if re.match(r"head\.\d+\.", key))
    if in_head == ["bias", "weight"]:
        rules = (*rules, KeyRule("head.@", ("head.*.@",)))

    # A head that computes more than ours stays out.
    no_head = network.hints.no_head
    if no_head:
        network.note(f"{no_head}: it is left out")
        rules = tuple(rule for rule in rules if not rule.ours.startswith("head."))
        dropped = ((r"head\..*", no_head), *dropped)

    # the table, then what it has no place for, in the network and outside
    names, unmapped = map_in(rules, keys)
    for key in unmapped:
        _leave_out(network, prefix + key, first_reason(dropped, key))
    for key in tensors:
        if not key.startswith(prefix):
            _leave_out(network, key, "")
    return names


def _leave_out(network: Network, key: str, reason: str) -> None:
    """Report a tensor without a rule as dropped for a reason or, if there is none, unexpected."""
    if not reason:
        reason = _why_outside(key, network.prefix, network.copies)
    if not reason and network.options.allows(key, key.removeprefix(network.prefix)):
        reason = "allowed"
    if reason:
        network.report.dropped[key] = reason
    else:
        network.report.unexpected.append(key)


def _why_outside(key: str, prefix: str, copies: list[str]) -> str:
    """Return why a tensor outside the network is left out; "" if it is unknown."""
    # a tensor of a copy, and the branch that takes the copy, if one does
    for copy in copies:
        if copy and key.startswith(copy):
            words = [word for word in copy.split(".") if word and word not in prefix.split(".")]
            if words:
                return f"another copy of the network; branch {words[0]} takes it"
            return "another copy of the network"

    patterns = {rf"(.*\.)?({pattern})": reason for pattern, reason in NOT_THE_NETWORK.items()}
    return first_reason(patterns.items(), key)


def _check_normalization(network: Network, channels: int) -> None:
    """Note which mean and deviation are assumed; refuse those from the options for other channels.

    Args:
        network: the network.
        channels: C of its images.
    """
    usual = network.format
    if network.hints.mean is None:
        assumed = (
            "nothing says how its input was normalised; assuming "
            f"mean {usual.mean}, std {usual.std}, "
            f"{usual.other_inputs or f'the default of {usual.name}'}; "
            "mean, std and crop_share set them"
        )
        if usual.other_inputs and network.source.module is None:
            network.guess(assumed)
        else:
            network.note(assumed)

    # The options may also be for the channels that the options request.
    mean = network.options.mean
    if mean and len(mean) not in (1, channels, network.options.channels):
        raise network.error(
            f"mean and std: {len(mean)} numbers each, but {channels} channels; "
            "give one, or one per channel"
        )
