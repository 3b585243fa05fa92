"""What may be asked of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from vit.checkpoints.formats.format import pair
from vit.checkpoints.reading import CheckpointError

MOST_PIXELS = 1 << 16


@dataclass(frozen=True)
class Request:
    """What is asked of a checkpoint beyond "as it is"; see `vit.checkpoints.load_model`.

    Raises:
        CheckpointError: a value that cannot be used.
    """

    part: str | None = None
    image_size: int | tuple[int, int] | None = None
    patch_size: int | tuple[int, int] | None = None
    channels: int | None = None
    num_classes: int | None = None
    class_token: bool | None = None
    global_pool: str | None = None
    fc_norm: bool | None = None
    num_heads: int | None = None
    decoder_heads: int | None = None
    norm_pix_loss: bool | None = None
    norm_eps: float | None = None
    grid_size: tuple[int, int] | None = None
    branch: str | None = None
    allow: Sequence[str] = ()

    def __post_init__(self) -> None:
        for key, allowed in (("part", (None, "encoder")), ("global_pool", (None, "token", "avg"))):
            if getattr(self, key) not in allowed:
                raise CheckpointError(f"{key}: {getattr(self, key)!r} cannot be used; one of {allowed}")
        for key in ("image_size", "patch_size", "grid_size"):
            size = getattr(self, key)
            if size is not None and (pair(size) is None or min(pair(size) or (0,)) < 1):
                raise CheckpointError(f"{key}: {size!r} cannot be used; one positive number, or two")
            if size is not None and max(pair(size) or (0,)) > MOST_PIXELS:
                raise CheckpointError(f"{key}: {size!r} cannot be used; at most {MOST_PIXELS:,}")
        for key, least, most in (
            ("channels", 1, 4096), ("num_classes", 0, 10_000_000), ("num_heads", 1, 4096), ("decoder_heads", 1, 4096),
        ):  # fmt: skip
            number = getattr(self, key)
            if number is not None and (type(number) is not int or not least <= number <= most):
                raise CheckpointError(f"{key}: {number!r} cannot be used; a number from {least} to {most:,}")
        for key in ("class_token", "fc_norm", "norm_pix_loss"):
            if not isinstance(getattr(self, key), bool | None):
                raise CheckpointError(f"{key}: {getattr(self, key)!r} cannot be used; True or False")
        if self.norm_eps is not None and not (isinstance(self.norm_eps, float) and 0 < self.norm_eps < 1):
            raise CheckpointError(f"norm_eps: {self.norm_eps!r} cannot be used; a number between 0 and 1, as 1e-6")
        if self.branch is not None and not (isinstance(self.branch, str) and self.branch):
            raise CheckpointError(f"branch: {self.branch!r} cannot be used; the key of a copy, as 'student'")
        if isinstance(self.allow, str):  # of which each letter would be a pattern
            object.__setattr__(self, "allow", (self.allow,))
        if not isinstance(self.allow, Sequence) or not all(isinstance(name, str) for name in self.allow):
            raise CheckpointError(f"allow: {self.allow!r} cannot be used; names or patterns, as ['decoder.*']")

    def allows(self, *names: str) -> bool:
        """Whether a tensor that is known by these names may be missing, unexpected, or not finite."""
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.allow)
