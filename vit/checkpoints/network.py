"""The network in a checkpoint: choose it, recognise its format, and read its settings."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from vit.checkpoints.formats import FORMATS, Format, Hints, refusal
from vit.checkpoints.formats.format import only_given
from vit.checkpoints.formats.native import OWN_FOLDER, is_own_folder
from vit.checkpoints.formats.timm import TIMM, describes_itself
from vit.checkpoints.reading import Source, first_few, size_text
from vit.checkpoints.report import Report, Shape
from vit.config import DecoderConfig, ViTConfig
from vit.errors import CheckpointError, one_line, shortened
from vit.load_options import LoadOptions
from vit.mae import Model

# among several copies of the network in a file, that with the smallest of these wins: averaged
# weights before the last ones, but MoCo's authors evaluate the trained encoder
BRANCHES = {
    "teacher": -5, "target_encoder": -4, "model_ema": -3, "state_dict_ema": -2, "ema": -1,
    "student": 1, "momentum": 1,
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
        unplaced: the names of all others in the checkpoint, until it is known what they are.
        own_head: whether its head is the user's own, not the format's, so that neither the format
            nor the settings say what it reads.
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
    unplaced: list[str] = field(default_factory=list)
    own_head: bool = False
    encoder: ViTConfig = field(init=False)
    decoder: DecoderConfig | None = None
    norm_pix_loss: bool = False
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

    def guess(self, text: str) -> None:
        """Tell the user, also in a warning, of a guess that nothing in the checkpoint confirms."""
        text = shortened(one_line(text), 1000)
        self.note(text)
        self.report.guesses.append(text)
        warnings.warn(f"{self.source.path}: {text}", stacklevel=2)

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
        if not self.options.allow:
            return False
        names = [name, f"encoder.{name}"]
        for key in self.tensors[name].theirs if name in self.tensors else (name,):
            names += [key.removeprefix(place) for place in places_of(self.prefix)]
        return self.options.allows(*names)

    def bad_values(self) -> dict[str, str]:
        """Return the model's tensors that cannot be used: their name -> why.

        The options may allow values that are nan or infinite.
        """
        problems = {}
        for ours, tensor in self.tensors.items():
            for key in tensor.theirs:
                value = self.source.tensors[key]
                count = count_not_finite(value)
                if not holds_weights(value):
                    problems[key] = (
                        f"{key} holds no weights: {value.dtype} on device {value.device}"
                    )
                # most are good, and nobody is asked about them
                elif count and not self.allows(ours):
                    problems[key] = (
                        f"{key} holds {count} values that are nan or infinite; "
                        "the training that made it diverged, or the file is damaged"
                    )
        return problems


def holds_weights(tensor: Tensor) -> bool:
    """Return whether a tensor has values, of floating point, one beside the other."""
    return tensor.is_floating_point() and not tensor.is_meta and tensor.layout is torch.strided


def count_not_finite(tensor: Tensor) -> int:
    """Count the nan and infinite values of a tensor as float32; 0 if it holds no weights."""
    if not holds_weights(tensor):
        return 0
    # in parts, because each copy as float32 needs memory
    count = 0
    for part in tensor.detach().reshape(-1).split(1 << 16):
        count += int((~torch.isfinite(part.float())).sum())
    return count


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
    # a folder of our own has one network, with our names, and needs none of the tables
    if options.branch is None and options.classifier is None and is_own_folder(source):
        network = _network(source, options, OWN_FOLDER, "", [])
    else:
        network = _choose(source, options)

    # all that the settings request of the input and that is not done here
    hints = network.hints
    for difference in hints.differences:
        network.guess(difference)
    # another size than the tensors are for, to which transformers' Dinov2 resizes its positions
    size = hints.prepared_size
    if size is not None and options.image_size is None:
        network.guess(
            f"its preprocessor makes images of {size_text(size)} pixels, its positions are for "
            f"{size_text(hints.encoder['image_size'])}, which are taken; "
            f"image_size {size[0]},{size[1]} takes the others"
        )
    return network


def _choose(source: Source, options: LoadOptions) -> Network:
    """Return the network to load, among several copies, of which a note or a guess tells."""
    # without what torch inserts into the names of a compiled or sharded module
    tensors = {WRAPPERS.sub("", name): tensor for name, tensor in source.tensors.items()}
    source = replace(source, tensors=tensors)
    networks = _find_networks(source)
    if not networks:
        raise source.error(
            refusal(tensors)
            or f"its {len(tensors)} tensors ({first_few(list(tensors))}) are in no known format; "
            "known are timm, MAE, DINO, iBOT, DINOv2, MoCo v3, MSN, I-JEPA, torchvision, Google's "
            ".npz, SWAG, mmpretrain, and Hugging Face's ViT, ViTMAE, ViTMSN, DeiT, I-JEPA, Dinov2"
        )

    # The best one: of the branch whose name, or a word of it, is given; else by `BRANCHES`. Of
    # equals it is a guess, the first in the file.
    branch = options.branch
    ranks = {}
    for path in networks:
        parts = path.split(".")
        words = {*parts, *re.split(r"[._]", path)}
        if branch is None or branch in words:
            rank = min((BRANCHES[word] for word in words if word in BRANCHES), default=0)
            ranks[path] = (branch not in parts, rank)
    if not ranks:
        names = sorted(path.rstrip(".") or "the top level" for path in networks)
        raise source.error(
            f"no copy of the network is called {branch!r}; it has: {', '.join(names)}"
        )
    chosen = min(ranks, key=lambda path: (ranks[path], path.count(".")))
    file_format, prefix = networks.pop(chosen)
    reason = refusal(name.removeprefix(prefix) for name in tensors if name.startswith(prefix))
    if reason:
        raise source.error(reason)

    # which copy it is, as of DINO's teacher and student
    network = _network(source, options, file_format, prefix, list(networks))
    place = prefix.rstrip(".") or "the top level"
    if list(ranks.values()).count(ranks[chosen]) > 1:
        network.guess(
            f"assuming that of several copies of the network, {place} is meant; "
            "branch takes another, or this one without this warning"
        )
    elif networks:
        network.note(f"of several copies of the network, the weights of {place} are used")
    return network


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
    source: Source, options: LoadOptions, file_format: Format, prefix: str, copies: list[str]
) -> Network:
    """Return a network with what its settings say; options stand in place of what they say."""
    # one of several networks has settings of its own: those of vision_model, vision_config
    config = source.config
    for word in prefix.split("."):
        for key in (word, f"{word}_config", f"{word.removesuffix('_model')}_config"):
            if isinstance(config.get(key), dict):
                config = config | config[key]
    stated = only_given({key: getattr(options, key) for key in ("mean", "std", "crop_share")})
    hints = Hints(**file_format.hints(replace(source, config=config)) | stated)
    return Network(source, options, file_format, prefix, copies, hints, Report())
