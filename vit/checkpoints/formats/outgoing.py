"""A model on its way out, in a foreign format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vit.checkpoints.names import KeyRule, map_out
from vit.load_options import CheckpointError
from vit.mae import Model


@dataclass
class Outgoing:
    """The content of the files to write.

    Attributes:
        tensors: by their names.
        config: of config.json.
        preprocessor: of preprocessor_config.json; empty for none.
        notes: on what was left out, or will be computed otherwise there.
    """

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    preprocessor: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def renamed(
    model: Model, rules: Iterable[KeyRule], what: str, leave_out: dict[str, str], notes: list[str]
) -> dict[str, Tensor]:
    """Return the tensors of `model` under the names of a format.

    Args:
        model: whose tensors.
        rules: the format's table.
        what: the format, for messages.
        leave_out: beginnings of our names that are left out, each with the reason, which goes into `notes`.
        notes: to be added to.

    Raises:
        CheckpointError: the format has no place for a tensor.
    """
    state = {name.removeprefix("encoder."): value.detach().cpu() for name, value in model.state_dict().items()}
    for start, why in leave_out.items():
        left = [name for name in state if name.startswith(start)]
        if left:
            notes.append(f"left out, {len(left)} tensors ({left[0]}, ...): {why}")
        state = {name: value for name, value in state.items() if name not in left}
    tensors, unmapped = map_out(rules, state, channels=model.encoder.config.channels)
    if unmapped:
        raise CheckpointError(f"{what} has no place for {', '.join(unmapped[:4])}: it does not compute that")
    return tensors


def require(model: Model, what: str, **needed: Any) -> None:
    """Refuse a model with another value of one of the settings `needed` than the format `what` has.

    Raises:
        CheckpointError: which setting it is.
    """
    for key, value in needed.items():
        has = getattr(model.encoder.config, key)
        if has != value:
            raise CheckpointError(f"{what} computes {key} {value}, this model has {has}: it cannot be written so")


def require_squares(model: Model, what: str) -> None:
    """Refuse a model whose images or patches are no squares, where `what` takes them for squares.

    Raises:
        CheckpointError: with both sizes.
    """
    settings = model.encoder.config
    (height, width), (p, q) = settings.image_size, settings.patch_size
    if height != width or p != q:
        has = f"this model has {height} x {width} pixels in patches of {p} x {q}"
        raise CheckpointError(f"{what} computes square images of square patches, {has}: it cannot be written so")
