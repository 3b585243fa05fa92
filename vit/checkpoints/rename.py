"""Give each tensor of a network our name, find its classifier, and report what has no place."""

from __future__ import annotations

import re
from dataclasses import replace

from torch import Tensor

from vit.checkpoints.formats.format import first_reason
from vit.checkpoints.formats.native import OWN_FOLDER
from vit.checkpoints.formats.timm import TIMM, describes_itself
from vit.checkpoints.heads import (
    LOST_HEAD,
    PROJECTION,
    Head,
    find_heads,
    named_head,
    norm_eps,
    places_of,
    problem_of,
)
from vit.checkpoints.names import NOTES, KeyRule, map_in
from vit.checkpoints.network import ModelTensor, Network
from vit.checkpoints.reading import first_few

# what training files hold besides the network, at any depth
NOT_THE_NETWORK = {
    r"(opt|optim|optimizers?|optimizer_states?|lr_schedulers?|schedulers?|(amp_|grad_)?scaler|loops"
    r"|callbacks)\..*":
        "the state of the training, not of the network",
    r"(rng|\w*(rng|random)_states?(_all)?)(\..*)?": "the state of a random generator",
    r"n_averaged|initted|(?<!.)((model_)?ema\.)?step": "the state of an average of weights",
    r"((dino|ibot|ibot_patch|koleo)_loss|loss_fn)\..*|prototypes": "the state of a loss",
    rf"{PROJECTION.pattern}|(dino_head|ibot_head|projection_head|projector)\..*":
        "a projection head of the training",
    r"predictor\..*": "the predictor of the training",
}  # fmt: skip
# words in the names of modules that stand beside a network and are no part of it
BESIDE = {
    "decoder", "decode", "head", "heads", "classifier", "projector", "projection", "predictor",
    "criterion", "loss", "metric", "metrics", "acc", "acc1", "acc5", "accuracy", "auroc", "f1",
    "confmat", "queue", "prototypes", "mean", "std", "mask",
}  # fmt: skip
# those of them that name, with another word, what may stand between the network and its head
HEADS = {"head", "heads", "classifier"}
# and in the names of those that change what enters or leaves the blocks
ENTRANCE = re.compile("stem|pre|embed|pos|token|rope|norm")
# a tensor of a block
IN_BLOCK = re.compile(r"(?:^|\.)(?:blocks|layers?)\.\d+\.")
KERNELS = "patch_embed.proj.weight"
NOT_REQUESTED = "only the encoder was requested"


def rename(network: Network) -> None:
    """Set the network's `tensors`, by our names; report those that have no place, with the reason.

    Raises:
        CheckpointError: two tensors have the same name of ours, or the options' mean and deviation
            are for other channels than the images have.
    """
    # the tensors of our own folder have our names already
    tensors = network.source.tensors
    if network.format is OWN_FOLDER:
        _check_normalization(network, _channels(tensors.get(KERNELS)))
        for name, tensor in tensors.items():
            network.tensors[name] = ModelTensor(tensor, (name,))
        if network.options.part == "encoder":
            for name in [name for name in tensors if name.startswith("decoder.")]:
                network.drop(name, NOT_REQUESTED)
        return

    # C of the images is needed for the order of a patch's pixels
    rules = _map_names(network)
    channels = 1
    if KERNELS in rules:
        channels = _channels(tensors[rules[KERNELS].theirs[0]])
    _check_normalization(network, channels)

    # their tensors, turned into ours
    eps = None if network.head is None else norm_eps(network.head.module)
    for name, rule in rules.items():
        if network.options.part == "encoder" and name.startswith("decoder."):
            for key in rule.theirs:
                network.report.dropped[key] = NOT_REQUESTED
            continue
        if not rule.change:
            network.tensors[name] = ModelTensor(tensors[rule.theirs[0]], rule.theirs)
            continue
        theirs = [tensors[key] for key in rule.theirs]
        if rule.change == "pixels" and len(theirs[0]) % channels:
            raise network.error(
                f"{rule.theirs[0]} has {len(theirs[0])} rows, which are no patches of "
                f"{channels} channels"
            )
        value = rule.read(theirs, channels, eps)
        network.tensors[name] = ModelTensor(value, rule.theirs, [NOTES[rule.change]])


def _channels(kernels: Tensor | None) -> int:
    """Return C of the images that patch kernels (D, C, p, q) take; 1 if they are none."""
    if kernels is None or kernels.ndim != 4:
        return 1
    return kernels.shape[1]


def _check_normalization(network: Network, channels: int) -> None:
    """Note which mean and deviation are assumed; refuse options for other channels."""
    usual = network.format
    if network.hints.mean is None:
        sentence = usual.other_inputs or f"these are the default of {usual.name}"
        assumed = (
            "nothing says how its input was normalised; assuming "
            f"mean {usual.mean}, std {usual.std}; {sentence}; mean, std and crop_share set them"
        )
        # timm's models in memory say theirs, if they have weights
        is_timms = network.source.module is not None and not network.source.config
        if usual.other_inputs and not is_timms:
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


