"""The options for loading a checkpoint. Nothing here imports torch, so that `--help` answers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vit.config import (
    NoneOrMore,
    Number,
    Probability,
    Settings,
    Several,
    Share,
    Size,
    Units,
    Within,
    Words,
)

Std = Annotated[Number, Field(ge=1e-9, le=1)]
Name = Annotated[str, Field(min_length=1)]


class LoadOptions(Settings):
    """Checkpoint loading (override only if needed).

    These are keyword arguments of `vit.checkpoints.load_model`, and options of every command that
    takes a checkpoint.
    """

    # Architecture and size
    part: Literal["encoder"] | None = None
    """encoder: leave out the decoder"""
    image_size: Units | Size | None = None
    """pixels, H or H,W: resize the position table"""
    patch_size: Units | Size | None = None
    """pixels, P or P,Q: resize the patch kernels"""
    channels: Units | None = None
    """image channels: adapt the patch kernels"""
    num_classes: NoneOrMore | None = None
    """classes of the head; 0 leaves it out"""
    global_pool: Literal["token", "avg"] | None = None
    """token: the head reads the class token; avg: the mean of the patches"""

    # What the tensors' shapes do not say
    num_heads: Units | None = None
    """attention heads, if the checkpoint does not say"""
    decoder_heads: Units | None = None
    """attention heads of the decoder, if the checkpoint does not say"""
    norm_pix_loss: bool | None = None
    """whether the decoder predicts normalised patches"""
    norm_eps: Within | None = None
    """eps of all norms, if the checkpoint does not say"""
    mean: Several[Probability] | None = None
    """mean of each channel, for pixels from 0 to 1, e.g. 0.5,0.5,0.5; needs std"""
    std: Several[Std] | None = None
    """standard deviation of each channel, for pixels from 0 to 1; needs mean"""
    crop_share: Share | None = None
    """fraction of each side to keep in the centre crop (timm's crop_pct)"""
    grid_size: Size | None = None
    """rows and columns R,C of the position table, if the checkpoint does not say"""

    # Which of the tensors
    branch: Name | None = None
    """which of several copies of the network to load: student, teacher, model_ema, ..."""
    classifier: Name | None = None
    """name of the classifier's module: classifier, heads.1, ..."""
    allow: Words = ()
    """tensors that may be missing, unexpected or nan, by name or pattern"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        has_pairs = len(self.mean or ()) == len(self.std or ())
        if not has_pairs or () in (self.mean, self.std):
            allowed = f"with std {self.std}; both are numbers, one per channel: 0.5,0.5,0.5"
            self.refuse("mean", allowed)
        return self
