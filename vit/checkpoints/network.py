"""The network in a checkpoint: choose it, recognise its format, and read its settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from vit.checkpoints.formats import FORMATS
from vit.checkpoints.formats.format import Format, Hints
from vit.checkpoints.formats.others import refusal
from vit.checkpoints.formats.timm import TIMM, describes_itself
from vit.checkpoints.names import KeyRule, map_in
from vit.checkpoints.reading import Source, first_few, size_text
from vit.checkpoints.report import Report, Shape
from vit.config import DecoderConfig, ViTConfig
from vit.errors import CheckpointError
from vit.load_options import LoadOptions
from vit.mae import Model

# Which of two copies of the network the writer of a file evaluates: a word of its place that the
# other's lacks, one of the other's, and a name that this writer puts beside them. Averaged weights
# stand before the last ones, but MoCo's and BYOL's authors evaluate the trained encoder.
COPIES = (
    # mmengine's EMAHook exchanges the two before it saves them
    ("state_dict", "ema_state_dict", r"ema_state_dict\.steps"),
    ("state_dict", "current_model_state", r"averaging_state\..*"),  # Lightning's WeightAveraging
    ("average_model_state", "", r"callbacks\..*"),  # its StochasticWeightAveraging
    ("n_averaged", "", ".*"),  # torch's AveragedModel, which has a counter beside the module
    ("ema", "", ".*"),  # an exponential moving average, as timm's and DeiT's
    (
        "teacher",
        "student",  # of DINO, iBOT and DINOv2, with their heads or options
        r"(.*\.)?teacher.*head\.(mlp|last_layer).*|args\.(momentum_teacher|norm_last_layer"
        r"|teacher_temp|use_bn_in_head)",
    ),
    ("target_encoder", "", r"predictor\..*|prototypes"),  # of I-JEPA and MSN
    ("", "momentum", ".*"),
)
# names of what stands beside the trained network; no rule, but the more likely choice
BESIDE_IT = {"teacher", "reference", "ref", "frozen", "init", "initial", "old"}
# what torch inserts into the names of a compiled, sharded or recomputing module, at any depth
WRAPPERS = re.compile(r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


@dataclass
class ModelTensor:
    """A tensor for the model.

    Attributes:
        value: its present value.
        theirs: its names in the checkpoint; several if they were joined.
        changes: what was done to the value, in words for the user.
    """

    value: Tensor
    theirs: tuple[str, ...]
    changes: list[str] = field(default_factory=list)

    def change(self, value: Tensor, note: str) -> None:
        """Replace the value by a new tensor, not a view; `note` is for the user."""
        self.value = value
        self.changes.append(note)


@dataclass
class Network:
    """A network read from a checkpoint, to be loaded or shown.

    `recognise` makes it; `vit.checkpoints.rename`, `architecture` and `loading` set the attributes
    from `tensors` on.

    Attributes:
        source: the checkpoint's contents.
        options: how to load it.
        format: as recognised.
        prefix: precedes the names of its tensors.
        others: the prefixes of the file's other networks.
        hints: what its settings say.
        report: for the user.
        tensors: those for the model, by our names; an autoencoder's encoder has no `encoder.` in
            front.
        unplaced: the names of all others in the checkpoint, until it is known what they are.
        own_head: whether its head is the user's own, not the format's, so that neither the format
            nor the settings say what it reads.
        encoder: the encoder's architecture.
        decoder: the decoder's architecture; None for an encoder alone.
        model: the model on the device meta, without values.
    """

    source: Source
    options: LoadOptions
    format: Format
    prefix: str
    others: list[str]
    hints: Hints
    report: Report
    tensors: dict[str, ModelTensor] = field(default_factory=dict)
    unplaced: list[str] = field(default_factory=list)
    own_head: bool = False
    encoder: ViTConfig = field(init=False)
    decoder: DecoderConfig | None = None
    model: Model = field(init=False)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The modules of a model in memory, by what precedes the names of their tensors."""
        modules: dict[str, nn.Module] = {}
        if self.source.given_model is not None:
            for path, module in self.source.given_model.named_modules():
                modules[WRAPPERS.sub("", f"{path}.").lstrip(".")] = module
        return modules

    def error(self, problem: str) -> CheckpointError:
        """Return an error that names the checkpoint."""
        return self.source.error(problem)

    def note(self, text: str) -> None:
        """Tell the user."""
        self.report.notes.append(text)

    def warn(self, text: str) -> None:
        """Tell the user, also in a warning of `load_model`."""
        self.note(text)
        self.report.warnings.append(text)

    def assume(self, text: str, options: str) -> None:
        """Tell the user, also in the one warning about all that the checkpoint does not confirm.

        Args:
            text: what is assumed.
            options: that set it, or confirm it; "" for none.
        """
        text += f" ({options or 'no option sets it'})"
        self.note(text)
        self.report.assumed.append(text)

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor that every model must have."""
        if name not in self.tensors:
            raise self.error(
                f"no {name} in it, so this is not a vision transformer that can be loaded "
                f"({self.format.name})"
            )
        return tuple(self.tensors[name].value.shape)

    def drop(self, name: str, reason: str) -> None:
        """Leave a tensor out, if it is there."""
        if name in self.tensors:
            for key in self.tensors.pop(name).theirs:
                self.report.dropped[key] = reason

    def allows(self, name: str) -> bool:
        """Return whether the options allow a tensor, by any name that a message may have used."""
        names = [name, f"encoder.{name}"]
        for key in self.tensors[name].theirs if name in self.tensors else (name,):
            names += [key.removeprefix(place) for place in places_of(self.prefix)]
        patterns = self.options.allow
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    def bad_values(self) -> Iterator[str]:
        """Yield why a tensor cannot be used, once for each of the model's that is made from it.

        The options may allow values that are nan or infinite.
        """
        for ours, tensor in self.tensors.items():
            for key in tensor.theirs:
                value = self.source.tensors[key]
                has_values = value.layout is torch.strided and not value.is_meta
                if not (has_values and value.is_floating_point()):
                    yield f"{key} holds no weights: {value.dtype} on device {value.device}"
                    continue
                count = count_not_finite(value)
                if count and not self.allows(ours):
                    yield (
                        f"{key} holds {count} values that are nan or infinite; "
                        "the training that made it diverged, or the file is damaged"
                    )


def count_not_finite(tensor: Tensor) -> int:
    """Count the nan and infinite values of a tensor as float32."""
    return int((~torch.isfinite(tensor.float())).sum())


def places_of(prefix: str) -> list[str]:
    """Return the prefix of a network and those of the modules that hold it, the longest first.

    >>> places_of("model.backbone.")
    ['model.backbone.', 'model.', '']
    """
    words = prefix.split(".")[:-1]
    return [".".join([*words[:count], ""]) for count in range(len(words), -1, -1)]


# ---- Recognise -----------------------------------------------------------------------------------


def recognise(source: Source, options: LoadOptions) -> Network:
    """Find the network in a checkpoint: its format, its place, and what its settings say."""
    network = _choose(source, options)

    # everything that the settings request for the input and that is not done here
    hints = network.hints
    for difference in hints.differences:
        network.warn(difference)
    # a size other than that of the tensors, to which transformers' Dinov2 resizes its positions
    size = hints.prepared_size
    if size is not None and options.image_size is None:
        network.assume(
            f"images of {size_text(hints.encoder['image_size'])} pixels, as its positions are for, "
            f"although its preprocessor makes {size_text(size)}",
            f"image_size {size[0]},{size[1]}",
        )
    return network


def _choose(source: Source, options: LoadOptions) -> Network:
    """Return the network to load; a note names it if there are others."""
    # Without what torch inserts into the names of a compiled or sharded module, and in the order of
    # their names, numbers by their value: the order in the file decides nothing.
    tensors = {WRAPPERS.sub("", name): tensor for name, tensor in source.tensors.items()}
    order = sorted(
        tensors, key=lambda name: re.sub(r"\d+", lambda number: number[0].zfill(9), name)
    )
    tensors = {name: tensors[name] for name in order}
    source = replace(source, tensors=tensors)
    networks = _find_networks(source)
    if not networks:
        raise source.error(
            refusal(tensors)
            or f"its {len(tensors)} tensors ({first_few(tensors)}) are in no known format; "
            "known are timm, MAE, DINO, iBOT, DINOv2, MoCo v3, MSN, I-JEPA, torchvision, Google's "
            ".npz, SWAG, mmpretrain, and Hugging Face's ViT, ViTMAE, ViTMSN, DeiT, I-JEPA, Dinov2"
        )

    # those in the place that is asked for, or else in one of which it is a word
    names = {path: path.rstrip(".") or "." for path in networks}
    listed = ", ".join(names.values())
    branch = options.branch
    paths = list(networks)
    if branch is not None:
        degrees = [
            [path for path in paths if branch == names[path]],
            [path for path in paths if branch in path.split(".")],
            [path for path in paths if branch in re.split(r"[._]", path)],
        ]
        paths = next(filter(None, degrees), [])
    if not paths:
        raise source.error(f"no copy of the network is called {branch!r}; it has: {listed}")

    # networks of different shapes are no copies of each other
    layouts = []
    for path in paths:
        shapes = {}
        for name, rule in rules_of(source, *networks[path]).items():
            if not name.startswith("decoder."):
                shapes[name] = tensors[rule.theirs[0]].shape
        layouts.append(shapes)
    if any(layout != layouts[0] for layout in layouts):
        raise source.error(
            f"it holds networks of different shapes: {listed}; branch names the one to load"
        )

    # of copies, the one before all others by their writer's rule; otherwise one is assumed
    facts = [*tensors, *source.values]
    winners = []
    for path in paths:
        if all(_is_taken(path, rival, facts) for rival in paths if rival != path):
            winners.append(path)
    chosen = min(
        winners or paths,
        key=lambda path: (bool(BESIDE_IT & _words(path, ())), path.count("."), path),
    )
    file_format, prefix = networks.pop(chosen)
    reason = refusal([name.removeprefix(prefix) for name in tensors if name.startswith(prefix)])
    if reason:
        raise source.error(reason)
    network = _network(source, options, file_format, prefix, list(networks))
    if not winners:
        network.assume(
            f"of the copies of the network, {listed}, {names[chosen]} is meant", "branch"
        )
    elif networks:
        network.note(f"of several networks, that of {names[chosen]} is used")
    return network


def _words(path: str, facts: Iterable[str]) -> set[str]:
    """Return the words of a network's place, with the counter of an average there."""
    words = {*path.split("."), *re.split(r"[._]", path)}
    if any(f"{place}n_averaged" in facts for place in places_of(path)):
        words.add("n_averaged")
    return words


