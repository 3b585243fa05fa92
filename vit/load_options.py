"""The options for loading a checkpoint. Nothing here imports torch, so that `--help` answers."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from vit.config import Pixels, Range, Share, convert, hints_of
from vit.errors import CheckpointError

PER_CHANNEL = "one per channel: 0.5,0.5,0.5"

Count = Annotated[int, Range("1 to 4,096", lambda n: 1 <= n <= 4096)]
Classes = Annotated[int, Range("0 to 10,000,000", lambda n: 0 <= n <= 10_000_000)]
Eps = Annotated[float, Range("between 0 and 1, as 1e-6", lambda x: 0 < x < 1)]
Mean = Annotated[float, Range(f"a number from 0 to 1, {PER_CHANNEL}", lambda x: 0 <= x <= 1)]
Std = Annotated[float, Range(f"a positive number up to 1, {PER_CHANNEL}", lambda x: 1e-9 <= x <= 1)]
Key = Annotated[str, Range("the key of a copy, as 'student'", lambda key: key != "")]
Module = Annotated[str, Range("the name of a module, as 'classifier'", lambda name: name != "")]


@dataclass(frozen=True)
class LoadOptions:
    """How the checkpoint is read; by default as it is.

    These are keyword arguments of `vit.checkpoints.load_model`, and options of every command that
    takes a checkpoint.

    Raises:
        CheckpointError: a value cannot be used.
    """

    # Architecture and size
    part: Literal["encoder"] | None = None
    """leave out the decoder"""
    image_size: Pixels | tuple[Pixels, Pixels] | None = None
    """pixels, H or H,W: resize the position table"""
    patch_size: Pixels | tuple[Pixels, Pixels] | None = None
    """pixels, P or P,Q: resize the patch kernels"""
    channels: Count | None = None
    """image channels: adapt the patch kernels"""
    num_classes: Classes | None = None
    """classes of the head; 0 leaves it out"""
    global_pool: Literal["token", "avg"] | None = None
    """what the head reads"""

    # What the tensors' shapes do not say
    num_heads: Count | None = None
    """attention heads, if nothing says so"""
    decoder_heads: Count | None = None
    """the decoder's attention heads, if nothing says so"""
    norm_pix_loss: bool | None = None
    """whether the decoder predicts normalised patches"""
    norm_eps: Eps | None = None
    """eps of all norms, if nothing says so"""
    mean: tuple[Mean, ...] | None = None
    """mean of the input's channels, pixels from 0 to 1: 0.5,0.5,0.5; with std"""
    std: tuple[Std, ...] | None = None
    """standard deviation of the input's channels, pixels from 0 to 1; with mean"""
    crop_share: Share | None = None
    """share to keep of an image's centred part; timm's crop_pct"""
    grid_size: tuple[Pixels, Pixels] | None = None
    """rows and columns R,C of the position table, if nothing says so"""

    # Which of the tensors
    branch: Key | None = None
    """which of several copies of the network: student, teacher, model_ema, ..."""
    classifier: Module | None = None
    """which module is the classifier: classifier, heads.1, ..."""
    allow: tuple[str, ...] = ()
    """tensors, by name or pattern, that may be missing, unexpected or nan"""

    def __post_init__(self) -> None:
        if isinstance(self.allow, str):  # else each letter would be a pattern
            object.__setattr__(self, "allow", (self.allow,))

        # Every value by itself
        for name, hint in hints_of(LoadOptions).items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, convert(value, hint))  # the options are frozen
            except ValueError as error:
                raise CheckpointError(f"{name}: {value!r} cannot be used; {error}") from error

        # Mean and standard deviation go together
        if len(self.mean or ()) != len(self.std or ()) or () in (self.mean, self.std):
            values = f"mean {self.mean} and std {self.std}"
            raise CheckpointError(f"{values} cannot be used; both are numbers, {PER_CHANNEL}")

    def allows(self, *names: str) -> bool:
        """Return whether a tensor of one of these names may be missing or not finite."""
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.allow)
