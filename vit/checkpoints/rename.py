"""Give each tensor of a network our name, and report those without a place in it."""

from __future__ import annotations

import re
from typing import Any

import torch

from vit.checkpoints.heads import PROJECTION, TWO_HEADS, load_head
from vit.checkpoints.names import NOTES
from vit.checkpoints.network import ModelTensor, Network, places_of, rules_of
from vit.checkpoints.reading import first_few

# what training files hold besides the network, at any depth
NOT_THE_NETWORK = (
    (r"(.*\.)?(opt|optim|optimizers?|optimizer_states?|lr_schedulers?|schedulers?|(amp_|grad_)?scaler"
     r"|loops|callbacks)\..*", "the state of the training, not of the network"),
    (r"(.*\.)?(rng|\w*(rng|random)_states?(_all)?)(\..*)?", "the state of a random generator"),
    (r"(.*\.)?(n_averaged|initted)|((model_)?ema\.)?step", "the state of an average of weights"),
    (r"(.*\.)?(((dino|ibot|ibot_patch|koleo)_loss|loss_fn)\..*|prototypes)", "the state of a loss"),
    (rf"{PROJECTION.pattern}|(.*\.)?(dino_head|ibot_head|projection_head|projector)\..*",
     "a projection head of the training"),
    (r"(.*\.)?predictor\..*", "the predictor of the training"),
    (r"(.*\.)?(mask_token|masked_embed)", "a token for masked patches, used only in training"),
    (r"(.*\.)?pre_logits\..*", "a hidden layer before its classifier"),
    (r"(.*\.)?pooler\.dense\..*", "the pooler, a tanh layer that this encoder does not have"),
    (r"(.*\.)?(head_dist|distillation_classifier)\..*", TWO_HEADS),
)  # fmt: skip
# words in the names of modules that stand beside a network and are no part of it
BESIDE = {
    "decoder", "decode", "projector", "projection", "predictor", "criterion", "loss", "metric",
    "metrics", "acc", "acc1", "acc5", "accuracy", "auroc", "f1", "confmat", "queue", "prototypes",
    "mean", "std", "mask",
}  # fmt: skip
# words of those that are none either, of which one may be the classifier, or stand before it
HEADS = {"head", "heads", "classifier"}
# and in the names of those that change what enters or leaves the layers
ENTRANCE = re.compile("stem|pre|embed|pos|token|rope|norm")
# a tensor of a layer
IN_BLOCK = re.compile(r"(?:^|\.)(?:blocks|layers?)\.\d+\.")


def rename(network: Network) -> None:
    """Set the network's `tensors`, by our names, and `unplaced`, the names of all others."""
    # the table is for all in the network but the classifier, which may stand anywhere
    tensors = network.source.tensors
    rules = rules_of(network.source, network.format, network.prefix)

    # D of the tokens is that of the patch kernels (D, C, p, q); C is that of the images
    width, channels, *_ = tensors[rules["patch_embed.proj.weight"].theirs[0]].shape
    used = {key for rule in rules.values() for key in rule.theirs}
    used |= load_head(network, width)
    network.unplaced = [key for key in tensors if key not in used]
    _read_normalization(network, channels)

    # their tensors, turned into ours
    for name, rule in rules.items():
        if network.options.part == "encoder" and name.startswith("decoder."):
            dropped = dict.fromkeys(rule.theirs, "only the encoder was requested")
            network.report.dropped |= dropped
            continue
        value = rule.read([tensors[key] for key in rule.theirs], channels)
        changes = [NOTES[rule.change]] if rule.change else []
        network.tensors[name] = ModelTensor(value, rule.theirs, changes)