def _map_names(network: Network) -> dict[str, KeyRule]:
    """Return the rules that apply, by our names; theirs are whole names.

    Report the tensors without a rule: dropped for a reason, beside the network, or unexpected.
    """
    prefix = network.prefix
    tensors = network.source.tensors

    # the classifier, which may stand anywhere
    result, in_heads = _map_head(network)

    # the table, for all others in the network
    keys = [key for key in tensors if key.startswith(prefix) and key not in in_heads]
    names, unmapped = map_in(network.format.rules, [key.removeprefix(prefix) for key in keys])
    parts = set()
    for name, rule in names.items():
        result[name] = replace(rule, theirs=tuple(prefix + key for key in rule.theirs))
        if network.options.part is None or not name.startswith("decoder."):
            parts.add(rule.theirs[0].partition(".")[0])

    # what it has no place for, in the network and outside
    for key in unmapped:
        module = key.partition(".")[0]
        reason = first_reason(network.format.dropped, key)
        # within a block, whatever its name, it changes what the block computes
        if not reason and not (module in parts and IN_BLOCK.search(key)):
            reason = _why_outside(network, prefix + key)
        _leave_out(network, prefix + key, reason, _is_beside(module, parts, network.options.part))
    for key in tensors:
        if not key.startswith(prefix) and key not in in_heads:
            _leave_out(network, key, _why_outside(network, key), is_beside=True)
    return result


def _is_beside(module: str, parts: set[str], part: str | None) -> bool:
    """Return whether a module directly in the network is none of it, as a decoder is none.

    Args:
        module: its name.
        parts: names of the modules that are the network.
        part: the part that the options request.
    """
    if module in parts or ENTRANCE.search(module):
        return False
    return part == "encoder" or not BESIDE.isdisjoint(module.lower().split("_"))


def _leave_out(network: Network, key: str, reason: str, is_beside: bool) -> None:
    """Report a tensor without a rule as dropped for a reason or, if there is none, unexpected.

    One that stands beside the network waits until it is known whether the network is whole.
    """
    if not reason:
        names = [key.removeprefix(place) for place in places_of(network.prefix)]
        if network.options.allows(key, *names):
            reason = "allowed"
    if reason:
        network.report.dropped[key] = reason
    elif is_beside:
        network.beside.append(key)
    else:
        network.report.unexpected.append(key)


def _why_outside(network: Network, key: str) -> str:
    """Return why a tensor without a rule is left out; "" if it is unknown."""
    # a tensor of a copy, and the branch that takes the copy, if one does
    words_of_network = network.prefix.split(".")
    for copy in network.copies:
        if copy and key.startswith(copy):
            words = [word for word in copy.split(".") if word and word not in words_of_network]
            if words:
                return f"another copy of the network; branch {words[0]} takes it"
            return "another copy of the network"
        places = set(places_of(copy)) - set(places_of(network.prefix))
        if any(key.startswith(place) for place in places):
            return "beside another copy of the network"

    # a score, as best_acc1
    if not key.startswith(network.prefix) and network.source.tensors[key].numel() <= 1:
        return "a single number beside the network"
    patterns = {rf"(.*\.)?({pattern})": reason for pattern, reason in NOT_THE_NETWORK.items()}
    return first_reason(patterns.items(), key)


def leave_beside(network: Network) -> None:
    """Drop the tensors beside a network that is whole without them, and say which they are."""
    modules: dict[str, int] = {}
    for key in network.beside:
        network.report.dropped[key] = "beside the network, which is whole without it"
        # its module, directly beside the network or beside one that holds it
        place = next(place for place in places_of(network.prefix) if key.startswith(place))
        module = key.removeprefix(place).partition(".")[0]
        modules[module] = modules.get(module, 0) + 1
    network.beside.clear()

    # what is usual there, and what may be anything, as head_norm may precede the head
    usual = []
    unknown = []
    for module, count in modules.items():
        text = module if count == 1 else f"{module} ({count} tensors)"
        words = set(module.lower().split("_"))
        if words.isdisjoint(BESIDE) or (len(words) > 1 and words & BESIDE <= HEADS):
            unknown.append(text)
        else:
            usual.append(text)
    if usual:
        network.note(f"left out, because the network is whole without it: {first_few(usual)}")
    if unknown:
        network.guess(
            "left out as no part of the network, although nothing says what it is: "
            f"{first_few(unknown)}; allow names it without this warning, "
            "classifier if it is the head"
        )


# ---- The classifier ------------------------------------------------------------------------------


