"""The project's own formats: model.safetensors with config.json, and the states of a run."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from vit.checkpoints.formats.format import Format, Hints
from vit.checkpoints.formats.timm import ANCHOR, BLOCK, ENCODER
from vit.checkpoints.names import shared, within
from vit.checkpoints.reading import Source, shorten
from vit.config import DecoderConfig, ViTConfig
from vit.load_options import CheckpointError

NAME = "vit-patch-trainer"
FORMAT = f"{NAME}/1"
"""The "format" in config.json."""

DECODER = (
    *shared("decoder.mask_token decoder.pos_embed decoder.embed.@ decoder.norm.@ decoder.pred.@"),
    *within(BLOCK, "decoder.blocks.#.", "decoder.blocks.#."),
)


def native_hints(source: Source) -> Hints:
    """Read config.json or, in a run's state, the values of the same names.

    Raises:
        CheckpointError: they are of another version, or a setting is missing or cannot be used.
    """
    config, where = source.config, "config.json"
    said = str(config.get("format"))
    if config and said != FORMAT and said.startswith(f"{NAME}/"):
        versions = f"is not of the format {FORMAT}, which this version reads, but of {shorten(said)}"
        raise CheckpointError(f"{source.path} {versions}: another version of this package loads it")
    if config and said != FORMAT:
        raise source.error(f"its config.json is not of the format {FORMAT}, its weights are")
    if not config:
        config, where = _of_state(source.other), "its state"
        if not config["encoder"] and any(key.startswith("config.model.") for key in source.other):
            raise CheckpointError(f"{source.path} was saved by an earlier version: it lacks its model's settings")
        if not config["encoder"]:
            return Hints()
    try:
        if source.config:
            config["sha256"]  # must be there; `reading` has compared it
        encoder = {key: tuple(v) if isinstance(v, list) else v for key, v in config["encoder"].items()}
        decoder = config["decoder"] or {}
        if decoder:
            decoder = {key: encoder[key] for key in ("qkv", "qkv_bias") if key in encoder} | decoder
        for settings, kind in ((encoder, ViTConfig), (decoder, DecoderConfig)):
            if unknown := settings.keys() - {item.name for item in fields(kind)}:
                raise KeyError(f"{sorted(unknown)[0]} is not a setting of {kind.__name__}")
        return Hints(
            encoder,
            decoder,
            config["norm_pix_loss"],
            tuple(map(float, config["mean"])),
            tuple(map(float, config["std"])),
            config.get("interpolation"),
            tuple(map(str, config["class_names"])),
            crop_share=config.get("crop_share"),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise source.error(f"{where} is damaged: {type(error).__name__}: {error}") from error


def _of_state(values: dict[str, Any]) -> dict[str, Any]:
    """Return what a run's state (see `vit.training.run`) says about its model, in the form of config.json."""
    parts = {
        name: {key.removeprefix(f"{name}."): value for key, value in values.items() if key.startswith(f"{name}.")}
        for name in ("encoder", "decoder")
    }
    known = {key: values[key] for key in ("norm_pix_loss", "mean", "std", "class_names") if key in values}
    return known | {"encoder": parts["encoder"], "decoder": parts["decoder"] or None, "interpolation": "bicubic"}


AUTOENCODER = Format(
    name=NAME,
    anchor=rf"(?:encoder\.)?{ANCHOR}",  # with the prefix in a run's states, and in files of 0.1.0
    marks=(r"decoder\.pred\.weight",),
    rules=(*ENCODER, *within(ENCODER, "", "encoder."), *DECODER),
    hints=native_hints,
)
ENCODER_ALONE = Format(
    name=NAME,
    anchor=ANCHOR,
    marks=(rf"config\.json says {NAME}/.*", r"encoder\.embed_dim"),
    rules=ENCODER,
    hints=native_hints,
)
