"""The model that a run begins with: new, or with the weights of a loaded one."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Any, NamedTuple

from vit.config import (
    OBJECTIVES,
    PRESETS,
    Config,
    DecoderConfig,
    ModelConfig,
    ViTConfig,
    changed,
    spelled,
)
from vit.data import Dataset
from vit.errors import ConfigError
from vit.inputs import Normalization
from vit.mae import Model
from vit.training.objectives import objective_class
from vit.weights import checkpoint_hash

# fields in which settings may differ from a checkpoint: those that a run chooses, and those that
# only foreign models vary
CHOSEN = {"drop_path", "global_pool", "channels", "num_classes"}
FOREIGN = {"no_embed_class", "fc_norm", "qk_norm", "mlp", "norm_eps"}
SIZES = {"image_size", "patch_size"}


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
        config: all settings. With `loaded`, they must agree with its architecture, except for drop
            path and pooling.
        data: the training data.
        loaded: what `model.init` names, from `vit.load_model`; it stays as it is.

    Raises:
        ConfigError: as `refuse_init`, or the architecture differs from the settings.
        DataError: the data lacks what the objective needs.
        RunError: the summary of the run that left the loaded model is damaged.
    """
    objective = objective_class(config.train.objective)
    derived = objective.encoder_settings(config, data)
    refuse_init(config, loaded)
    if loaded is None:
        model = objective.build_model(config, config.model.vit_config(**derived))
        return InitialModel(model, Normalization.of(data.train.images), [])

    # compare it with the settings
    source = loaded.encoder
    origin = loaded.origin
    untrained = [name for name in origin.untrained if not name.startswith("head.")]
    if untrained:
        count = f"{len(untrained)} tensors in all"
        raise ConfigError(
            f"model.init: {config.model.init} lacks {untrained[0]} ({count}); "
            "use another checkpoint"
        )
    _agree(config.model, source.config)

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


def follow(
    config: Config, given: Collection[str], encoder: ViTConfig, decoder: DecoderConfig | None
) -> tuple[Config, list[str]]:
    """Take the architecture from the checkpoint `model.init`, except for settings given explicitly.

    Args:
        config: all settings.
        given: keys of the settings given explicitly; the others have their defaults.
        encoder: of the checkpoint.
        decoder: of the checkpoint; None if it has none.

    Returns:
        The settings that describe the model, and notes on what was taken over and what is resized.

    Raises:
        ConfigError: the checkpoint's decoder predicts other patches than the settings say.
    """
    # the checkpoint's architecture, under the names of the settings
    loaded: dict[str, Any] = {}
    for key, value in encoder:
        if key not in CHOSEN | FOREIGN:
            loaded[key] = value
    if decoder is not None and not OBJECTIVES[config.train.objective].labels:
        loaded["decoder_dim"] = decoder.dim
        loaded["decoder_depth"] = decoder.depth
        loaded["decoder_heads"] = decoder.num_heads

    # where it differs from the settings
    current = dict(config.model.vit_config()) | config.model.dimensions
    differing = {key: value for key, value in loaded.items() if value != current[key]}
    for key in SIZES & differing.keys():
        height, width = differing[key]
        # as it is written in settings
        if height == width:
            differing[key] = height

    # settings that nobody gave follow it; given sizes resize it
    fixed = {key.removeprefix("model.") for key in given if key.startswith("model.")}
    if "preset" in fixed:
        fixed |= PRESETS[config.model.preset].keys()
    followed = {key: value for key, value in differing.items() if key not in fixed}
    resized = {key: value for key, value in differing.items() if key in SIZES & fixed}

    notes = []
    if followed:
        architecture = ", ".join(f"{key} {spelled(value)}" for key, value in followed.items())
        notes.append(f"model.init: the architecture is the checkpoint's: {architecture}")
    if resized:
        keep = _options(resized)
        if "patch_size" in resized and "decoder_dim" in loaded:
            _refuse_other_patches(config.model.init, resized["patch_size"], keep)
        notes.append(f"model.init: resized as the settings say; {keep} would keep its own size")
    return changed(config, {f"model.{key}": value for key, value in followed.items()}), notes


def _refuse_other_patches(init_path: str, patch_size: object, keep: str) -> None:
    convert = f"vit checkpoint convert {shlex.quote(init_path)} --part encoder --to safetensors"
    raise ConfigError(
        f"model.patch_size: the decoder of {init_path} predicts patches of {spelled(patch_size)} "
        f"pixels; add {keep}, or leave it out: {convert} --out FOLDER"
    )


def _agree(settings: ModelConfig, encoder: ViTConfig) -> None:
    """Refuse settings whose architecture differs from the checkpoint's.

    The run's config.yaml must describe its model.
    """
    expected = dict(settings.vit_config())
    differing = {}
    for key, value in encoder:
        if key in CHOSEN | FOREIGN or value == expected[key]:
            continue
        if key == "layer_scale" and None not in (value, expected[key]):
            # its initial value does not matter, as its weights are loaded
            continue
        differing[key] = value
    if differing:
        raise ConfigError(
            f"model.init: {settings.init} differs from the settings; add {_options(differing)}"
        )


def _options(settings: dict[str, Any]) -> str:
    """Return fields of the model's section as options of a command line."""
    return " ".join(
        f"--model.{key} {shlex.quote(spelled(value))}" for key, value in settings.items()
    )
