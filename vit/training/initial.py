"""The model that a run begins with: new, or with the weights of a loaded one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

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
