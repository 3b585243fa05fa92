"""The project's own files.

They are model.safetensors with config.json, a run's checkpoints, and a model's plain state dict.
"""

from __future__ import annotations

from typing import Any

from vit.checkpoints.formats.format import Format, Hints
from vit.checkpoints.formats.timm import BLOCK, ENCODER
from vit.checkpoints.names import table, within
from vit.checkpoints.reading import Source
from vit.weights import FORMAT, NAME

DECODER = (
    *table("""
        decoder.mask_token
        decoder.pos_embed
        decoder.embed.@
        decoder.norm.@
        decoder.pred.@
    """),
    *within(BLOCK, "decoder.blocks.#.", "decoder.blocks.#."),
)


def own_hints(source: Source) -> dict[str, Any]:
    """Read config.json or, in a run's checkpoint, the values of the same names."""
    # config.json must be ours, and of this version
    config = source.config
    if config and config.get("format") != FORMAT:
        raise source.error(
            f"its config.json is not of the format {FORMAT}, which this version reads, but of "
            f"{config.get('format')}: another version of this package loads it"
        )

    # A run's checkpoint (see `vit.training.run`) has the same settings among its values, those of
    # the encoder as encoder.KEY; a plain state dict has none
    if not config:
        config = {**source.values}
        for part in ("encoder", "decoder"):
            names = [name for name in config if name.startswith(f"{part}.")]
            config[part] = {name.removeprefix(f"{part}."): config[name] for name in names}
        if not config["encoder"]:
            return {"code": "form"}
    hints = {key: config[key] for key in Hints.model_fields if config.get(key) is not None}
    return hints | {"encoder": config["encoder"]}


OWN = Format(
    name=NAME,
    anchor=rf"(?:encoder\.)?{Format.anchor}",  # an autoencoder's in a run's checkpoints
    marks=rf"decoder\.pred\.weight|config\.json says {NAME}/.*|encoder\.embed_dim",
    rules=(*within(ENCODER, "", "", "encoder."), *DECODER),
    hints=own_hints,
)
