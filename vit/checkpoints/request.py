"""What may be asked of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from vit.checkpoints.formats.format import pair
from vit.checkpoints.reading import CheckpointError


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
    grid_size: tuple[int, int] | None = None
    branch: str | None = None
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, allowed in (("part", (None, "encoder")), ("global_pool", (None, "token", "avg"))):
            if getattr(self, key) not in allowed:
                raise CheckpointError(f"{key}: {getattr(self, key)!r} cannot be used; one of {allowed}")
        for key in ("image_size", "patch_size", "grid_size"):
            size = getattr(self, key)
            if size is not None and (pair(size) is None or min(pair(size) or (0,)) < 1):
                raise CheckpointError(f"{key}: {size!r} cannot be used; one positive number, or two")
        for key, least in (("channels", 1), ("num_classes", 0), ("num_heads", 1), ("decoder_heads", 1)):
            number = getattr(self, key)
            if number is not None and (type(number) is not int or number < least):
                raise CheckpointError(f"{key}: {number!r} cannot be used; a number from {least} on")


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether `name` is one of the names or patterns (`decoder.*`)."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
