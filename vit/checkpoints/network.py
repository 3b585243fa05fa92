"""The network in a checkpoint: choose it, recognise its format, and read its settings."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pydantic import ValidationError
from torch import Tensor, nn

from vit.checkpoints.formats import FORMATS, Format, Hints, other_file, refusal
from vit.checkpoints.formats.native import OWN_FOLDER, is_own_folder
from vit.checkpoints.formats.timm import TIMM, describes_itself
from vit.checkpoints.heads import Head, places_of
from vit.checkpoints.origin import Report, Shape
from vit.checkpoints.reading import Source, not_finite, not_weights, shorten, size_text
from vit.config import DecoderConfig, ViTConfig, reason
from vit.errors import CheckpointError
from vit.inputs import INTERPOLATIONS
from vit.load_options import LoadOptions
from vit.mae import Model

# among several copies of the network in a file, the first of these words in a name wins: averaged
# weights before the last ones, but MoCo's authors evaluate the trained encoder
BRANCHES = ("teacher", "target_encoder", "model_ema", "state_dict_ema", "ema")
LAST_BRANCHES = ("student", "momentum")
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

    `recognise` makes it; `vit.checkpoints.rename`, `architecture` and `loading` set the attributes
    from `tensors` on.

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
        beside: the tensors beside it, to be left out if it is whole.
        head: the classifier; None if none is loaded.
        own_head: whether it is the user's own, not the format's, so that neither the format nor the
            settings say what it reads.
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
    beside: list[str] = field(default_factory=list)
    head: Head | None = None
    own_head: bool = False
    encoder: ViTConfig = field(init=False)
    decoder: DecoderConfig | None = None
    norm_pix_loss: bool = False
    model: Model = field(init=False)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The modules of a model in memory, by what precedes the names of their tensors."""
        modules: dict[str, nn.Module] = {}
        if self.source.whole is not None:
            for path, module in self.source.whole.named_modules():
                modules[WRAPPERS.sub("", f"{path}.").lstrip(".")] = module
        return modules

    def error(self, problem: str) -> CheckpointError:
        """Return an error that names the checkpoint."""
        return self.source.error(problem)

    def note(self, text: str) -> None:
        """Tell the user."""
        self.report.notes.append(text)

    def guess(self, text: str) -> None:
        """Tell the user, also in a warning, of a guess that nothing in the checkpoint confirms."""
        self.note(text)
        self.report.guesses.append(text)
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
                names += [key.removeprefix(place) for place in ("", *places_of(self.prefix))]
        return self.options.allows(*names)

    def bad_values(self) -> dict[str, str]:
        """Return the model's tensors that cannot be used: their name -> why.

        The options may allow values that are nan or infinite.
        """
        # what each tensor of theirs becomes; most are good, and the options are not asked of them
        ours = {key: name for name, tensor in self.tensors.items() for key in tensor.theirs}
        tensors = {key: self.source.tensors[key] for key in ours}
        problems = not_weights(tensors)
        for key, problem in not_finite(tensors).items():
            if not self.allows(ours[key]):
                problems.setdefault(key, problem)
        return problems


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
    is_guess = False
    names_a_part = options.branch is not None or options.classifier is not None
    if names_a_part or not is_own_folder(source):
        source = _without_wrappers(source)
        file_format, prefix, copies, is_guess = _choose(source, options.branch)
    hints = _read_hints(file_format, source, prefix, options)
    report = Report(notes=[*source.notes, *hints.notes])
    network = Network(source, options, file_format, prefix, copies, hints, report)
    # which copy it is, as of DINO's teacher and student
    place = prefix.rstrip(".") or "the top level"
    if is_guess:
        network.guess(
            f"assuming that of several copies of the network, {place} is meant; "
            "branch takes another, or this one without this warning"
        )
    elif copies:
        network.note(f"of several copies of the network, the weights of {place} are used")
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


def _choose(source: Source, branch: str | None) -> tuple[Format, str, list[str], bool]:
    """Return the network to load, among several copies.

    Args:
        source: the checkpoint's contents.
        branch: a key on the way to the copy to take; None for the best one.

    Returns:
        Its format, the prefix of its tensors, the prefixes of its copies, and whether it is a
        guess that this copy is meant.
    """
    # the copies to choose from; the longest prefix is the whole way to a copy
    networks = _find_networks(source)
    paths = {key: max(prefixes.values(), key=len) for key, prefixes in networks.items()}
    keys = list(networks)
    if branch is not None:
        keys = _of_branch(paths, branch)
    if not networks:
        raise _no_network(source)
    if not keys:
        names = sorted(path.rstrip(".") or "the top level" for path in paths.values())
        raise source.error(
            f"no copy of the network is called {branch!r}; it has: {shorten(', '.join(names))}"
        )

    # the best one, which is a guess unless its branch decides; of equals, the first in the file
    ranks = {key: _rank(paths[key]) for key in keys}
    keys.sort(key=lambda key: (ranks[key], paths[key].count(".")))
    key = keys[0]
    is_guess = list(ranks.values()).count(ranks[key]) > 1

    file_format, prefix = next(_fitting(source, networks[key]))
    reason = refusal(
        name.removeprefix(prefix) for name in source.tensors if name.startswith(prefix)
    )
    if reason:
        raise source.error(reason)
    copies: list[str] = []
    for copy, prefixes in networks.items():
        if copy != key:
            copies += prefixes.values()
    return file_format, prefix, copies, is_guess