def _read_normalization(network: Network, channels: int) -> None:
    """Set mean and deviation of the input, if no option does: of buffers beside the network.

    Else they are what the settings say, or assumed to be the usual ones.
    """
    tensors = network.source.tensors
    by_names: dict[tuple[str, str], Any] = {}
    for key in network.unplaced if network.options.mean is None else ():
        names = (key, f"{key.removesuffix('mean')}std")
        # those of a loss or a decoder differ
        words = {*re.split(r"[._]", key.lower())} - {"mean", "std"}
        is_pair = re.fullmatch(r"(.*[._])?mean", key) and names[1] in network.unplaced
        if not is_pair or words & BESIDE:
            continue
        # (2, 1 or C); those of pixels up to 255 are divided by it
        if {tensors[name].numel() for name in names} in ({1}, {channels}):
            pair = torch.stack([tensors[name].float().flatten() for name in names])
            if pair[1].max() > 2:
                pair /= 255
            if pair[1].min() > 0 and pair[0].abs().max() <= 1:
                by_names[names] = pair.tolist()

    # they are taken if they are one pair, or equal ones
    pairs = list(by_names.values())
    mean, std = network.hints.usual_input or network.format.usual_input
    reason = network.format.other_inputs or f"the default of {network.format.name}"
    if network.hints.usual_input:
        reason = "as usual for its family"
    if pairs and pairs.count(pairs[0]) == len(pairs):
        mean, std = pairs[0]
        for names in by_names:
            reason = f"as {names[0]} and {names[1]} say"
            network.report.dropped |= dict.fromkeys(names, "how its input is normalised")
    elif network.hints.mean and network.hints.std:
        return
    network.hints = network.hints.model_copy(update={"mean": mean, "std": std})
    numbers = [", ".join(f"{value:.4g}" for value in values) for values in (mean, std)]
    network.assume(
        f"mean {numbers[0]} and std {numbers[1]} of its input, {reason}", "mean, std, crop_share"
    )


# ---- What has no place in the network ------------------------------------------------------------


def account_for_rest(network: Network, is_whole: bool) -> None:
    """Report the tensors without a place: dropped for a reason or, if there is none, unexpected.

    Args:
        network: the network.
        is_whole: whether it lacks nothing; what stands beside it may else be what is missing.
    """
    # the modules directly in the network that are it
    prefix = network.prefix
    parts = {
        tensor.theirs[0].removeprefix(prefix).partition(".")[0]
        for tensor in network.tensors.values()
        if tensor.theirs[0].startswith(prefix)
    }

    report = network.report
    usual: dict[str, None] = {}
    unknown: dict[str, None] = {}
    for key in network.unplaced:
        if key in report.dropped:  # how the input is normalised
            continue
        # the longest place that holds it: in the network, or in a module around it
        place = next(place for place in places_of(prefix) if key.startswith(place))
        module = key.removeprefix(place).partition(".")[0]
        is_part = place == prefix and module in parts

        # within a layer, whatever its name, it changes what the layer computes
        reason = ""
        if not (is_part and IN_BLOCK.search(key.removeprefix(prefix))):
            reason = _reason(network, key)
        if not reason and network.allows(key):
            reason = "allowed"

        # not a part of the network, as a decoder is not
        words = {*module.lower().split("_")}
        is_beside = place != prefix
        if not is_beside and not is_part and not ENTRANCE.search(module):
            is_beside = network.options.part == "encoder" or bool(words & (BESIDE | HEADS))
        if not reason and is_beside and is_whole:
            reason = "beside the network, which is whole without it"
            reasons = usual if words & BESIDE else unknown
            reasons[module] = None
        if reason:
            report.dropped[key] = reason
        else:
            report.unexpected.append(key)

    # a note on what is usual, a warning about what may be anything
    if usual:
        network.note(f"left out, because the network is whole without it: {first_few(usual)}")
    if unknown:
        network.assume(
            "left out as no part of the network, although nothing says what it is: "
            f"{first_few(unknown)}",
            "allow; classifier if it is the head",
        )


def _reason(network: Network, key: str) -> str:
    """Return why a tensor is left out; "" if its name does not say why."""
    # a copy, or what stands beside one, and the branch that takes it
    own_places = {*places_of(network.prefix)}
    for network_place in network.others:
        places = {*places_of(network_place)} - own_places
        if key.startswith(tuple(places)):
            words = [
                word for word in network_place.split(".") if word not in network.prefix.split(".")
            ]
            return f"of another network; branch {''.join(words[:1])} takes it"

    # a score, as best_acc1
    if not key.startswith(network.prefix) and network.source.tensors[key].numel() <= 1:
        return "a single number beside the network"
    for pattern, reason in NOT_THE_NETWORK:
        if re.fullmatch(pattern, key):
            return reason
    return ""
