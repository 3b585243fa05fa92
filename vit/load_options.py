"""The options for loading a checkpoint. Nothing here imports torch, so that `--help` answers."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from vit.config import (
    NoneOrMore,
    Number,
    Probability,
    Settings,
    Share,
    Size,
    Units,
    Within,
    check,
    several,
)
from vit.errors import CheckpointError

Std = Annotated[Number, Field(ge=1e-9, le=1)]
Name = Annotated[str, Field(min_length=1)]


def _patterns(value: Any) -> Any:
    """Return a list of one text, of which each letter would be a pattern."""
    if isinstance(value, str):
        return [value]
    return value


class LoadOptions(Settings):
    """How the checkpoint is read; by default as it is.

    These are keyword arguments of `vit.checkpoints.load_model`, and options of every command that
    takes a checkpoint.
    """

    refused_by = CheckpointError

    # Architecture and size
    part: Literal["encoder"] | None = None
    """leave out the decoder"""
    image_size: Units | Size | None = None
    """pixels, H or H,W: resize the position table"""
    patch_size: Units | Size | None = None
    """pixels, P or P,Q: resize the patch kernels"""
    channels: Units | None = None
    """image channels: adapt the patch kernels"""
    num_classes: NoneOrMore | None = None
    """classes of the head; 0 leaves it out"""
    global_pool: Literal["token", "avg"] | None = None
    """what the head reads"""

    # What the tensors' shapes do not say
    num_heads: Units | None = None
    """attention heads, if nothing says so"""
    decoder_heads: Units | None = None
    """the decoder's attention heads, if nothing says so"""
    norm_pix_loss: bool | None = None
    """whether the decoder predicts normalised patches"""
    norm_eps: Within | None = None
    """eps of all norms, if nothing says so"""
    mean: Annotated[tuple[Probability, ...], BeforeValidator(several)] | None = None
    """mean of the input's channels, pixels from 0 to 1: 0.5,0.5,0.5; with std"""
    std: Annotated[tuple[Std, ...], BeforeValidator(several)] | None = None
    """standard deviation of the input's channels, pixels from 0 to 1; with mean"""
    crop_share: Share | None = None
    """share to keep of an image's centred part; timm's crop_pct"""
    grid_size: Size | None = None
    """rows and columns R,C of the position table, if nothing says so"""

    # Which of the tensors
    branch: Name | None = None
    """which of several copies of the network: student, teacher, model_ema, ..."""
    classifier: Name | None = None
    """which module is the classifier: classifier, heads.1, ..."""
    allow: Annotated[tuple[str, ...], BeforeValidator(_patterns)] = ()
    """tensors, by name or pattern, that may be missing, unexpected or nan"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        pairs = len(self.mean or ()) == len(self.std or ()) and () not in (self.mean, self.std)
        allowed = f"with std {self.std}; both are numbers, one per channel: 0.5,0.5,0.5"
        check((self, "mean", not pairs, allowed))
        return self

    def allows(self, *names: str) -> bool:
        """Return whether a tensor of one of these names may be missing or not finite."""
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.allow)
