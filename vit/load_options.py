"""The options for loading a checkpoint. Nothing here imports torch, so that `--help` answers at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from vit.config import MOST_PIXELS
from vit.errors import CheckpointError

_NUMBERS = {
    "channels": (1, 4096),
    "num_classes": (0, 10_000_000),
    "num_heads": (1, 4096),
    "decoder_heads": (1, 4096),
}


@dataclass(frozen=True)
class LoadOptions:
    """How the checkpoint is read; by default as it is.

    These are keyword arguments of `vit.checkpoints.load_model`, and options of every command that takes a checkpoint.

    Raises:
        CheckpointError: a value cannot be used.
    """

    part: Literal["encoder"] | None = None
    """leave out the decoder"""
    image_size: int | tuple[int, int] | None = None
    """pixels, H or H,W: resize the position table"""
    patch_size: int | tuple[int, int] | None = None
    """pixels, P or P,Q: resize the patch kernels"""
    channels: int | None = None
    """image channels: adapt the patch kernels"""
    num_classes: int | None = None
    """classes of the head; 0 leaves it out"""
    class_token: bool | None = None
    """whether there is a class token; false leaves it out"""
    global_pool: Literal["token", "avg"] | None = None
    """what the head reads"""
    fc_norm: bool | None = None
    """whether the last norm follows the pooling"""
    num_heads: int | None = None
    """attention heads, if nothing says so"""
    decoder_heads: int | None = None
    """the decoder's attention heads, if nothing says so"""
    norm_pix_loss: bool | None = None
    """whether the decoder predicts normalised patches"""
    norm_eps: float | None = None
    """eps of all norms, if nothing says so"""
    mean: Sequence[float] | None = None
    """mean of the input's channels, pixels from 0 to 1: 0.5 0.5 0.5; with std"""
    std: Sequence[float] | None = None
    """their standard deviation, likewise"""
    crop_share: float | None = None
    """share to keep of an image's centred part; timm's crop_pct"""
    grid_size: tuple[int, int] | None = None
    """rows and columns R,C of the position table, if nothing says so"""
    branch: str | None = None
    """which of several copies of the network: student, teacher, model_ema, ..."""
    allow: Sequence[str] = ()
    """tensors, by name or pattern, that may be missing, unexpected or nan"""

    def __post_init__(self) -> None:
        if isinstance(self.allow, str):  # else each letter would be a pattern
            object.__setattr__(self, "allow", (self.allow,))
        for key, allowed in (("part", (None, "encoder")), ("global_pool", (None, "token", "avg"))):
            self._require(getattr(self, key) in allowed, key, f"one of {allowed}")
        for key in ("image_size", "patch_size", "grid_size"):
            size = getattr(self, key)
            if size is not None:
                pair = (size, size) if isinstance(size, int) else size
                whole = (
                    isinstance(pair, Sequence)
                    and len(pair) == 2
                    and all(type(n) is int and n > 0 for n in pair)
                )
                self._require(whole, key, "one positive number, or two")
                self._require(max(pair) <= MOST_PIXELS, key, f"at most {MOST_PIXELS:,}")
        for key, (least, most) in _NUMBERS.items():
            number = getattr(self, key)
            ok = number is None or (type(number) is int and least <= number <= most)
            self._require(ok, key, f"a number from {least} to {most:,}")
        for key in ("class_token", "fc_norm", "norm_pix_loss"):
            self._require(isinstance(getattr(self, key), bool | None), key, "True or False")
        eps = self.norm_eps
        self._require(
            eps is None or (isinstance(eps, float) and 0 < eps < 1),
            "norm_eps",
            "between 0 and 1, as 1e-6",
        )
        for key, other in (("mean", self.std), ("std", self.mean)):
            values = getattr(self, key)
            given = (
                isinstance(values, Sequence)
                and isinstance(other, Sequence)
                and 0 < len(values) == len(other)
            )
            lowest = 0.0 if key == "mean" else 1e-9
            ok = given and all(_is_number(value) and lowest <= value <= 1 for value in values)
            usual = (
                "mean and std: a number per channel each, as 0.5 0.5 0.5, for pixels from 0 to 1"
            )
            self._require(ok or values is other is None, key, usual)
        share = self.crop_share
        self._require(
            share is None or (_is_number(share) and 0 < share <= 1),
            "crop_share",
            "above 0 and at most 1",
        )
        named = self.branch is None or (isinstance(self.branch, str) and self.branch != "")
        self._require(named, "branch", "the key of a copy, as 'student'")
        names = isinstance(self.allow, Sequence) and all(
            isinstance(name, str) for name in self.allow
        )
        self._require(names, "allow", "names or patterns, as ['decoder.*']")

    def _require(self, ok: bool, key: str, allowed: str) -> None:
        if not ok:
            raise CheckpointError(f"{key}: {getattr(self, key)!r} cannot be used; {allowed}")

    def allows(self, *names: str) -> bool:
        """Return whether a tensor known by these names may be missing, unexpected, or not finite."""
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.allow)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