def _map_head(network: Network) -> tuple[dict[str, KeyRule], set[str]]:
    """Return the rules of the classifier, and the names of all tensors of heads.

    Raises:
        CheckpointError: the requested one cannot be loaded, or there are several.
    """
    heads = _find_heads(network)
    head = _choose_head(network, heads)
    network.head = head
    rules: dict[str, KeyRule] = {}
    used: set[str] = set()
    if head is not None:
        _say_what_it_reads(network, head)
        for rule in head.rules:
            rules[rule.ours] = rule
            used.update(rule.theirs)
        for key in head.keys:
            if key not in used:
                network.report.dropped[key] = "how many batches its batch norm has seen"

    # all others, of which the first is told if the model has no classifier without it
    others = [other for other in heads if other is not head]
    for other in others:
        reason = first_reason(network.format.dropped, other.keys[0].removeprefix(network.prefix))
        if not reason:
            problem = other.problem or "is one of several (classifier names the one to load)"
            reason = f"{other.name} {problem}"
        # the chosen one may be a layer of it
        for key in other.keys:
            if head is None or key not in head.keys:
                network.report.dropped[key] = reason
    if others and head is None:
        if network.options.num_classes is None:
            network.guess(
                f"{LOST_HEAD}: {network.report.dropped[others[0].keys[0]]}; "
                "num_classes 0 leaves it out without this warning"
            )
        # settings that say its classes are of what is left out
        encoder = {**network.hints.encoder}
        encoder.pop("num_classes", None)
        network.hints = replace(network.hints, encoder=encoder)
    return rules, {key for head in heads for key in head.keys}


def _find_heads(network: Network) -> list[Head]:
    """Return what may be the classifier, the module that the options name first.

    Raises:
        CheckpointError: the named module is missing.
    """
    # D of its tokens, by the patch kernels (D, C, p, q)
    tensors = network.source.tensors
    anchor = re.compile(re.escape(network.prefix) + network.format.anchor)
    kernels = next(value for key, value in tensors.items() if anchor.fullmatch(key))
    width = kernels.shape[0] if kernels.ndim else 0

    # the named one, once
    is_described = network.format is TIMM and describes_itself(network.source)
    heads = find_heads(tensors, network.prefix, network.copies, width, is_described)
    name = network.options.classifier
    if name is not None:
        named = named_head(tensors, network.prefix, network.copies, width, name)
        if named is None:
            usual = first_few([head.name for head in heads]) or "none"
            raise network.error(f"it holds no module {name!r} to be its head; heads in it: {usual}")
        within = f"{named.name}."
        heads = [named, *(head for head in heads if not f"{head.name}.".startswith(within))]

    # a model in memory knows more of its heads than tensors show, as does known code
    modules = network.modules
    for i, head in enumerate(heads):
        problem = network.hints.head_problem
        module = modules.get(f"{head.name}.")
        if module is not None:
            problem = problem or problem_of(module)
            head = replace(head, module=module, assumed="")
        # the module shows the order of its layers, too
        if head.module is None or not head.rules:
            problem = problem or head.problem
        heads[i] = replace(head, problem=problem)
    return heads


def _choose_head(network: Network, heads: list[Head]) -> Head | None:
    """Return the head to load; None if there is none that can be loaded.

    Raises:
        CheckpointError: the named one is no linear layer, or several may be meant.
    """
    options = network.options
    if options.classifier is not None:
        if heads[0].problem:
            raise network.error(f"{heads[0].name} {heads[0].problem}; a head is one linear layer")
        return heads[0]

    # which of several answers, only their code says
    if len(heads) > 1:
        if options.num_classes is not None or options.part is not None:
            return None
        names = ", ".join(head.name for head in heads)
        raise network.error(
            f"several modules may be its classifier ({names}); "
            "classifier names the one to load, num_classes 0 leaves them out"
        )
    if not heads or heads[0].problem:
        return None

    # what a model in memory knows, a file leaves open
    if heads[0].assumed and options.num_classes is None:
        network.guess(f"{heads[0].assumed}; classifier names its module without this warning")
    return heads[0]


def _say_what_it_reads(network: Network, head: Head) -> None:
    """Set the network's `own_head`; say if its pooled token may pass something else first."""
    # where the format's code has its head; of transformers' classes, those that classify have one
    classes = network.source.config.get("architectures")
    has_none = bool(classes) and "ForImageClassification" not in str(classes)
    usual = set()
    for rule in network.format.rules:
        if rule.ours.startswith("head."):
            usual.add(rule.theirs[0].partition(".")[0])
    place = head.name.removeprefix(network.prefix).partition(".")[0]
    network.own_head = has_none or not head.name.startswith(network.prefix) or place not in usual

    # transformers' classifiers have no pooler; somebody's own module may have it before its head
    poolers = [key for key in network.source.tensors if key.endswith("pooler.dense.weight")]
    if poolers:
        network.guess(
            f"{head.name} may read its pooler ({poolers[0]}), which this encoder does not have; "
            "assuming that it reads the class token itself; num_classes 0 leaves it out"
        )