def _is_taken(path: str, rival: str, facts: list[str]) -> bool:
    """Return whether the writer of a file with these names takes one place before another."""
    mine = _words(path, facts)
    theirs = _words(rival, facts)
    for winner, loser, mark in COPIES:
        # a place has a word that the other lacks; "" is in both, for any
        for first, second in ((mine, theirs), (theirs, mine)):
            fits = winner in first - second | {""} and loser in second - first | {""}
            if fits and any(re.fullmatch(mark, fact) for fact in facts):
                return first is mine
    return False


def rules_of(source: Source, file_format: Format, prefix: str) -> dict[str, KeyRule]:
    """Return the rows for all tensors of a network but its head, which may stand anywhere."""
    names = [key.removeprefix(prefix) for key in source.tensors if key.startswith(prefix)]
    return {
        name: replace(rule, theirs=tuple(prefix + key for key in rule.theirs))
        for name, rule in map_in(file_format.rules, names).items()
        if not name.startswith("head.")
    }


def _find_networks(source: Source) -> dict[str, tuple[Format, str]]:
    """Return the networks in a checkpoint, by the way to each.

    A network is the first format that fits, and what precedes the names of its tensors; the way is
    the longest of what precedes them in any format, as `encoder.` in an autoencoder.
    """
    # a model that timm describes has timm's names, whatever else its tensors or those beside it are
    # called; our own config.json, which has an "encoder", names timm's architecture, too
    formats: tuple[Format, ...] = FORMATS
    if describes_itself(source) and "encoder" not in source.config:
        formats = (TIMM, *FORMATS)
    networks: dict[str, tuple[Format, str]] = {}
    for key in source.tensors:
        matches = []
        for file_format in formats:
            match = re.fullmatch(rf"((?:.*?\.)??){file_format.anchor}", key, re.DOTALL)
            if match:
                matches.append((file_format, match[1]))
        fitting = (pair for pair in matches if pair[0].marked(source, pair[1]))
        network = next(fitting, None)
        if network:
            networks.setdefault(max((prefix for _, prefix in matches), key=len), network)
    return networks


def _network(
    source: Source, options: LoadOptions, file_format: Format, prefix: str, others: list[str]
) -> Network:
    """Return a network with its settings; options replace them."""
    # one of several networks has tensors and settings of its own: those of vision_model,
    # vision_config
    rivals = tuple(other for other in others if not prefix.startswith(other))
    tensors = {key: value for key, value in source.tensors.items() if not key.startswith(rivals)}
    config = source.config
    for word in prefix.split("."):
        for key in (word, f"{word}_config", f"{word.removesuffix('_model')}_config"):
            if isinstance(config.get(key), dict):
                config = config | config[key]
    replacing = {"mean", "std", "crop_share", "norm_pix_loss"}
    stated = options.model_dump(include=replacing, exclude_none=True)
    hints = Hints(**file_format.hints(replace(source, tensors=tensors, config=config)) | stated)
    return Network(source, options, file_format, prefix, others, hints, Report())
