"""A model on its way out, in a foreign format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vit.checkpoints.names import Row, moves_out, write_out
from vit.checkpoints.origin import Origin
from vit.checkpoints.reading import CheckpointError
from vit.mae import Model


@dataclass
class Outgoing:
    """What is to be written.

    Attributes:
        tensors: by their names.
        config: of config.json.
        preprocessor: of preprocessor_config.json; empty for none.
        notes: what was left out, or will be computed otherwise there.
    """

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    preprocessor: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def origin_of(model: Model) -> Origin:
    """What travels with the model.

    Raises:
        CheckpointError: nothing does, because it was not loaded.
    """
    if not isinstance(model.origin, Origin):
        raise CheckpointError("this model was not loaded by load_model: nothing says how its input is normalised")
    return model.origin


def tensors_of(model: Model) -> dict[str, Tensor]:
    """All tensors by our names: timm's for the encoder, with `decoder.` in front for the decoder."""
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    return {name.removeprefix("encoder."): value for name, value in state.items()}


def renamed(
    model: Model, rows: Iterable[Row], what: str, leave_out: dict[str, str], notes: list[str]
) -> dict[str, Tensor]:
    """The tensors of `model` under the names of a format.

    Args:
        model: whose tensors.
        rows: the format's table.
        what: the format, for messages.
        leave_out: beginnings of our names that are left out, each with the reason, which goes into `notes`.
        notes: to be added to.

    Raises:
        CheckpointError: the format has no place for a tensor.
    """
    tensors = tensors_of(model)
    for start, why in leave_out.items():
        found = [name for name in tensors if name.startswith(start)]
        if found:
            notes.append(f"left out, {len(found)} tensors ({found[0]}, ...): {why}")
        for name in found:
            del tensors[name]
    moves, homeless = moves_out(rows, tensors)
    if homeless:
        raise CheckpointError(f"{what} has no place for {', '.join(homeless[:4])}: it does not compute that")
    return write_out(moves, tensors, channels=model.encoder.patch_embed.proj.in_channels)


def require(model: Model, what: str, **needed: Any) -> None:
    """Refuse a model that the format does not compute.

    Args:
        needed: settings of `ViTConfig` with the value that the format has.

    Raises:
        CheckpointError: a setting has another value.
    """
    for key, value in needed.items():
        has = getattr(model.encoder.config, key)
        if has != value:
            raise CheckpointError(f"{what} computes {key} {value}, this model has {has}: it cannot be written so")
