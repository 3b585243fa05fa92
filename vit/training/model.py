"""The model that a run begins with: new, or from a checkpoint."""

from __future__ import annotations

import json
import warnings
from typing import Any

from vit.checkpoints import CheckpointError, load_model
from vit.checkpoints.formats.outgoing import Model, encoder_of
from vit.config import Config, ConfigError, ModelConfig
from vit.data import Dataset
from vit.data.augment import Normalization
from vit.data.images import DataError
from vit.encoder import VisionTransformer
from vit.mae import MaskedAutoencoder, build_autoencoder


def begin_model(config: Config, data: Dataset) -> tuple[Model, Normalization]:
    """The model of a run at its first step, and the normalisation of its input.

    Args:
        config: all settings. With `model.init`, they must agree with the checkpoint's, but for drop path and pooling.
        data: what is trained on: with `train.task: classify` its classes give the head, and where nothing was loaded its
            images give the normalisation.

    Returns:
        A `MaskedAutoencoder`, or for classification a `VisionTransformer` with a head; of the checkpoint it has encoder,
        decoder where there is one, head where its classes have the same names, and normalisation.

    Raises:
        CheckpointError: `model.init` cannot be loaded.
        ConfigError: it is another model than the settings say.
        DataError: images without labels are to be classified.
    """
    classes = data.train.class_names
    if config.train.task == "classify" and not (data.train.labelled and data.test.labelled):
        raise DataError(f"train.task: {data.name} has no labels to learn; a folder has them as <class>/<image>")
    heads = {"num_classes": len(classes)} if config.train.task == "classify" else {}
    arguments = config.model.encoder_arguments() | heads
    if not config.model.init:
        return build_model(config, arguments), Normalization.of(data.train.images)
    with warnings.catch_warnings(action="ignore"):  # a decoder or head that begins anew
        loaded = load_model(
            config.model.init, channels=3,
            image_size=config.model.image_size_2d, patch_size=config.model.patch_size_2d,
        )  # fmt: skip
    source = encoder_of(loaded)
    missing = [name for name in loaded.origin.report.missing if not name.startswith("head.")]
    if missing:
        raise CheckpointError(f"model.init: {config.model.init} lacks {missing[0]} ({len(missing)} tensors in all)")
    _agree(config.model, source)
    chosen = {key: arguments[key] for key in ("drop_path", "global_pool")}
    model = build_model(config, source.arguments | {"num_classes": 0} | chosen | heads)
    state = source.state_dict()
    if not (heads and loaded.origin.class_names == classes and source.arguments["num_classes"] == len(classes)):
        state = {key: value for key, value in state.items() if not key.startswith("head.")}
    encoder_of(model).load_state_dict(state, strict=False)
    if isinstance(model, MaskedAutoencoder) and isinstance(loaded, MaskedAutoencoder):
        decoder, found = model.decoder, loaded.decoder
        if decoder.arguments == found.arguments:
            decoder.load_state_dict(found.state_dict())
    return model, loaded.origin.normalize


def build_model(config: Config, encoder: dict[str, Any]) -> Model:
    """A model for `config.train.task`, with random weights.

    Args:
        config: gives the decoder, where there is to be one.
        encoder: arguments of `VisionTransformer`.
    """
    if config.train.task == "classify":
        return VisionTransformer(**encoder)
    return build_autoencoder(encoder, config.model.decoder_arguments(), config.mask.norm_pix_loss)


def _agree(settings: ModelConfig, encoder: VisionTransformer) -> None:
    """Refuse settings that say another architecture than the checkpoint has: config.yaml is to tell the truth."""
    said = settings.encoder_arguments()
    free = ("drop_path", "global_pool", "layer_scale")
    differ = {
        key: encoder.arguments[key]
        for key, value in said.items()
        if key not in free and encoder.arguments[key] != value
    }
    has_scale = encoder.arguments["layer_scale"] is not None
    if has_scale != (settings.layer_scale is not None):
        differ["layer_scale"] = encoder.arguments["layer_scale"]
    if differ:
        ways = " ".join(f"--model.{key} {json.dumps(value).strip(chr(34))}" for key, value in differ.items())
        raise ConfigError(f"model.init: {settings.init} is another model than the settings say; add {ways}")
