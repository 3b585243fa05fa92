"""The classifier of a checkpoint, wherever its users have put it.

A library has one name for its head. Whoever fine-tunes replaces it by a linear layer without a
bias, by a list with dropout, under another name, or in a module of their own, beside the network.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from vit.checkpoints.names import KeyRule
from vit.checkpoints.reading import first_few, size_text

# what people call the module with the classifier
NAMES = (
    "head", "heads", "classifier", "fc", "linear", "logits", "cls_head", "fc_head", "linear_head",
    "mlp_head", "classification_head", "classifier_head",
)  # fmt: skip
# heads that pretraining has and nobody classifies by: DINO's and iBOT's, MSN's, and those of MoCo
# v3, whose two encoders have names of their own
PROJECTION = re.compile(
    r"(.*\.)?(head\.(mlp2?|last_(layer|norm)2?)|fc\.(fc|bn)\d)\..*"
    r"|(.*\.)?(base|momentum)_encoder\.head\..*"
)
LOST_HEAD = "its classifier is left out"
"""How the note about a classifier that cannot be loaded begins."""


@dataclass(frozen=True)
class Head:
    """A module that may be the classifier.

    Attributes:
        name: of the module, in the checkpoint.
        keys: of all its tensors.
        rules: which of them become our head, with whole names; empty if they are not those of one
            linear layer.
        problem: why it is not one linear layer, or may not be; "" if it is.
        assumed: what is a guess about it, in words; "" for nothing.
        module: the module itself, of a model in memory.
    """

    name: str
    keys: tuple[str, ...]
    rules: tuple[KeyRule, ...] = ()
    problem: str = ""
    assumed: str = ""
    module: nn.Module | None = None


def find_heads(
    tensors: Mapping[str, Tensor],
    prefix: str,
    copies: Collection[str],
    width: int,
    is_described: bool,
) -> list[Head]:
    """Return the modules that may be the classifier of a network, in it first, then beside it.

    Args:
        tensors: of the whole checkpoint.
        prefix: precedes the names of the network's tensors.
        copies: the prefixes of other copies of the network.
        width: D of its tokens.
        is_described: whether the network is known to be no pretraining's, whatever its head's name.
    """
    # the modules directly in the network, and in each module that holds it, by their keys
    places = places_of(prefix)
    modules: dict[str, list[str]] = {}
    for key in tensors:
        if PROJECTION.fullmatch(key) and not (is_described and key.startswith(prefix)):
            continue
        for place in places:
            word = key.removeprefix(place).partition(".")[0]
            if key.startswith(f"{place}{word}.") and word in NAMES:
                modules.setdefault(place + word, []).append(key)
                break
            # a hidden layer before the head, in Google's models and timm's before 0.5
            if word == "pre_logits" and f"{place}head.weight" in tensors:
                modules.setdefault(f"{place}head", []).append(key)
                break

    # not those that hold the network, or a copy of it, themselves
    heads = []
    for name, keys in modules.items():
        if any(path.startswith(f"{name}.") for path in (prefix, *copies)):
            continue
        heads.append(_read(name, {key: tensors[key] for key in keys}, width))
    return sorted(heads, key=lambda head: not head.name.startswith(prefix))


def places_of(prefix: str) -> list[str]:
    """Return the prefix of a network and those of the modules that hold it, the longest first.

    >>> places_of("model.backbone.")
    ['model.backbone.', 'model.', '']
    """
    words = prefix.split(".")[:-1]
    return [".".join([*words[:count], ""]) for count in range(len(words), -1, -1)]


def named_head(
    tensors: Mapping[str, Tensor], prefix: str, copies: Collection[str], width: int, name: str
) -> Head | None:
    """Return the module that the user calls the classifier; None if there is none of this name.

    Args:
        tensors, prefix, copies, width: as for `find_heads`.
        name: of the module, with or without those that hold it.
    """
    # its whole name, else the rest of it after the modules that hold the network, else after any
    modules: dict[str, list[str]] = {}
    for key in tensors:
        match = re.match(rf"(?:.*?\.)??{re.escape(name)}(?=\.)", key)
        if match and not any(key.startswith(copy) for copy in copies if copy):
            modules.setdefault(match[0], []).append(key)
    if not modules:
        return None
    whole_names = [name, *(place + name for place in places_of(prefix)), next(iter(modules))]
    module = next(whole for whole in whole_names if whole in modules)
    head = _read(module, {key: tensors[key] for key in modules[module]}, width)
    # whoever names it knows what else is in it
    return replace(head, assumed="")


def _read(name: str, tensors: Mapping[str, Tensor], width: int) -> Head:
    """Return the head that a module's tensors make: one linear layer, or the problem.

    Args:
        name: of the module.
        tensors: by their whole names.
        width: D of the tokens that it reads.
    """
    keys = tuple(tensors)

    # its layers, by their names: a linear one has a matrix, a batch norm has statistics
    layers: dict[str, list[str]] = {}
    for key in keys:
        layer, _, kind = key.rpartition(".")
        layers.setdefault(layer, []).append(kind)
    linear = [layer for layer in layers if f"{layer}.weight" in keys]
    linear = [layer for layer in linear if tensors[f"{layer}.weight"].ndim == 2]
    norms = [layer for layer, kinds in layers.items() if "running_var" in kinds]

    # one linear layer, perhaps after a batch norm of what it reads, and nothing else with tensors
    is_linear = len(linear) == 1 and set(layers[linear[0]]) <= {"weight", "bias"}
    has_norm = len(norms) == 1 and len(tensors[f"{norms[0]}.running_var"]) == width
    if not is_linear or len(layers) > 1 + has_norm:
        problem = f"computes more than one linear layer ({first_few(list(layers))})"
        return Head(name, keys, problem=problem)
    weight = f"{linear[0]}.weight"
    bias = f"{linear[0]}.bias"
    rows, columns = tensors[weight].shape
    if columns != width or rows == 0:
        problem = f"has a matrix of {size_text((rows, columns))} for tokens of {width} values"
        return Head(name, keys, problem=problem)
    if has_norm and bias not in keys:
        return Head(name, keys, problem="is a batch norm and a layer without bias")

    # a layer without a bias has one of zeros here
    rules = [KeyRule("head.weight", (weight,)), KeyRule("head.bias", (bias,))]
    if bias not in keys:
        rules[1] = KeyRule("head.bias", (weight,), "zeros")
    if has_norm:
        rules = _fold(norms[0], weight, bias, "weight" in layers[norms[0]])

    # of two layers, only the numbers in a list show the order: that of tensors may be alphabetical
    problem = ""
    number = linear[0].rpartition(".")[2]
    if has_norm and not _precedes(norms[0], linear[0]):
        problem = f"has a batch norm ({norms[0]}) that may come after its linear layer"

    # a list's earlier parts that have no tensors are dropout, nearly always
    assumed = ""
    if number.isdecimal() and int(number) > has_norm:
        assumed = f"assuming that what precedes {linear[0]} in its list is dropout"
    return Head(name, keys, tuple(rules), problem, assumed)


def _precedes(first: str, second: str) -> bool:
    """Return whether the names of two layers are numbers in this order."""
    numbers = (first.rpartition(".")[2], second.rpartition(".")[2])
    return all(number.isdecimal() for number in numbers) and int(numbers[0]) < int(numbers[1])


def _fold(norm: str, weight: str, bias: str, has_scale: bool) -> list[KeyRule]:
    """Return the rules of a linear probe: a batch norm (in MAE's code without scale), a layer."""
    weights = [weight, f"{norm}.running_var"]
    biases = [weight, f"{norm}.running_var", f"{norm}.running_mean", bias]
    if has_scale:
        weights += [f"{norm}.weight"]
        biases += [f"{norm}.weight", f"{norm}.bias"]
    return [
        KeyRule("head.weight", tuple(weights), "normalised weight"),
        KeyRule("head.bias", tuple(biases), "normalised bias"),
    ]


def problem_of(head: nn.Module) -> str:
    """Say why the head of a model in memory is not one linear layer, "" if it is, or is none.

    A batch norm with statistics may stand before the layer, into which it is folded.
    """
    parts = _parts(head)
    layers = [part for part in parts if not _computes_as(part, nn.Dropout, nn.Identity, nn.Flatten)]
    norm = layers[0] if len(layers) == 2 else None
    if norm is not None and _computes_as(norm, nn.BatchNorm1d) and norm.running_mean is not None:
        layers = layers[1:]
    if not layers or (len(layers) == 1 and _computes_as(layers[0], nn.Linear)):
        return ""
    kinds = ", ".join(type(part).__name__ for part in parts)
    return f"computes more than one linear layer ({kinds})"


def _computes_as(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Return whether a module is of one of the kinds; a subclass may compute something else."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds)


def _parts(head: nn.Module) -> list[nn.Module]:
    """Return the modules in a list, and in the lists in it; the module itself if it is none."""
    if not _computes_as(head, nn.Sequential):
        return [head]
    assert isinstance(head, nn.Sequential)
    parts = []
    for part in head:
        parts += _parts(part)
    return parts


def norm_eps(head: nn.Module | None) -> float | None:
    """Return the eps of a batch norm in the head of a model in memory; None if there is none."""
    for part in () if head is None else head.modules():
        if isinstance(part, nn.BatchNorm1d):
            return part.eps
    return None
