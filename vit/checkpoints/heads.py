"""The classifier of a checkpoint, wherever its users have put it.

A library has one name for its head. Whoever fine-tunes replaces it by a linear layer without a
bias, by a list with dropout, under another name, or in a module of their own, beside the network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from vit.checkpoints.formats.format import first_reason
from vit.checkpoints.formats.timm import TIMM, describes_itself
from vit.checkpoints.network import ModelTensor, Network, places_of
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


def find_heads(network: Network) -> dict[str, list[str]]:
    """Return the modules that may be the classifier, with the names of their tensors.

    The one that the options name is the first; then come those in the network, then those beside.
    """
    tensors = network.source.tensors
    places = places_of(network.prefix)
    heads: dict[str, list[str]] = {}

    # the named one, by its whole name or by the rest after the modules that hold the network
    named = network.options.classifier
    if named is not None:
        for name in (named, *(place + named for place in places)):
            keys = [key for key in tensors if key.startswith(f"{name}.")]
            if keys:
                heads[name] = keys
                break
        else:
            raise network.error(f"it holds no module {named!r} to be its head")
    used = {key for keys in heads.values() for key in keys}

    # those of a usual name, directly in the network or in a module that holds it, none of which
    # holds a network itself; a model that is no pretraining's has no pretraining's head
    is_described = network.format is TIMM and describes_itself(network.source)
    paths = (network.prefix, *network.copies)
    for place in places:
        for key in tensors:
            word, _, inner = key.removeprefix(place).partition(".")
            # a hidden layer before the head, in Google's models and timm's before 0.5
            if word == "pre_logits" and f"{place}head.weight" in tensors:
                word = "head"
            if word not in NAMES or not inner or not key.startswith(place) or key in used:
                continue
            name = place + word
            if any(path.startswith(f"{name}.") for path in paths):
                continue
            if (is_described and place == network.prefix) or not PROJECTION.fullmatch(key):
                heads.setdefault(name, []).append(key)
                used.add(key)
    return heads


def load_head(network: Network, heads: Mapping[str, Sequence[str]], width: int) -> None:
    """Set the head's tensors in the network, and report all others of the modules as dropped.

    Args:
        network: its `own_head` is set, too.
        heads: as `find_heads` returns them.
        width: D of its tokens.
    """
    # which one of several answers, only their code says
    options = network.options
    problems = {}
    layers = {}
    for name, keys in heads.items():
        problems[name], *layers[name] = _read(network, name, keys, width)
    chosen = next(iter(heads), "")
    is_one = len(heads) == 1 and not problems[chosen]
    if options.classifier is not None:
        if problems[chosen]:
            raise network.error(f"{chosen} {problems[chosen]}; a head is one linear layer")
    elif len(heads) > 1 and options.num_classes is None and options.part is None:
        raise network.error(
            f"several modules may be its classifier ({', '.join(heads)}); "
            "classifier names the one to load, num_classes 0 leaves them out"
        )
    elif not is_one:
        chosen = ""

    # the others, of which the first is told if the model has no classifier without it
    dropped = network.report.dropped
    for name, keys in heads.items():
        reason = first_reason(network.format.dropped, keys[0].removeprefix(network.prefix))
        problem = problems[name] or "is one of several (classifier names the one to load)"
        if name != chosen:
            dropped.update(dict.fromkeys(keys, reason or f"{name} {problem}"))
    if chosen:
        _load(network, chosen, *layers[chosen])
    elif heads:
        if options.num_classes is None:
            first = next(iter(heads.values()))[0]
            network.guess(
                f"{LOST_HEAD}: {dropped[first]}; num_classes 0 leaves it out without this warning"
            )
        # settings that say its classes are of what is left out
        encoder = {**network.hints.encoder}
        encoder.pop("num_classes", None)
        network.hints = replace(network.hints, encoder=encoder)


def _read(network: Network, name: str, keys: Sequence[str], width: int) -> tuple[str, str, str]:
    """Return why a head is no linear layer, "" if it is; the names of the layer and of its norm.

    The norm is a batch norm of what the layer reads, as a linear probe has; "" if there is none.
    """
    tensors = network.source.tensors
    layers = dict.fromkeys(key.rpartition(".")[0] for key in keys)
    matrices = [key for key in keys if key.endswith(".weight") and tensors[key].ndim == 2]
    linear = "".join(matrices[:1]).removesuffix(".weight")
    norms = [layer for layer in layers if len(tensors.get(f"{layer}.running_var", ())) == width]
    norm = "".join(norms[:1])
    if network.hints.head_problem:
        return network.hints.head_problem, linear, norm

    # a model in memory shows all that its head computes
    module = network.modules.get(f"{name}.")
    if module is not None:
        kinds = [type(part) for part in module.modules() if type(part) is not nn.Sequential]
        computed = [kind for kind in kinds if kind not in (nn.Dropout, nn.Identity, nn.Flatten)]
        if computed != [nn.BatchNorm1d] * len(norms) + [nn.Linear]:
            layers = dict.fromkeys(kind.__name__ for kind in kinds)
            linear = ""

    # one linear layer, perhaps after a batch norm, and nothing else with tensors
    layer_keys = (f"{linear}.weight", f"{linear}.bias")
    if not all(key in layer_keys or key.rpartition(".")[0] == norm for key in keys):
        return f"computes more than one linear layer ({first_few(list(layers))})", linear, norm
    problem = ""
    rows, columns = tensors[f"{linear}.weight"].shape
    if columns != width or rows == 0:
        problem = f"has a matrix of {size_text((rows, columns))} for tokens of {width} values"
    # of two layers, only the numbers in a list show the order: that of tensors may be alphabetical
    numbers = [layer.rpartition(".")[2] for layer in (norm, linear)]
    in_order = all(number.isdecimal() for number in numbers) and int(numbers[0]) < int(numbers[1])
    if norm and module is None and not in_order:
        problem = f"has a batch norm ({norm}) that may come after its linear layer"
    return problem, linear, norm


def _load(network: Network, name: str, linear: str, norm: str) -> None:
    """Set the tensors of the head, which is one linear layer; say what is a guess about it."""
    tensors = network.source.tensors
    options = network.options

    # a list's earlier parts that have no tensors are dropout, nearly always
    number = linear.rpartition(".")[2]
    module = network.modules.get(f"{name}.")
    is_named = options.classifier is not None or options.num_classes is not None
    if module is None and not is_named and number.isdecimal() and int(number) > bool(norm):
        network.guess(
            f"assuming that what precedes {linear} in its list is dropout; "
            "classifier names its module without this warning"
        )

    # Whether it is where the format's code has its head and reads what that does: of transformers'
    # classes, those that classify have one; somebody's own module may have the pooler before it.
    usual = set()
    for rule in network.format.rules:
        if rule.ours.startswith("head."):
            usual.add(rule.theirs[0].partition(".")[0])
    classes = network.source.config.get("architectures")
    has_none = bool(classes) and "ForImageClassification" not in str(classes)
    has_pooler = any(key.endswith("pooler.dense.weight") for key in tensors)
    is_inside = name.startswith(network.prefix)
    place = name.removeprefix(network.prefix).partition(".")[0]
    network.own_head = has_none or has_pooler or not is_inside or place not in usual

    # its tensors; without a bias, it has one of zeros here
    key = f"{linear}.weight"
    weight = ModelTensor(tensors[key], (key,))
    bias = ModelTensor(weight.value.new_zeros(len(weight.value)), (key,))
    if f"{linear}.bias" in tensors:
        bias = ModelTensor(tensors[f"{linear}.bias"], (f"{linear}.bias",))
    else:
        bias.changes.append("zeros: its layer has no bias")
    network.tensors |= {"head.weight": weight, "head.bias": bias}
    if not norm:
        return

    # A batch norm before it is folded in. MAE's has no scale, and this eps; a module shows its own.
    kinds = ("running_mean", "running_var", "weight", "bias")
    names = [f"{norm}.{kind}" for kind in kinds if f"{norm}.{kind}" in tensors]
    mean, variance, *affine = [tensors[name].float() for name in names]
    eps = 1e-5 if affine else 1e-6
    for part in () if module is None else module.modules():
        if isinstance(part, nn.BatchNorm1d):
            eps = part.eps
    scale, shift = affine or (None, torch.zeros_like(mean))

    # it divides a column of the weight as it would divide a feature:
    # W (scale (x - mean) / std + shift) + b = (folded W) x + (b - (folded W) mean + W shift)
    before = weight.value.float()
    folded = F.batch_norm(before, torch.zeros_like(mean), variance, scale, eps=eps)
    theirs = (*weight.theirs, *bias.theirs, *names)
    note = "with the batch norm before it folded in"
    bias.change(bias.value.float() - folded @ mean + before @ shift, note)
    weight.change(folded, note)
    weight.theirs = bias.theirs = tuple(dict.fromkeys(theirs))
    counter = f"{norm}.num_batches_tracked"
    if counter in tensors:
        network.report.dropped[counter] = "how many batches its batch norm has seen"
