"""The model that a run begins with: new, or with the weights of a loaded one.

Parts of it can be frozen by name, down to the thirds of a fused qkv layer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vit.config import OBJECTIVES, PRESETS, Config, ModelConfig, changed, spelled
from vit.data import Dataset
from vit.errors import ConfigError
from vit.inputs import Normalization
from vit.mae import Model
from vit.training.objectives import objective_class
from vit.weights import checkpoint_hash

DECODER = {"decoder_dim": "dim", "decoder_depth": "depth", "decoder_heads": "num_heads"}
"""Fields of `DecoderConfig`, by the settings that hold them."""


class InitialModel(NamedTuple):
    """The model that a run begins with, and what belongs to it.

    Attributes:
        model: the objective's, with the encoder of a checkpoint and whatever else fits
            (`Objective.take_over`).
        normalize: of the input: the checkpoint's, or that of the training images.
        notes: what the user should know about both.
        init_hash: `vit.weights.checkpoint_hash`; "" for random weights.
    """

    model: Model
    normalize: Normalization
    notes: list[str]
    init_hash: str = ""


def refuse_init(config: Config, loaded: Model | None) -> None:
    """Refuse a model that a run cannot begin with.

    Raises:
        ConfigError: `model.init` names one that is not loaded (training loads nothing), it was not
            loaded from a checkpoint, or it takes images of other than three channels.
    """
    if config.model.init and loaded is None:
        load = f"fit(..., init=load_model({config.model.init!r}))"
        raise ConfigError(f"model.init: in Python, hand the loaded model over: {load}")
    if loaded is None:
        return
    if getattr(loaded, "origin", None) is None:
        raise ConfigError(
            "init: this model was not loaded from a checkpoint; pass one of vit.load_model"
        )
    channels = loaded.encoder.config.channels
    if channels != 3:
        raise ConfigError(
            f"model.init: {loaded.origin.source} takes {channels}-channel images, training makes "
            "3-channel ones; use another checkpoint"
        )


def initial_model(config: Config, data: Dataset, loaded: Model | None = None) -> InitialModel:
    """Return the model of a run at its first step.

    Args:
        config: all settings; of a `loaded` model, they decide drop path and pooling.
        data: the training data.
        loaded: what `model.init` names, from `vit.load_model`; it stays as it is.

    Raises:
        ConfigError: as `refuse_init`, or a part of the loaded model is missing.
        DataError: the data lacks what the objective needs.
        RunError: the summary of the run that left the loaded model is damaged.
    """
    objective = objective_class(config.train.objective)
    derived = objective.encoder_settings(config, data)
    refuse_init(config, loaded)
    if loaded is None:
        model = objective.build_model(config, config.model.vit_config(**derived))
        return InitialModel(model, Normalization.of(data.train.images), [])

    # the whole of its encoder must be there
    source = loaded.encoder
    origin = loaded.origin
    untrained = [name for name in origin.untrained if not name.startswith("head.")]
    if untrained:
        count = f"{len(untrained)} tensors in all"
        raise ConfigError(
            f"model.init: {config.model.init} lacks {untrained[0]} ({count}); "
            "use another checkpoint"
        )

    # a new model, with whatever fits from the loaded one
    settings: dict[str, Any] = {
        "drop_path": config.model.drop_path,
        "global_pool": config.model.global_pool,
        "num_classes": 0,
    }
    settings.update(derived)
    model = objective.build_model(config, changed(source.config, settings))
    # its head is copied by `take_over`, if the classes are the same
    state = source.state_dict()
    for key in list(state):
        if key.startswith("head."):
            del state[key]
    model.encoder.load_state_dict(state, strict=False)
    notes = [f"model.init: {note}" for note in origin.notes]
    notes.append(f"model.init: {objective.take_over(model, loaded, data)}")

    # warn if the checkpoint has seen labels that this run holds back
    classes = source.config.num_classes
    # another number of classes means other images
    has_classes = classes == len(data.train.class_names) > 0
    if has_classes and data.held_out and not origin.was_tested_on(data.test.content_hash):
        notes.append(
            "model.init: it has been taught classes, perhaps of the held-out images: "
            "scores on them may be optimistic"
        )
    if has_classes and config.data.labels < 1 and origin.data_content_hash != data.content_hash:
        notes.append(
            "model.init: it has been taught classes, perhaps with more labels than data.labels "
            "allows: it does not show what these few give"
        )

    return InitialModel(model, origin.normalize, notes, checkpoint_hash(loaded))


def architecture_of(model: Model) -> dict[str, Any]:
    """Return what the section `model` says of a model: its encoder, and the size of a decoder."""
    values = {}
    for name, value in model.encoder.config:
        if name in ModelConfig.model_fields:
            values[name] = value
    if model.decoder is not None:
        for name, field in DECODER.items():
            values[name] = getattr(model.decoder.config, field)
    return values


def follow(config: Config, named: Collection[str], loaded: Model) -> tuple[Config, list[str]]:
    """Take over the architecture of the model that a run begins with.

    Args:
        config: all settings.
        named: keys of those that the command line names, which must agree with the model; those of
            a file yield.
        loaded: what `model.init` names.

    Returns:
        The settings that describe the model, and a note on what was taken over.

    Raises:
        ConfigError: a setting that the command line names differs.
    """
    own = architecture_of(loaded)
    # a run chooses how its encoder is regularised and read, and a classifier has no decoder
    chosen = {"drop_path", "global_pool"}
    if OBJECTIVES[config.train.objective].labels:
        chosen |= DECODER.keys()
    for name in chosen & own.keys():
        del own[name]

    # where it differs from the settings
    current = {**dict(config.model), **config.model.dimensions}
    differing = {name: value for name, value in own.items() if value != current[name]}
    for name, value in differing.items():
        is_named = f"model.{name}" in named
        if is_named or ("model.preset" in named and name in PRESETS[config.model.preset]):
            problem = f"{spelled(current[name])} cannot be used; {config.model.init} has"
            raise ConfigError(f"model.{name}", f"{problem} {spelled(value)}; leave it out")
    notes = []
    if differing:
        architecture = ", ".join(f"{name} {spelled(value)}" for name, value in differing.items())
        notes.append(f"model.init: the architecture is the checkpoint's: {architecture}")
    return changed(config, {f"model.{name}": value for name, value in own.items()}), notes


THIRDS = {"W_Q": 0, "W_K": 1, "W_V": 2}


def freeze(model: Model, names: Sequence[str]) -> list[Tensor]:
    """Stop parts of `model` from learning.

    A name consists of components of a parameter's name, in their order: "patch_embed", "pos_embed",
    "encoder.blocks.0", "mlp", "decoder.norm1". W_Q, W_K and W_V stand for that third of every qkv
    layer, weight and bias, and W_O for every attention's proj; they can be narrowed down as well:
    "decoder.W_Q", "encoder.blocks.3.attn.W_K".

    Returns:
        Views of the frozen thirds of parameters that learn otherwise, each once. Their gradient is
        zero from now on; `restore_frozen_rows` protects them from weight decay.

    Raises:
        ConfigError: a name matches nothing.
    """
    # a dictionary, because names may overlap: each third once, in their order
    thirds: dict[tuple[nn.Parameter, int], None] = {}
    for name in names:
        # a classifier's encoder may be named as within an autoencoder
        if model.decoder is None:
            name = name.removeprefix("encoder.")

        # the name among the parameters: a third stands within its qkv, W_O is proj
        matrix = name.rpartition(".")[2]
        parameter_name = name.replace("attn.W_O", "W_O").replace("W_O", "attn.proj")
        if matrix in THIRDS:
            parameter_name = name.removesuffix(matrix) + "qkv"

        # of every layer, unless the name says which
        matches = [
            parameter
            for key, parameter in model.named_parameters()
            if _contains(key, parameter_name)
        ]
        if not matches:
            raise ConfigError(
                f"model.freeze: {name!r} is not a part of this model; it has "
                f"{', '.join(_part_names(model))}"
            )
        for parameter in matches:
            if matrix in THIRDS:
                thirds[parameter, THIRDS[matrix]] = None
            else:
                parameter.requires_grad_(False)
    # a third whose parameter another name has frozen as a whole needs nothing more
    return [
        _freeze_third(parameter, third) for parameter, third in thirds if parameter.requires_grad
    ]


def restore_frozen_rows(optimizer: Optimizer, rows: list[Tensor]) -> None:
    """Undo the weight decay of frozen rows after every step of `optimizer`.

    Args:
        optimizer: of the model.
        rows: from `freeze`.
    """
    originals = [row.clone() for row in rows]

    def restore(*_: object) -> None:
        torch._foreach_copy_(rows, originals)

    if rows:
        optimizer.register_step_post_hook(restore)


def _freeze_third(parameter: nn.Parameter, third: int) -> Tensor:
    """Keep the gradient of a third of a parameter's rows at zero, and return a view of them."""
    size = len(parameter) // 3
    frozen = slice(third * size, (third + 1) * size)

    def without_third(gradient: Tensor) -> Tensor:
        # autograd may still use the one that it passes
        gradient = gradient.clone()
        gradient[frozen] = 0
        return gradient

    parameter.register_hook(without_third)
    return parameter.detach()[frozen]


def _contains(key: str, name: str) -> bool:
    """Return whether the components of `name` are among those of `key`, in this order."""
    remaining = key.split(".")
    for component in name.split("."):
        if component not in remaining:
            return False
        remaining = remaining[remaining.index(component) + 1 :]
    return True


def _part_names(model: Model) -> list[str]:
    """Return names that `freeze` accepts: matrices, then modules and parameters, not numbered."""
    components = set()
    for key, _ in model.named_parameters():
        components.update(key.split("."))
    components -= {"weight", "bias"}
    matrices = ["W_O"]
    if "qkv" in components:
        matrices = [*THIRDS, "W_O"]
    return matrices + sorted(part for part in components if not part.isdigit())
