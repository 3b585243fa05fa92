"""The model that a run begins with: new, or from a checkpoint."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Collection
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vit.checkpoints import CheckpointError, load_model
from vit.checkpoints.loading import find, read_network
from vit.config import OBJECTIVES, PRESETS, Config, ConfigError, ModelConfig, ViTConfig, spelled
from vit.data import Dataset
from vit.inputs import Normalization
from vit.load_options import LoadOptions
from vit.mae import Model
from vit.runs import RunFiles, read_mapping
from vit.training.objectives import objective_class
from vit.weights import weights_hash

# fields in which settings may differ from a checkpoint: those that a run chooses, and those that only foreign models vary
CHOSEN = {"drop_path", "global_pool", "channels", "num_classes"}
FOREIGN = {"no_embed_class", "fc_norm", "qk_norm", "mlp", "norm_eps"}
SIZES = {"image_size", "patch_size"}


class InitialModel(NamedTuple):
    """The model that a run begins with, and what belongs to it.

    Attributes:
        model: the objective's, with the encoder of a checkpoint and whatever else fits (`Objective.take_over`).
        normalize: of the input: the checkpoint's, or that of the training images.
        notes: what the user should know about both.
        init: `vit.weights.weights_hash` of the checkpoint; "" for random weights.
        init_seconds: seconds of training behind these weights, if the checkpoint is the folder of a finished run.
    """

    model: Model
    normalize: Normalization
    notes: list[str]
    init: str = ""
    init_seconds: float = 0.0


def initial_model(config: Config, data: Dataset) -> InitialModel:
    """Return the model of a run at its first step.

    Args:
        config: all settings. With `model.init`, they must agree with the checkpoint's, except for drop path and pooling.
        data: the training data.

    Raises:
        CheckpointError: `model.init` cannot be loaded.
        ConfigError: its architecture differs from the settings.
        DataError: the data lacks what the objective needs.
    """
    objective = objective_class(config.train.objective)
    derived = objective.encoder_settings(config, data)
    if not config.model.init:
        model = objective.build_model(config, config.model.vit_config(**derived))
        return InitialModel(model, Normalization.of(data.train.images), [])

    # load, and compare with the settings
    loaded = _load(config.model, part="encoder" if derived else None)
    source, origin = loaded.encoder, loaded.origin
    missing = [name for name in origin.report.missing if not name.startswith("head.")]
    if missing:
        raise CheckpointError(f"model.init: {config.model.init} lacks {missing[0]} ({len(missing)} tensors in all)")
    _agree(config.model, source.config)
    chosen = {"drop_path": config.model.drop_path, "global_pool": config.model.global_pool, "num_classes": 0}

    # a new model, with whatever fits from the loaded one
    model = objective.build_model(config, replace(source.config, **(chosen | derived)))
    state = {key: value for key, value in source.state_dict().items() if not key.startswith("head.")}
    model.encoder.load_state_dict(state, strict=False)
    notes = [f"model.init: {note}" for note in origin.report.notes]
    notes.append(f"model.init: {objective.take_over(model, loaded, data)}")

    # warn if the checkpoint has seen labels that this run holds back
    knows = "model.init: it has been taught classes, perhaps"
    taught = source.config.num_classes == len(data.train.class_names) > 0  # another number means other images
    if taught and data.held_out and not origin.was_tested_on(data.test.content_hash):
        notes.append(f"{knows} of the held-out images: figures on them may be optimistic")
    if taught and config.data.labels < 1 and origin.data_content_hash != data.content_hash:
        notes.append(f"{knows} with more labels than data.labels allows: it does not show what these few give")
    before = read_mapping(RunFiles(Path(config.model.init)).summary, CheckpointError)
    seconds = sum(float(before.get(key, 0)) for key in ("seconds", "init_seconds"))
    return InitialModel(model, origin.normalize, notes, weights_hash(loaded), seconds)


def follow_checkpoint(config: Config, given: Collection[str]) -> tuple[Config, list[str]]:
    """Take the architecture from the checkpoint `model.init`, except for settings given explicitly.

    Args:
        config: all settings.
        given: keys of the settings given explicitly; the others have their defaults.

    Returns:
        The settings that describe the model, and notes on what was taken over and what is resized.

    Raises:
        CheckpointError: `model.init` cannot be read.
        ConfigError: the checkpoint's part and the settings' part make no model, or its decoder predicts other patches.
    """
    if not config.model.init:
        return config, []
    network = read_network(find(config.model.init), LoadOptions(channels=3))
    found: dict[str, Any] = {k: v for k, v in asdict(network.encoder).items() if k not in CHOSEN | FOREIGN}
    if network.decoder is not None and not OBJECTIVES[config.train.objective].labels:
        own = network.decoder
        found |= {"decoder_dim": own.dim, "decoder_depth": own.depth, "decoder_heads": own.num_heads}
    sized = PRESETS[config.model.preset] if "model.preset" in given else {}
    said = {key for key in found if f"model.{key}" in given or key in sized}
    settings = asdict(config.model.vit_config()) | config.model.dimensions
    differ = {key: value for key, value in found.items() if value != settings[key]}
    for key in SIZES & {*differ}:
        height, width = differ[key]
        differ[key] = height if height == width else (height, width)
    taken = {key: value for key, value in differ.items() if key not in said}
    resized = {key: value for key, value in differ.items() if key in SIZES & said}
    what = ", ".join(f"{key} {spelled(value)}" for key, value in taken.items())
    notes = [f"model.init: the architecture is the checkpoint's: {what}"] if what else []
    if resized:
        keep = " ".join(f"--model.{key} {shlex.quote(spelled(value))}" for key, value in resized.items())
        if "patch_size" in resized and "decoder_dim" in found:
            init = shlex.quote(config.model.init)
            convert = f"vit checkpoint convert {init} --part encoder --to safetensors --out FOLDER"
            predicts = f"the decoder of {config.model.init} predicts patches of {spelled(resized['patch_size'])} pixels"
            raise ConfigError(f"model.patch_size: {predicts}; add {keep}, or leave it out: {convert}")
        notes.append(f"model.init: resized as the settings say; {keep} would keep its own size")
    return replace(config, model=replace(config.model, **taken)), notes


def _load(settings: ModelConfig, part: Literal["encoder"] | None) -> Model:
    size, patch = settings.image_size_2d, settings.patch_size_2d
    load = partial(load_model, settings.init, part=part, channels=3, image_size=size, patch_size=patch)
    with warnings.catch_warnings(action="ignore"):  # about a decoder or head with new weights
        try:
            return load(num_heads=settings.dimensions["num_heads"])  # a bare file of weights does not state it
        except CheckpointError:
            return load()  # it has another number: `_agree` lists all differences at once


def _agree(settings: ModelConfig, found: ViTConfig) -> None:
    """Refuse settings whose architecture differs from the checkpoint's, because config.yaml must describe the model."""
    expected, loaded = asdict(settings.vit_config()), asdict(found)
    if None not in (expected["layer_scale"], loaded["layer_scale"]):  # its initial value does not matter
        del loaded["layer_scale"]
    differ = {key: value for key, value in loaded.items() if value != expected[key] and key not in CHOSEN | FOREIGN}
    if differ:
        ways = " ".join(f"--model.{key} {shlex.quote(spelled(value))}" for key, value in differ.items())
        raise ConfigError(f"model.init: {settings.init} differs from the settings; add {ways}")
