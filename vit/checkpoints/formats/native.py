"""The project's own: model.safetensors beside config.json, and the states of a run."""

from __future__ import annotations

import inspect
from typing import Any

from vit.checkpoints.formats.format import Format, Hints
from vit.checkpoints.formats.timm import ANCHOR, BLOCK, ENCODER
from vit.checkpoints.names import row, within
from vit.checkpoints.reading import CheckpointError, Source
from vit.config import ConfigError, ModelConfig
from vit.encoder import VisionTransformer
from vit.mae import MaskedDecoder

FORMAT = "vit-patch-trainer/1"
"""What config.json says under "format"."""

DECODER = (
    *(row(f"decoder.{name}") for name in ("mask_token", "pos_embed", "embed.@", "norm.@", "pred.@")),
    *within(BLOCK, "decoder.blocks.#.", "decoder.blocks.#."),
)


def native_hints(source: Source) -> Hints:
    """All of config.json; for a state of a run, the settings in it.

    Raises:
        CheckpointError: a setting is missing, or makes no model.
    """
    config = source.config
    if not config:
        return _state_hints(source)
    if config.get("format") != FORMAT:
        raise CheckpointError(f"{source.path}: its config.json is not of the format {FORMAT}, its weights are")
    try:
        config["sha256"]  # compared in reading, where it is there
        encoder = {key: tuple(v) if isinstance(v, list) else v for key, v in config["encoder"].items()}
        decoder = config["decoder"]
        if decoder is not None:
            decoder = {key: encoder[key] for key in ("qkv", "qkv_bias") if key in encoder} | decoder
        for settings, kind in ((encoder, VisionTransformer), (decoder or {}, MaskedDecoder)):
            unknown = settings.keys() - inspect.signature(kind).parameters.keys()
            if unknown:
                raise KeyError(f"{sorted(unknown)[0]} is no setting of {kind.__name__}")
        return Hints(
            encoder, decoder or {}, config["norm_pix_loss"], tuple(map(float, config["mean"])),
            tuple(map(float, config["std"])), config.get("interpolation"), tuple(map(str, config["class_names"])),
        )  # fmt: skip
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{source.path}: config.json is damaged: {type(error).__name__}: {error}") from error


def _state_hints(source: Source) -> Hints:
    """The settings within a state of a run (see `vit.training.state`); nothing, where there are none."""
    settings = {
        key.removeprefix("config.model."): v for key, v in source.other.items() if key.startswith("config.model.")
    }
    if not settings:
        return Hints({}, {})
    known = {key: value for key, value in settings.items() if key in ModelConfig.__dataclass_fields__}
    try:
        model = ModelConfig(**known)
    except (ConfigError, TypeError, ValueError) as error:
        raise CheckpointError(f"{source.path}: the settings in this state are damaged: {error}") from error
    encoder: dict[str, Any] = model.encoder_arguments()
    decoder = {"qkv": model.qkv, "qkv_bias": model.qkv_bias, **model.decoder_arguments()}
    said = source.other
    mean, std = (tuple(said[key]) if isinstance(said.get(key), list) else None for key in ("mean", "std"))
    names = tuple(map(str, said.get("class_names") or ()))
    return Hints(encoder, decoder, said.get("config.mask.norm_pix_loss"), mean, std, "bicubic", names)


AUTOENCODER = Format(
    name="vit-patch-trainer",
    anchor=rf"encoder\.{ANCHOR}",
    marks=(r"decoder\.pred\.weight",),
    rows=(*within(ENCODER, "", "encoder."), *DECODER),
    hints=native_hints,
)

ENCODER_ALONE = Format(
    name="vit-patch-trainer",
    anchor=ANCHOR,
    marks=(r"config\.json says vit-patch-trainer/1",),
    rows=ENCODER,
    hints=native_hints,
)
