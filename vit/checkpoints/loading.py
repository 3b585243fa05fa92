"""Load any pretrained vision transformer in one call.

The way from a path to a model: read the files (`find`), recognise the network, rename its tensors,
read the architecture off their shapes, build the model on the device meta, account for every tensor
(`read_network`), and assign the weights (`assign_weights`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.checkpoints.architecture import SIZES, read_architecture
from vit.checkpoints.heads import NAMES
from vit.checkpoints.names import map_in
from vit.checkpoints.network import Network, recognise
from vit.checkpoints.reading import (
    Source,
    first_few,
    flatten,
    read_checkpoint,
    size_text,
    without_ours,
)
from vit.checkpoints.rename import account_for_rest, rename
from vit.config import changed
from vit.errors import CheckpointError, one_line, sentence_of, shortened
from vit.inputs import INTERPOLATIONS, Normalization
from vit.load_options import LoadOptions
from vit.mae import Model
from vit.pretrained import located
from vit.weights import NAME, NO_IMAGES, Origin, build_model, named_tensors

ADVICE = (
    "num_classes 0 leaves the head out, part encoder what is not the encoder; name tensors, or "
    "patterns, in allow to accept that"
)


def load_model(
    checkpoint: str | Path | Mapping[str, Tensor] | nn.Module,
    *,
    strict: bool = False,
    **options: Any,
) -> Model:
    """Load a pretrained vision transformer from any source.

    Args:
        checkpoint: a run folder or another folder with weights; a .safetensors, .pth, .pt or .bin
            file; the name of a model that comes with the package (`vit models` lists them), unless
            a local file or folder has that name; "timm/NAME" or "hf/ORGANISATION/NAME", fetched by
            huggingface_hub; a timm or transformers model in memory, which describes itself, also
            within a module of your own; or a state dict in memory, some of whose settings are
            assumed.
        strict: refuse a model with untrained parts that are not in `allow`; else a warning names
            them.
        options: fields of `LoadOptions`: part="encoder", image_size=64, num_classes=0, ...

    Returns:
        A `VisionTransformer`, or a `MaskedAutoencoder` if the checkpoint holds a decoder; float32,
        on the CPU, in eval mode. Its `origin` says what became of every tensor and how to prepare
        its input.

    Raises:
        CheckpointError: the file is not safe or no checkpoint, its family is not computed here, or
            a tensor is missing, unexpected, of another shape, or not finite; the message is one
            line.
        ConfigError: an option that cannot be used.
        OSError: the file cannot be read.
    """
    # on the CPU, whatever the caller's default device is
    with torch.device("cpu"):
        network = read_network(find(checkpoint), LoadOptions(**options))
        assign_weights(network)
        _compare_with_theirs(network)

    # what is easily overlooked in a report
    report = network.report
    lines = [*report.warnings]
    if report.assumed:
        text = "assumed, as nothing in it says so, with the options that set it: "
        lines.append(text + "; ".join(report.assumed))
    missing = report.missing
    if missing and not strict:
        count = sum(torch.Size(shape).numel() for shape in missing.values())
        lines.append(f"untrained, {count:,} parameters: {', '.join(missing)}")
    for line in lines:
        warnings.warn(f"{network.source.path}: {shortened(one_line(line), 1000)}", stacklevel=2)
    names = [name for name in missing if not network.allows(name)]
    if names and strict:
        raise network.error(f"parts of this model are untrained ({first_few(names)})")
    return network.model


def _compare_with_theirs(network: Network) -> None:
    """Refuse a model of a library that computes something else than what was loaded from it.

    It is one in memory, compared at its own size, or one that settings describe, of which timm
    builds a small twin.
    """
    source = network.source
    options = changed(network.options, dict.fromkeys(SIZES))
    twin = network.hints.twin
    if twin is not None:
        source = _source_of_module(twin, source.path)
        options = LoadOptions()
    if source.given_model is None:
        return
    from vit.checkpoints.comparison import compare_outputs

    with warnings.catch_warnings(action="ignore"):
        if twin is not None or options != network.options:
            network = read_network(source, options)
            assign_weights(network)
        compare_outputs(network)


# ---- Read ----------------------------------------------------------------------------------------


def find(checkpoint: str | Path | Mapping[str, Tensor] | nn.Module) -> Source:
    """Read a checkpoint, given as for `load_model`; fetch it first if necessary."""
    # in memory
    if isinstance(checkpoint, nn.Module):
        return _source_of_module(checkpoint, f"a {type(checkpoint).__name__} in memory")
    if isinstance(checkpoint, Mapping):
        tensors, values = flatten(dict(checkpoint))
        return Source("the state dict", tensors, values)

    # a path, or a name unless a local file or folder has it
    name = str(checkpoint)
    path = checkpoint if isinstance(checkpoint, Path) else located(checkpoint)

    # on a hub
    if path is None:
        from vit.checkpoints import hub  # with huggingface_hub, which takes seconds to import

        path = hub.download(name)
    return replace(read_checkpoint(path), path=str(Path(name)))


def _source_of_module(model: nn.Module, name: str) -> Source:
    """Return a model in memory as a checkpoint called `name`."""
    # a model of a library describes itself, also as the only one within a module of the user's own
    described = _library_models(model)
    if len(described) != 1:
        raise CheckpointError(
            f"{name} is not one model of timm's or transformers'; pass its state_dict() if its "
            "tensors have the names of theirs"
        )
    library_model: Any = described[0]
    tensors, values = flatten(dict(model.state_dict()))

    # transformers' settings
    config: dict[str, Any] = {}
    if hasattr(library_model, "base_model"):
        config = without_ours(library_model.config.to_dict())
        config["architectures"] = [type(library_model).__name__]
    return Source(name, tensors, values, config, module=library_model, given_model=model)


def _library_models(module: nn.Module) -> list[nn.Module]:
    """Return the module, or those within it, that are whole models of timm or transformers.

    None of them is within another.
    """
    library = type(module).__module__.partition(".")[0]
    is_whole = hasattr(module, "forward_features") or hasattr(module, "base_model")
    if library in ("timm", "transformers") and is_whole:
        return [module]
    return [model for child in module.children() for model in _library_models(child)]


# ---- Recognise, rename, build on meta, account ---------------------------------------------------


def read_network(source: Source, options: LoadOptions) -> Network:
    """Read a network except its weights, apply the options, and account for every tensor.

    The report lists what is missing or unexpected, as problems unless allowed.
    """
    try:
        # its format, our names for its tensors, its architecture
        network = recognise(source, options)
        # an object in place of a tensor that the network may lack would make it another network
        for key, kind in source.unread.items():
            name = key.removeprefix(network.prefix)
            if name.partition(".")[0] in NAMES or map_in(network.format.rules, [name]):
                raise network.error(f"{key} is a {kind}, not a tensor")
        types = dict.fromkeys(source.unread.values())
        if types:
            network.note(
                f"not read, and nothing of it was run: what it holds of {first_few(types)}"
            )
        rename(network)
        read_architecture(network)
        # the model, on a device where tensors have shapes and need no memory
        with torch.device("meta"):
            network.model = build_model(
                network.encoder, network.decoder, bool(network.hints.norm_pix_loss)
            )
    except (CheckpointError, Warning):
        raise
    except Exception as error:  # settings and tensors come from outside and may be anything
        problem = f"its settings and tensors make no model: {sentence_of(error)}"
        raise source.error(problem) from error
    _account(network)
    return network


def _account(network: Network) -> None:
    """Report what becomes of each tensor, and which the model needs and the checkpoint lacks."""
    report = network.report
    shapes = {name: tuple(value.shape) for name, value in named_tensors(network.model).items()}
    for ours, tensor in list(network.tensors.items()):
        # without a place in the model
        if ours not in shapes:
            if network.allows(ours):
                network.drop(ours, "allowed")
            else:
                report.unexpected += network.tensors.pop(ours).theirs
            continue

        # used, with or without a change
        shape = tuple(tensor.value.shape)
        expected = shapes.pop(ours)
        if shape != expected:
            raise network.error(
                f"{', '.join(tensor.theirs)} has the shape {size_text(shape)}, "
                f"where {size_text(expected)} is expected for {ours}"
            )
        # one byte each: fp8 usually has scales, under any name and in any place
        if tensor.value.element_size() == 1 and not network.allows(ours):
            report.problems.append(
                f"{ours} is of {tensor.value.dtype}, and nothing says which scales multiply it; "
                "save the weights as bf16 or fp32, or name it in allow if there are none"
            )
        if tensor.changes:
            report.converted[ours] = (tensor.theirs, "; ".join(tensor.changes))
        else:
            report.used[tensor.theirs[0]] = ours
    report.missing = shapes

    # a requested new head is no problem; any other missing or unexpected tensor is one
    new_head = ("head.weight", "head.bias") if network.options.num_classes else ()
    untrained = [ours for ours in shapes if ours not in new_head and not network.allows(ours)]
    account_for_rest(network, is_whole=not untrained)
    if untrained:
        report.problems.append(
            f"missing: {first_few(untrained)}, which would stay untrained; {ADVICE}"
        )
    if report.unexpected:
        report.problems.append(
            f"unexpected: {first_few(report.unexpected)}; their purpose is unknown; {ADVICE}"
        )


# ---- Assign --------------------------------------------------------------------------------------


@torch.no_grad()
def assign_weights(network: Network) -> Model:
    """Give the model of a network its weights, and its origin with the report."""
    for problem in (*network.report.problems, *network.bad_values()):
        raise network.error(problem)

    # The model gets values of its own. A changed tensor is new already and is not copied again,
    # because freed copies would stay in the heap.
    model = network.model
    state: dict[str, Tensor] = {}
    for ours, tensor in network.tensors.items():
        state[ours] = tensor.value.to(torch.float32, copy=not tensor.changes).contiguous()

    # what the checkpoint lacks is taken from a new model, with no more layers than that needs
    missing = network.report.missing
    if missing:
        numbers = [int(number) for number in re.findall(r"blocks\.(\d+)\.", " ".join(missing))]
        depth = max(numbers, default=0) + 1
        encoder = changed(network.encoder, {"depth": min(depth, network.encoder.depth)})
        fresh = named_tensors(build_model(encoder, network.decoder, norm_pix_loss=False))
        for ours in missing:
            state[ours] = fresh[ours].float()  # even if the caller's default is another type
    names = model.state_dict()
    model.load_state_dict(
        {name: state[name.removeprefix("encoder.")] for name in names}, assign=True
    )
    model.origin = origin_of(network)
    return model.eval()


def origin_of(network: Network) -> Origin:
    """Return where a network comes from and how its input is made.

    Without options and settings, the usual values for its format are used.
    """
    source = network.source
    hints = network.hints
    usual = network.format
    encoder = network.encoder

    interpolation = hints.interpolation or usual.interpolation
    if interpolation not in INTERPOLATIONS:
        network.warn(
            f"its settings resize images by {interpolation!r}, which is not supported; "
            f"assuming {usual.interpolation}"
        )
        interpolation = usual.interpolation

    # the share of the usual code, whose authors take images of 32 pixels whole
    share = hints.crop_share
    if share is None:
        share = usual.crop_share if max(encoder.image_size) > 32 else 1.0
        if share < 1:
            network.assume(f"a crop to {share:.4g} of an image's centre", "crop_share")

    # how the input was normalised; only three channels can be converted to others
    channels = encoder.channels
    count = len(hints.mean)
    if network.options.mean and count not in (1, 3, channels):
        raise network.error(
            f"mean and std: {count} numbers each, but {channels} channels; "
            "give one, or one per channel"
        )
    if count != channels:
        network.note(f"mean and std of its input are for {count} channels, converted to {channels}")
    mean, std = (_per_channel(values, channels) for values in (hints.mean, hints.std))

    # the names belong to this head, or to the data of a model without one
    is_of_these = encoder.num_classes in (0, len(hints.class_names))

    # the training images; in others' files, anything may have this name
    trained_on = NO_IMAGES
    if usual.name == NAME and "trained_on" in source.values:
        trained_on = torch.tensor(source.values["trained_on"], dtype=torch.int64)

    # in a run's checkpoint, the values hold what config.json holds otherwise
    facts = source.values | source.config
    return Origin(
        normalize=Normalization(mean, std),
        interpolation=interpolation,
        crop_share=share,
        squash=hints.squash,
        image_size=encoder.image_size,
        channels=channels,
        source=source.path,
        format=usual.name,
        class_names=hints.class_names if is_of_these else (),
        data=str(facts.get("data", "")),
        data_content_hash=str(facts.get("data_content_hash", "")),
        trained_on=trained_on,
        report=network.report,
        details=source.config,
    )


def _per_channel(values: Sequence[float], channels: int) -> list[float]:
    """Return a value for each channel: averaged for one, repeated for more."""
    if channels == 1:
        return [sum(values) / len(values)]
    return [values[i % len(values)] for i in range(channels)]
