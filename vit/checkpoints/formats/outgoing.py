"""A model to be written in a foreign format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vit.checkpoints.names import KeyRule, map_out
from vit.config import ViTConfig
from vit.load_options import CheckpointError
from vit.mae import Model


@dataclass
class Outgoing:
    """A model, and the content of its files in a foreign format.

    Attributes:
        model: the model to write.
        format: the format's name in messages.
        tensors: by their names in the format.
        config: the content of config.json.
        preprocessor: the content of preprocessor_config.json; empty for none.
        notes: on what was left out, or is computed differently there.
    """

    model: Model
    format: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    preprocessor: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def error(self, what: str) -> CheckpointError:
        """Return an error that says what the format and this model have."""
        return CheckpointError(f"{self.format} {what}, so it cannot be written")

    def require(self, **needed: Any) -> None:
        """Refuse a model unless all these settings have the values that the format computes."""
        for key, value in needed.items():
            has = getattr(self.model.encoder.config, key)
            if has != value:
                raise self.error(f"computes {key} {value}, this model has {has}")

    def require_squares(self) -> None:
        """Refuse a model whose images or patches are not square."""
        settings = self.model.encoder.config
        (height, width), (p, q) = settings.image_size, settings.patch_size
        if height != width or p != q:
            has = f"this model has {height} x {width} pixels in patches of {p} x {q}"
            raise self.error(f"computes square images of square patches, {has}")

    def require_alike(self, decoder: ViTConfig) -> None:
        """Refuse an autoencoder whose decoder's blocks are of another kind than the encoder's."""
        for key in ("qkv", "qkv_bias", "qk_norm", "mlp", "norm_eps"):
            kinds = [getattr(settings, key) for settings in (self.model.encoder.config, decoder)]
            if kinds[0] != kinds[1]:
                raise self.error(f"computes one {key} in encoder and decoder, this model {kinds[0]} and {kinds[1]}")

    def compare_eps(self, eps: float) -> None:
        """Note if this model's eps differs from the fixed one of the format's norms."""
        own = self.model.encoder.config.norm_eps
        if own != eps:
            self.notes.append(
                f"the norms of {self.format} have an eps of {eps:g}, this model's {own}: features differ slightly"
            )

    def rename(self, rules: Iterable[KeyRule], leave_out: Mapping[str, str] | None = None) -> None:
        """Set the tensors by the format's table.

        Args:
            rules: the table.
            leave_out: prefixes of our names to leave out -> the reason, for the notes.

        Raises:
            CheckpointError: the format has no place for a tensor.
        """
        state = {name.removeprefix("encoder."): value.detach().cpu() for name, value in self.model.state_dict().items()}
        for start, why in (leave_out or {}).items():
            left = [name for name in state if name.startswith(start)]
            if left:
                self.notes.append(f"left out, {len(left)} tensors ({left[0]}, ...): {why}")
            state = {name: value for name, value in state.items() if name not in left}
        self.tensors, unmapped = map_out(rules, state, channels=self.model.encoder.config.channels)
        if unmapped:
            raise CheckpointError(f"{self.format} has no place for {', '.join(unmapped[:4])}: it does not compute that")
