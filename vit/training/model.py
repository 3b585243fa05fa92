"""The model that a run begins with: new, or from a checkpoint."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, replace
from functools import partial
from typing import NamedTuple

from vit.checkpoints import CheckpointError, load_model
from vit.checkpoints.native import fingerprint
from vit.config import Config, ConfigError, ModelConfig, ViTConfig
from vit.data import Dataset
from vit.data.augment import Normalization
from vit.data.images import DataError
from vit.encoder import VisionTransformer
from vit.mae import Model, build_autoencoder


class Beginning(NamedTuple):
    """What a run begins with.

    Attributes:
        model: with its first weights.
        normalize: of the input.
        notes: what the user should know of both.
        init: `vit.checkpoints.native.fingerprint` of the checkpoint; "" of random weights.
    """

    model: Model
    normalize: Normalization
    notes: list[str]
    init: str = ""


def begin_model(config: Config, data: Dataset) -> Beginning:
    """The model of a run at its first step.

    Args:
        config: all settings. With `model.init`, they must agree with the checkpoint's, but for drop path and pooling.
        data: what is trained on: with `train.task: classify` its classes give the head, and where nothing was loaded its
            images give the normalisation.

    Returns:
        A `MaskedAutoencoder`, or for classification a `VisionTransformer` with a head; of the checkpoint it has encoder,
        decoder where there is one of the same shape, head where its classes have the same names and it reads the same, and
        normalisation.

    Raises:
        CheckpointError: `model.init` cannot be loaded.
        ConfigError: it is another model than the settings say.
        DataError: images without labels, or of a single class, are to be classified.
    """
    classes = data.train.class_names
    if config.train.task == "classify" and not (data.train.labelled and data.test.labelled):
        raise DataError(f"train.task: {data.name} has no labels to learn; a folder has them as <class>/<image>")
    if config.train.task == "classify" and len(classes) < 2:
        raise DataError(f"train.task: {data.name} has one class, {classes[0]!r}: there is nothing to tell apart")
    heads = {"num_classes": len(classes)} if config.train.task == "classify" else {}
    asked = config.model.vit_config(**heads)
    if not config.model.init:
        return Beginning(build_model(config, asked), Normalization.of(data.train.images), [])
    loaded = _load(config.model, part="encoder" if heads else None)
    source = loaded.encoder
    missing = [name for name in loaded.origin.report.missing if not name.startswith("head.")]
    if missing:
        raise CheckpointError(f"model.init: {config.model.init} lacks {missing[0]} ({len(missing)} tensors in all)")
    _agree(config.model, source)
    chosen = {key: getattr(asked, key) for key in ("drop_path", "global_pool", "num_classes")}
    model = build_model(config, replace(source.config, **chosen))
    state, origin = source.state_dict(), loaded.origin
    notes = [f"model.init: {note}" for note in origin.report.notes]
    alike = origin.class_names == classes and source.config.num_classes == len(classes)
    kept = bool(heads) and alike and source.config.global_pool == config.model.global_pool
    if not kept:
        state = {key: value for key, value in state.items() if not key.startswith("head.")}
    model.encoder.load_state_dict(state, strict=False)
    if heads:
        notes.append(f"model.init: its encoder goes on, with {'its' if kept else 'a new'} head")
    if model.decoder is not None:
        taken = loaded.decoder is not None and model.decoder.config == loaded.decoder.config
        if loaded.decoder is not None and taken:
            model.decoder.load_state_dict(loaded.decoder.state_dict())
        notes.append(f"model.init: its encoder goes on, with {'its' if taken else 'a new'} decoder")
    knows = "model.init: it has been taught classes, perhaps"
    taught = source.config.num_classes == len(classes) > 0  # others are of other images
    if taught and data.held_out and not origin.was_tested_on(data.test.stamp):
        notes.append(f"{knows} of the held-out images: their figures may flatter it")
    if taught and heads and config.data.labels < 1 and origin.data_stamp != data.stamp:
        notes.append(f"{knows} by more labels than data.labels allows: it does not show what these few give")
    return Beginning(model, origin.normalize, notes, fingerprint(loaded))


def _load(settings: ModelConfig, part: str | None) -> Model:
    load = partial(
        load_model, settings.init, part=part, channels=3,
        image_size=settings.image_size_2d, patch_size=settings.patch_size_2d,
    )  # fmt: skip
    with warnings.catch_warnings(action="ignore"):  # a decoder or head that begins anew
        try:
            return load(num_heads=settings.dimensions["num_heads"])  # which a bare file of weights does not say
        except CheckpointError:
            return load()  # it does say, and something else: all that differs is told together


def build_model(config: Config, encoder: ViTConfig) -> Model:
    """A model for `config.train.task`, with random weights.

    Args:
        config: gives the decoder, where there is to be one.
        encoder: the encoder's architecture.
    """
    if config.train.task == "classify":
        return VisionTransformer(encoder)
    return build_autoencoder(encoder, config.model.decoder_config(), config.mask.norm_pix_loss)


def _agree(settings: ModelConfig, encoder: VisionTransformer) -> None:
    """Refuse settings that say another architecture than the checkpoint has: config.yaml is to tell the truth."""
    said, has = asdict(settings.vit_config()), asdict(encoder.config)
    free = ("channels", "num_classes", "drop_path", "global_pool", "layer_scale")
    differ = {key: has[key] for key, value in said.items() if key not in free and has[key] != value}
    if (has["layer_scale"] is not None) != (settings.layer_scale is not None):
        differ["layer_scale"] = has["layer_scale"]
    if differ:
        ways = " ".join(f"--model.{key} {json.dumps(value).strip(chr(34))}" for key, value in differ.items())
        raise ConfigError(f"model.init: {settings.init} is another model than the settings say; add {ways}")