def _of_branch(paths: dict[str, str], branch: str) -> list[str]:
    """Return the copies of a branch: those on whose way is its name, else a word of a name.

    Args:
        paths: the whole way to each copy.
        branch: as the user names it: "teacher" for teacher_backbone, too.
    """
    by_name = [key for key, path in paths.items() if branch in path.split(".")]
    by_word = [key for key, path in paths.items() if branch in re.split(r"[._]", path)]
    return by_name or by_word


def _find_networks(source: Source) -> dict[str, dict[str, str]]:
    """Return the networks: key of the patch embedding -> anchor of a format -> prefix."""
    networks: dict[str, dict[str, str]] = {}
    for anchor in dict.fromkeys(file_format.anchor for file_format in FORMATS):
        pattern = re.compile(rf"(?P<prefix>(?:.*?\.)??){anchor}", re.DOTALL)
        for key in source.tensors:
            match = pattern.fullmatch(key)
            if match:
                networks.setdefault(key, {})[anchor] = match["prefix"]

    # not an embedding of something else
    fitting = {}
    for key, prefixes in networks.items():
        if any(_fitting(source, prefixes)):
            fitting[key] = prefixes
    return fitting


def _fitting(source: Source, prefixes: dict[str, str]) -> Iterator[tuple[Format, str]]:
    """Yield the formats that fit a network, the best first, and the prefix of its tensors in each.

    Args:
        source: the checkpoint's contents.
        prefixes: anchor of a format -> prefix.
    """
    # a model that timm describes has timm's names, whatever else its tensors or those beside it are
    # called; our own config.json, which has an "encoder", names timm's architecture, too
    formats: tuple[Format, ...] = FORMATS
    if describes_itself(source) and "encoder" not in source.config:
        formats = (TIMM, *FORMATS)
    for file_format in formats:
        prefix = prefixes.get(file_format.anchor)
        if prefix is not None and file_format.marked(source, prefix):
            yield file_format, prefix


def _rank(path: str) -> int:
    """Return the rank of a copy by the words on the way to it: 0 for the best branch."""
    words = {*path.split("."), *re.split(r"[._]", path)}
    for rank, name in enumerate(BRANCHES):
        if name in words:
            return rank
    if words.isdisjoint(LAST_BRANCHES):
        return len(BRANCHES)
    return len(BRANCHES) + 1


def _no_network(source: Source) -> CheckpointError:
    """Return the error about a file in no format: what it is instead, or which formats load."""
    reason = refusal(source.tensors) or other_file(source.tensors)
    if reason:
        return source.error(reason)
    if not source.tensors:
        return CheckpointError(f"{source.path} holds no tensors")
    if len(source.tensors) == 1:
        return source.error("it holds a single tensor, which is no model")
    first = ", ".join(list(source.tensors)[:3])
    return source.error(
        f"its {len(source.tensors)} tensors ({first}, ...) are in no known format; known are timm, "
        "MAE, DINO, iBOT, DINOv2, MoCo v3, MSN, I-JEPA, torchvision, Google's .npz, SWAG, "
        "mmpretrain, and Hugging Face's ViT, ViTMAE, ViTMSN, DeiT, I-JEPA and Dinov2"
    )


def _read_hints(file_format: Format, source: Source, prefix: str, options: LoadOptions) -> Hints:
    """Return what the settings say, with the options in place of what they say of the input."""
    # one of several networks has settings of its own: those of vision_model, vision_config
    config = source.config
    for word in prefix.split("."):
        for key in (word, f"{word}_config", f"{word.removesuffix('_model')}_config"):
            if isinstance(config.get(key), dict):
                config = config | config[key]
    source = replace(source, config=config)
    try:
        hints = file_format.hints(source)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        problem = shorten(reason(error.errors()), 200)
        raise source.error(f"its settings cannot be used: {place}: {problem}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # settings come from outside and may hold anything
        problem = f"{type(error).__name__}: {error}"
        if isinstance(error, ValueError):
            problem = str(error)
        raise source.error(f"its settings cannot be used: {shorten(problem, 200)}") from error
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

    # another size than the tensors are for, to which transformers' Dinov2 resizes its positions
    size = network.hints.prepared_size
    if size is not None and network.options.image_size is None:
        option = str(size[0])
        if size[0] != size[1]:
            option = f"{size[0]},{size[1]}"
        network.guess(
            f"its preprocessor makes images of {size_text(size)} pixels, its positions are for "
            f"{size_text(network.hints.encoder['image_size'])}, which are taken; "
            f"image_size {option} takes the others"
        )
