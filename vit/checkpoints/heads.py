"""The classifier of a checkpoint, wherever its users have put it.

A library has one name for its head. Users who fine-tune replace it with a linear layer without a
bias, or a list with dropout, under another name, or in a module of their own beside the network.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from vit.checkpoints.formats.timm import TIMM, describes_itself
from vit.checkpoints.network import ModelTensor, Network, places_of
from vit.checkpoints.reading import first_few

# common names of the module with the classifier
NAMES = (
    "head", "heads", "classifier", "fc", "linear", "logits", "cls_head", "fc_head", "linear_head",
    "mlp_head", "classification_head", "classifier_head", "cls_classifier",
)  # fmt: skip
# DeiT's, in timm's and in transformers' names
TWO_HEADS = "one of DeiT's two heads, of two tokens, whose mean is its answer"
# heads of pretraining that are no classifiers: DINO's and iBOT's, MSN's, and those of MoCo
# v3, whose two encoders have names of their own
PROJECTION = re.compile(
    r"(.*\.)?(head\.(mlp2?|last_(layer|norm)2?)|fc\.(fc|bn)\d)\..*"
    r"|(.*\.)?(base|momentum)_encoder\.head\..*"
)


def load_head(network: Network, width: int) -> set[str]:
    """Set the head's tensors in the network, and report all others of such modules as dropped.

    Args:
        network: its `own_head` is set, too.
        width: D of its tokens.

    Returns:
        The names of all these tensors.
    """
    # only the file's own code knows which one of several classifies
    options = network.options
    heads = _find(network)
    found = {name: _read(network, name, keys, width) for name, keys in heads.items()}
    chosen = next(iter(heads), "")
    if options.classifier is not None:
        if found[chosen][0]:
            raise network.error(f"{chosen} {found[chosen][0]}; a head is one linear layer")
    elif len(heads) > 1 and options.num_classes is None and options.part is None:
        raise network.error(
            f"several modules may be its classifier ({', '.join(heads)}); "
            "classifier names the one to load, num_classes 0 leaves them out"
        )
    elif len(heads) > 1 or (heads and found[chosen][0]):
        chosen = ""

    # the others; the first is reported if the model has no classifier without it
    dropped = network.report.dropped
    for name, keys in heads.items():
        if name != chosen:
            problem = found[name][0] or "is one of several (classifier names the one to load)"
            dropped.update(dict.fromkeys(keys, f"{name} {problem}"))
    keys = [key for keys in heads.values() for key in keys]
    if chosen:
        _load(network, chosen, *found[chosen][1:])
    elif heads:
        if options.num_classes is None:
            network.warn(
                f"its classifier is left out: {dropped[keys[0]]}; num_classes 0 leaves it out"
                " without this warning"
            )
        # settings that name the classes of the head that is left out
        network.hints.encoder.pop("num_classes", None)
    return set(keys)


def _find(network: Network) -> dict[str, list[str]]:
    """Return the modules that may be the classifier, with the names of their tensors.

    The one that the options name comes first; then those in the network, then those beside it.
    """
    # the named one, by its whole name or by the rest after the modules that hold the network; else
    # those of a usual name, directly in the network or in a module that holds it
    tensors = network.source.tensors
    places = places_of(network.prefix)
    classifier = network.options.classifier
    named = [place + str(classifier) for place in ("", *places)]
    usual = [place + word for place in places for word in NAMES]

    # none of them holds a network itself, and only a model from pretraining has a pretraining head
    is_described = network.format is TIMM and describes_itself(network.source)
    paths = (network.prefix, *network.others)
    heads: dict[str, list[str]] = {}
    used: set[str] = set()
    for name in (*named, *usual):
        keys = [key for key in tensors if key.startswith(f"{name}.") and key not in used]
        if name in usual and not is_described and any(map(PROJECTION.fullmatch, keys)):
            continue
        if keys and not any(path.startswith(f"{name}.") for path in paths):
            heads[name] = keys
            used.update(keys)
    if classifier is not None and heads.keys().isdisjoint(named):
        raise network.error(f"it holds no module {classifier!r} to be its head")
    return heads


def _read(network: Network, name: str, keys: Sequence[str], width: int) -> tuple[str, str, str]:
    """Return why a head is no linear layer of a token, "" if it is; the names of layer and norm.

    The norm is a batch norm of the layer's input, as in a linear probe; "" if there is none.
    """
    tensors = network.source.tensors
    linear = norm = ""
    for key in keys:
        layer, _, kind = key.rpartition(".")
        if kind == "weight" and tensors[key].ndim == 2:
            linear = linear or layer
        elif kind == "running_var":
            norm = layer

    # one linear layer, perhaps after a batch norm, and nothing else with tensors, nor before the
    # head, where Google's models and timm's before 0.5 may have a hidden layer
    layers = dict.fromkeys(key.rpartition(".")[0] for key in keys)
    is_one = bool(linear) and layers.keys() <= {linear, norm}
    is_one = is_one and not any("pre_logits." in key for key in tensors)
    # a model in memory shows all that its head computes
    module = network.modules.get(f"{name}.")
    if module is not None:
        kinds = [type(part) for part in module.modules() if type(part) is not nn.Sequential]
        layers = dict.fromkeys(kind.__name__ for kind in kinds)
        computed = [kind for kind in kinds if kind not in (nn.Dropout, nn.Identity, nn.Flatten)]
        is_one = is_one and computed == [nn.BatchNorm1d] * bool(norm) + [nn.Linear]

    problem = network.hints.head_problem
    if any(key.endswith(("head_dist.weight", "distillation_classifier.weight")) for key in tensors):
        problem = f"is {TWO_HEADS}"
    if not problem and not is_one:
        problem = f"computes more than one linear layer ({first_few(layers)})"
    # of two layers, only the first number of a list shows the order: tensors may be alphabetical
    if not problem and module is None and norm and not norm.endswith(".0"):
        problem = f"has a batch norm ({norm}) that may come after its linear layer"
    if not problem and tensors[f"{linear}.weight"].shape[1] != width:
        problem = f"does not read one token, of {width} values"
    return problem, linear, norm


def _load(network: Network, name: str, linear: str, norm: str) -> None:
    """Set the tensors of the head, which is one linear layer; report what is assumed about it."""
    tensors = network.source.tensors
    options = network.options

    # A list's earlier parts without tensors are nearly always dropout. A cosine classifier
    # has no bias. Who names the head knows what it computes, and a module shows it.
    number = linear.rpartition(".")[2]
    module = network.modules.get(f"{name}.")
    is_named = options.classifier is not None or options.num_classes is not None
    if module is None and not is_named:
        if number.isdecimal() and int(number) > bool(norm):
            network.assume(f"what precedes {linear} in its list is dropout", f"classifier {name}")
        if f"{linear}.bias" not in tensors:
            network.assume(
                f"{linear} is a linear layer without a bias, not a cosine", f"classifier {name}"
            )

    # Whether it stands where the format's code has its head, and has the same input: of
    # transformers' classes, those that classify have one; a user's own module may have the pooler
    # before it.
    classes = network.source.config.get("architectures")
    has_none = bool(classes) and "ForImageClassification" not in str(classes)
    has_pooler = any(key.endswith("pooler.dense.weight") for key in tensors)
    place = name.removeprefix(network.prefix).partition(".")[0]
    is_theirs = name.startswith(network.prefix) and any(
        rule.ours == "head.@" and rule.theirs[0].startswith(f"{place}.")
        for rule in network.format.rules
    )
    network.own_head = has_none or has_pooler or not is_theirs

    # its tensors; without a bias, it has one of zeros here
    key = f"{linear}.weight"
    weight = ModelTensor(tensors[key], (key,))
    zeros = weight.value.new_zeros(len(weight.value))
    bias = ModelTensor(zeros, (key,), ["zeros: its layer has no bias"])
    if f"{linear}.bias" in tensors:
        bias = ModelTensor(tensors[f"{linear}.bias"], (f"{linear}.bias",))
    network.tensors |= {"head.weight": weight, "head.bias": bias}
    if not norm:
        return

    # A batch norm before it is folded in. MAE's has no scale, and this eps; a module shows its own.
    kinds = ("running_mean", "running_var", "weight", "bias")
    names = [f"{norm}.{kind}" for kind in kinds if f"{norm}.{kind}" in tensors]
    mean, variance, *affine = [tensors[name].float() for name in names]
    eps = getattr(network.modules.get(f"{norm}."), "eps", 1e-5 if affine else 1e-6)
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
