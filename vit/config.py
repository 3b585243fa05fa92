"""The settings of a run: typed dataclasses that check themselves.

Nothing here imports torch, so that `--help` and a wrong setting answer at once. A section says how its settings affect results:

    data       which images; a resumed run checks their content, not these settings
    augment, model, mask, reconstruct, classify, optim, train       decide the result; a resumed run keeps them
    run        where it computes and what it writes; a resumed run may change them
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from vit.errors import ConfigError

Source = Literal["cifar10", "cifar100", "folder", "scenes", "dataset"]
BUILT_IN = tuple(name for name in get_args(Source) if name not in ("folder", "dataset"))
"""The sources that need only their name; the others need a path, or are passed in Python."""
PRESETS: dict[str, dict[str, int]] = {
    "micro": dict(
        embed_dim=96, depth=6, num_heads=3, decoder_dim=64, decoder_depth=1, decoder_heads=2
    ),
    "tiny": dict(
        embed_dim=192, depth=12, num_heads=3, decoder_dim=128, decoder_depth=2, decoder_heads=4
    ),
    "small": dict(
        embed_dim=384, depth=12, num_heads=6, decoder_dim=256, decoder_depth=4, decoder_heads=8
    ),
    "base": dict(
        embed_dim=768, depth=12, num_heads=12, decoder_dim=512, decoder_depth=8, decoder_heads=16
    ),
}


MOST_PIXELS, MOST_UNITS = 16_384, 65_536
"""The longest side of an image; the largest width, depth and number of heads. Anything larger is refused at once."""


class ObjectiveInfo(NamedTuple):
    """What the settings need to know about an objective.

    Attributes:
        sections: the objective-specific sections that it reads.
        labels: whether it learns from labels.
    """

    sections: tuple[str, ...]
    labels: bool = False


OBJECTIVES = {
    "reconstruct": ObjectiveInfo(("mask", "reconstruct")),
    "classify": ObjectiveInfo(("classify",), labels=True),
}
"""The registry of objectives; `vit.training.objectives` has a module of the same name for each. Register before parsing."""


def _require(ok: bool, key: str, value: object, allowed: str) -> None:
    if not ok:
        raise ConfigError(f"{key}: {_plain(value)!r} cannot be used; {allowed}")


# --- The values that a setting takes: types and ranges, wherever they come from ---------------


class Range(NamedTuple):
    """The numbers that a setting allows: their description in messages, and the check."""

    allowed: str
    holds: Callable[[float], bool]


Positive = Annotated[int, Range("1 or more", lambda n: n >= 1)]
NonNegative = Annotated[int, Range("0 or more", lambda n: n >= 0)]
PositiveFloat = Annotated[float, Range("a positive number", lambda x: x > 0)]
NonNegativeFloat = Annotated[float, Range("0 or more", lambda x: x >= 0)]
Share = Annotated[float, Range("above 0 and at most 1", lambda x: 0 < x <= 1)]
Probability = Annotated[float, Range("a number from 0 to 1", lambda x: 0 <= x <= 1)]
BelowOne = Annotated[float, Range("from 0 to below 1", lambda x: 0 <= x < 1)]
TERMS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
}


def allowed_by(hint: Any) -> str:
    """Return in words which values a type allows."""
    origin = get_origin(hint)
    parts = get_args(hint)
    if origin is Annotated:
        return " and ".join(part.allowed for part in parts[1:])
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin in (Union, UnionType):
        return " or ".join(allowed_by(part) for part in parts if part is not NoneType)
    if origin is list or Ellipsis in parts:
        return f"a list, each {allowed_by(parts[0])}"
    if origin is tuple:
        return f"[{', '.join(map(allowed_by, parts))}]"
    return TERMS[hint]


def convert(value: Any, hint: Any) -> Any:
    """Return a value as the type of its setting: 3.0 for 3, a tuple for a list, "off" for false.

    Args:
        value: as YAML, the command line or Python give it.
        hint: bool, int, float, str, None, or a Literal, a union, tuple or list of these;
            Annotated numbers state their `Range`.

    Raises:
        ValueError: the value is none of this type; the message says what is allowed.
    """
    origin = get_origin(hint)
    parts = get_args(hint)
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        value = value.tolist()

    # A number in a range
    if origin is Annotated:
        number = convert(value, parts[0])
        for part in parts[1:]:
            if not part.holds(number):
                raise ValueError(part.allowed)
        return number

    # The first of several types that fits; with None, which leaves a setting out, the other
    if origin in (Union, UnionType):
        if value is None and NoneType in parts:
            return None
        choices = [part for part in parts if part is not NoneType]
        if len(choices) == 1:
            return convert(value, choices[0])
        for part in choices:
            with suppress(ValueError):
                return convert(value, part)

    # A choice of words; YAML reads a bare on, off, yes or no as true or false
    elif origin is Literal:
        if isinstance(value, bool):
            words = ("on", "yes") if value else ("off", "no")
            value = next((word for word in words if word in parts), value)
        if value in parts:
            return value

    # Several values
    elif origin in (tuple, list) and isinstance(value, tuple | list):
        if origin is list or Ellipsis in parts:
            return origin(convert(item, parts[0]) for item in value)
        if len(value) == len(parts):
            return tuple(map(convert, value, parts))

    # One value; YAML reads 1e-3, without a point, as a text
    elif hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            number = float(value)
            if math.isfinite(number):
                return number
    elif hint is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    elif type(value) is hint:
        return value
    raise ValueError(f"it needs {allowed_by(hint)}")


@cache  # to read annotations, which are text, takes longer than all checks
def hints_of(section: type) -> dict[str, Any]:
    """Return the types of a section's settings, with their ranges."""
    return get_type_hints(section, include_extras=True)


class Section:
    """Settings that check themselves on creation: each of its type and within its range."""

    section = ""

    def __init_subclass__(cls, section: str) -> None:
        cls.section = section

    def __post_init__(self) -> None:
        # a class has a hash, which mypy denies
        for name, hint in hints_of(type(self)).items():  # type: ignore[arg-type]
            value = getattr(self, name)
            try:
                value = convert(value, hint)
            except ValueError as error:
                message = f"{self.section}.{name}: {_plain(value)!r} cannot be used; {error}"
                raise ConfigError(message) from error
            object.__setattr__(self, name, value)  # the section is frozen


@dataclass(frozen=True)
class DataConfig(Section, section="data"):
    """Where the images come from, and which of them are used."""

    source: Source = "cifar10"
    """what to train on: CIFAR, a folder of your own images, the built-in Scenes, or (dataset) the data passed to vit.fit"""
    root: str = "data"
    """folder that holds (or receives) CIFAR's archive, or your folder of images"""
    name: str = ""
    """name of the data in outputs; empty: the source's own"""
    download: bool = True
    """download CIFAR if it is not in data.root"""
    fallback: Literal["stop", "scenes"] = "stop"
    """if CIFAR is not on disk and cannot be downloaded: stop, or warn and train on Scenes"""
    limit: NonNegative = 0
    """use only this many training images and at most as many test images, spread evenly; 0: all"""
    val_size: NonNegative = 0
    """training images held out for validation, to choose settings by; the test images stay unseen; 0: none"""
    labels: Share = 1.0
    """classification: share of the training images that have labels; only these are trained on"""
    subset_seed: NonNegative = 0
    """seed that draws val_size and labels, stratified by class"""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """if an image of a folder or data set cannot be read: stop and name it, or skip and list it"""
    cache: str = "~/.cache/vit-patch-trainer"
    """folder for the decoded images of a folder or data set; they need not fit in memory"""


def named_data(data: str, root: str = DataConfig.root) -> dict[str, Any]:
    """Return `DataConfig`'s source and root for a command's --data.

    Args:
        data: a name in BUILT_IN, or a folder of images.
        root: folder that holds (or receives) the archive of a built-in data set.

    Raises:
        ConfigError: `data` is none of these.
    """
    if data in BUILT_IN:
        return {"source": data, "root": root}
    if not os.path.isdir(os.path.expanduser(data)):
        is_file = (
            ": it is a file; give the folder that it is in"
            if os.path.isfile(os.path.expanduser(data))
            else ""
        )
        raise ConfigError(
            f"--data: {data!r} is neither {', '.join(BUILT_IN)} nor a folder of images{is_file}"
        )
    return {"source": "folder", "root": data}


@dataclass(frozen=True)
class AugmentConfig(Section, section="augment"):
    """How training images are augmented, each by its own random draws."""

    crop: Literal["resized", "pad", "none"] = "resized"
    """resized: a random part, resized to the full image; pad: the image, shifted within a padded border"""
    crop_scale: tuple[float, float] = (0.2, 1.0)
    """crop resized: smallest and largest share of the area"""
    flip: Probability = 0.5
    """probability of a horizontal flip"""
    views: Positive = 1
    """copies of each image in a batch, each augmented and masked by its own draws"""
    color_jitter: BelowOne = 0.0
    """largest change of brightness, contrast and saturation, in 8 of 10 views (SimCLR), e.g. 0.4; 0: off"""
    grayscale: Probability = 0.0
    """probability of turning a view grey"""
    rand_augment: Annotated[int, Range("0 (off) to 15 operations", lambda n: 0 <= n <= 15)] = 0
    """RandAugment: operations drawn per image, each applied with probability 1/2, at strength 9 of 10; e.g. 2 for fine-tuning;
    0: off"""
    erasing: Probability = 0.0
    """probability of covering a random rectangle with one colour (random erasing)"""
    shuffle: Literal["none", "within", "across"] = "none"
    """a control for learning from patches that belong together: shuffle patches within each image, or, place by place,
    across the batch"""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = scale = self.crop_scale
        _require(
            0 < low <= high <= 1, "augment.crop_scale", scale, "two shares, 0 < low <= high <= 1"
        )


@dataclass(frozen=True)
class ViTConfig:
    """The architecture of a vision transformer, as `vit.encoder` builds it and a checkpoint's config.json states it."""

    image_size: tuple[int, int] = (32, 32)
    """(H, W) in pixels"""
    patch_size: tuple[int, int] = (4, 4)
    """(p, q) in pixels; divides the image"""
    channels: int = 3
    """channels of the images"""
    embed_dim: int = 192
    """width of the tokens, a multiple of num_heads"""
    depth: int = 12
    """number of blocks"""
    num_heads: int = 3
    """attention heads per block"""
    mlp_ratio: float = 4.0
    """hidden width of the MLPs / width of the tokens"""
    class_token: bool = True
    """put a class token before the patches"""
    registers: NonNegative = 0
    """number of register tokens after the class token (Darcet et al. 2024)"""
    pos_embed: Literal["learned", "sincos"] = "learned"
    """positions: a learned table, or the fixed 2-D sin-cos one"""
    no_embed_class: bool = False
    """give positions to the patches only, not to class token and registers (timm's name)"""
    qkv: Literal["linear", "identity"] = "linear"
    """linear: Q = X W_Q, K = X W_K, V = X W_V; identity: Q = K = V = X, without the three matrices"""
    qkv_bias: bool = True
    """give the three maps a bias"""
    layer_scale: float | None = None
    """initial value of a learned scale on each residual branch of the encoder; null: none"""
    drop_path: BelowOne = 0.0
    """stochastic depth: probability of dropping the encoder's last residual branch, rising linearly from 0 at the first"""
    global_pool: Literal["avg", "token"] = "avg"
    """what a classifier reads: the mean of the patches, or the class token"""
    fc_norm: bool = False
    """apply the final norm after pooling, as MAE's fine-tuning does, instead of before it (timm's name)"""
    num_classes: int = 0
    """outputs of the classification head; 0: no head"""
    qk_norm: bool = False
    """normalise queries and keys, head by head (Dehghani et al. 2023)"""
    mlp: Literal["gelu", "swiglu"] = "gelu"
    """kind of MLP: with a GELU, or gated (SwiGLU, Shazeer 2020)"""
    norm_eps: Annotated[float, Range("above 0 and below 1", lambda x: 0 < x < 1)] = 1e-6
    """eps of all norms: 1e-6 in timm, MAE and DINO, often 1e-12 in transformers; torch's 1e-5 moves features by 1e-4"""


@dataclass(frozen=True)
class DecoderConfig:
    """The architecture of a masked autoencoder's decoder: fields as in `ViTConfig`; None stands for the encoder's value."""

    dim: int
    """width of the tokens, a multiple of 4 and of num_heads"""
    depth: int
    num_heads: int
    mlp_ratio: float | None = None
    qkv: Literal["linear", "identity"] | None = None
    qkv_bias: bool | None = None
    qk_norm: bool | None = None
    mlp: Literal["gelu", "swiglu"] | None = None
    norm_eps: float | None = None

    def complete(self, encoder: ViTConfig) -> DecoderConfig:
        """Replace every None by the encoder's value."""
        missing = [item.name for item in fields(self) if getattr(self, item.name) is None]
        return replace(self, **{name: getattr(encoder, name) for name in missing})

    def blocks(self, encoder: ViTConfig) -> ViTConfig:
        """Return the configuration of the decoder's blocks: the encoder's, overridden by the decoder's own."""
        own = asdict(self.complete(encoder))
        return replace(encoder, embed_dim=own.pop("dim"), layer_scale=None, drop_path=0.0, **own)


@dataclass(frozen=True)
class ModelConfig(Section, section="model"):
    """The encoder, the decoder, and which of their parts learn."""

    init: str = ""
    """checkpoint to start from: anything that `vit.checkpoints.load_model` reads; empty: random weights"""
    preset: Literal["micro", "tiny", "small", "base"] = "tiny"
    """width, depth and heads of encoder and decoder, unless given one by one"""
    image_size: int | tuple[int, int] = 32
    """pixels: one number for squares, or [height, width]; other images are cropped to that shape and resized"""
    patch_size: int | tuple[int, int] = 4
    """pixels: one number for squares, or [height, width]; divides the image"""
    embed_dim: int | None = None
    """width of the encoder's tokens, a multiple of num_heads; null: the preset's"""
    depth: int | None = None
    """number of the encoder's blocks; null: the preset's"""
    num_heads: int | None = None
    """attention heads per block; null: the preset's"""
    mlp_ratio: float = 4.0
    """hidden width of the MLPs / width of the tokens"""
    class_token: bool = True
    """put a class token before the patches"""
    registers: NonNegative = 0
    """number of register tokens after the class token (Darcet et al. 2024)"""
    pos_embed: Literal["learned", "sincos"] = "sincos"
    """the encoder's positions: a learned table, or the fixed 2-D sin-cos one (the decoder's are always fixed)"""
    qkv: Literal["linear", "identity"] = "linear"
    """linear: Q = X W_Q, K = X W_K, V = X W_V; identity: Q = K = V = X, without the three matrices"""
    qkv_bias: bool = True
    """give the three maps a bias"""
    layer_scale: float | None = None
    """initial value of a learned scale on each residual branch of the encoder; null: none"""
    drop_path: BelowOne = 0.0
    """stochastic depth: probability of dropping the encoder's last residual branch, rising linearly from 0 at the first"""
    global_pool: Literal["avg", "token"] = "avg"
    """what a classifier reads: the mean of the patches, or the class token"""
    decoder_dim: int | None = None
    """width of the decoder's tokens, a multiple of 4 and of decoder_heads; null: the preset's"""
    decoder_depth: int | None = None
    """number of the decoder's blocks; null: the preset's"""
    decoder_heads: int | None = None
    """attention heads per decoder block; null: the preset's"""
    freeze: list[str] = field(default_factory=list)
    """parts that do not learn: patch_embed, pos_embed, W_Q, W_K, W_V, W_O, mlp, encoder.blocks.0, decoder.W_Q, ..."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, size in (("image_size", self.image_size_2d), ("patch_size", self.patch_size_2d)):
            fits = 1 <= min(size) <= max(size) <= MOST_PIXELS
            _require(
                fits,
                f"model.{key}",
                getattr(self, key),
                f"a positive number of pixels, at most {MOST_PIXELS:,}",
            )
        for axis, name in enumerate(("height", "width")):
            image, patch = self.image_size_2d[axis], self.patch_size_2d[axis]
            divisors = ", ".join(str(n) for n in range(1, image + 1) if image % n == 0)
            allowed = f"it must divide the image's {name} of {image} (model.image_size): {divisors}"
            _require(image % patch == 0, "model.patch_size", self.patch_size, allowed)
        for key, value in self.dimensions.items():
            _require(
                1 <= value <= MOST_UNITS,
                f"model.{key}",
                value,
                f"a positive number, at most {MOST_UNITS:,}",
            )
        for dim, heads in (("embed_dim", "num_heads"), ("decoder_dim", "decoder_heads")):
            value, count = self.dimensions[dim], self.dimensions[heads]
            _require(
                value % count == 0,
                f"model.{dim}",
                value,
                f"a multiple of model.{heads}, which is {count}",
            )
            fits = value % 4 == 0 or (dim == "embed_dim" and self.pos_embed != "sincos")
            _require(fits, f"model.{dim}", value, "a multiple of 4, for its sin-cos positions")
        _require(
            self.mlp_ratio * self.dimensions["embed_dim"] >= 1,
            "model.mlp_ratio",
            self.mlp_ratio,
            "positive",
        )
        token = self.global_pool == "token" and not self.class_token
        _require(
            not token,
            "model.global_pool",
            self.global_pool,
            "there is no class token (model.class_token)",
        )

    @property
    def image_size_2d(self) -> tuple[int, int]:
        """(H, W) in pixels."""
        return pair(self.image_size)

    @property
    def patch_size_2d(self) -> tuple[int, int]:
        """(p, q) in pixels."""
        return pair(self.patch_size)

    @property
    def grid_size(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        (height, width), (p, q) = self.image_size_2d, self.patch_size_2d
        return height // p, width // q

    @property
    def dimensions(self) -> dict[str, int]:
        """Width, depth and heads of encoder and decoder: as given, else the preset's."""
        return {
            key: preset if (given := getattr(self, key)) is None else given
            for key, preset in PRESETS[self.preset].items()
        }

    def vit_config(self, **derived: Any) -> ViTConfig:
        """Return the encoder's architecture; `derived` is what the data decides: channels, num_classes."""
        dimensions = self.dimensions
        settings: dict[str, Any] = {
            "image_size": self.image_size_2d,
            "patch_size": self.patch_size_2d,
            "embed_dim": dimensions["embed_dim"],
            "depth": dimensions["depth"],
            "num_heads": dimensions["num_heads"],
            "mlp_ratio": self.mlp_ratio,
            "class_token": self.class_token,
            "registers": self.registers,
            "pos_embed": self.pos_embed,
            "qkv": self.qkv,
            "qkv_bias": self.qkv_bias,
            "layer_scale": self.layer_scale,
            "drop_path": self.drop_path,
            "global_pool": self.global_pool,
        }
        return ViTConfig(**settings | derived)

    def decoder_config(self) -> DecoderConfig:
        """Return the decoder's architecture; its blocks are like the encoder's."""
        size = self.dimensions
        return DecoderConfig(size["decoder_dim"], size["decoder_depth"], size["decoder_heads"])


def spelled(value: object) -> str:
    """Return a setting as a user writes it: 12, [32, 48], true, runs/tiny, "" for an empty text."""
    if isinstance(value, str | os.PathLike):
        return str(value) or '""'
    # NumPy's numbers become plain ones, anything else a text, which the setting refuses by its name
    return json.dumps(
        value, default=lambda other: other.tolist() if hasattr(other, "tolist") else repr(other)
    )


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Return a size as (height, width); one number stands for a square."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


@dataclass(frozen=True)
class MaskConfig(Section, section="mask"):
    """Pretraining: which patches are hidden."""

    kind: Literal["random", "block", "grid"] = "random"
    """random: each patch independently; block: one rectangle per image; grid: a regular pattern"""
    ratio: Annotated[
        float, Range("above 0 (nothing hidden) and below 1 (all hidden)", lambda x: 0 < x < 1)
    ] = 0.75
    """share of patches to hide, above 0 and below 1; rounded, but at least one is hidden and one visible"""


@dataclass(frozen=True)
class ReconstructConfig(Section, section="reconstruct"):
    """Objective reconstruct: the target, and an optional contrastive loss."""

    norm_pix_loss: bool = True
    """predict patches normalised by their own mean and standard deviation, instead of raw pixels"""
    contrast: NonNegativeFloat = 0.0
    """weight of a second loss: find the other view of an image among those of the batch (CAN); 0: off"""
    temperature: PositiveFloat = 0.2
    """contrast: divides the cosine similarities; lower values weight the nearest more"""


@dataclass(frozen=True)
class ClassifyConfig(Section, section="classify"):
    """Objective classify, for fine-tuning or from scratch: how training changes images and labels."""

    label_smoothing: BelowOne = 0.0
    """share of each label to spread over all classes"""
    mixup: NonNegativeFloat = 0.0
    """alpha of Mixup, which blends two images and their labels; 0: off"""
    cutmix: NonNegativeFloat = 0.0
    """alpha of CutMix, which pastes a rectangle of one image into another; 0: off; with both, each gets half of the images"""
    drop_patches: BelowOne = 0.0
    """share of patches to drop from each training image (PatchDropout): cheaper steps; evaluation sees all"""
    whole_epochs: NonNegativeFloat = 0.0
    """final epochs without drop_patches, so that the model has seen whole images"""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = self.whole_epochs
        _require(
            not whole or self.drop_patches > 0,
            "classify.whole_epochs",
            whole,
            "it only applies with drop_patches",
        )


@dataclass(frozen=True)
class OptimConfig(Section, section="optim"):
    """The optimizer and its schedule: linear warm-up, a constant rate if `cooldown` is below 1, then half a cosine."""

    name: Literal["adamw", "muon"] = "adamw"
    """muon: orthogonalised momentum for the blocks' matrices, AdamW for the rest, at AdamW's learning rate"""
    blr: PositiveFloat = 1.5e-4
    """base learning rate, for 256 images per step: lr = blr x train.batch_size / 256"""
    warmup_epochs: NonNegativeFloat = 1.0
    """epochs of warm-up"""
    cooldown: Share = 1.0
    """the last share of the steps, in which the learning rate falls; below 1, until then --resume may change train.epochs"""
    weight_decay: NonNegativeFloat = 0.05
    """decoupled weight decay of the matrices; norms, biases, tokens and positions have none"""
    betas: tuple[float, float] = (0.9, 0.95)
    """decay rates of AdamW's averages of the gradient and of its square"""
    layer_decay: Share = 1.0
    """each block's learning rate as a fraction of the next block's, for fine-tuning; 1: all the same"""
    ema: BelowOne = 0.0
    """decay of a moving average of the weights, e.g. 0.9995; the average becomes the model; 0: off"""
    clip_grad: NonNegativeFloat = 1.0
    """maximum gradient norm; larger gradients are scaled down to it; 0: off"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            all(0 <= b < 1 for b in self.betas),
            "optim.betas",
            self.betas,
            "two numbers from 0 to below 1",
        )


@dataclass(frozen=True)
class TrainConfig(Section, section="train"):
    """What is learned, and for how long."""

    objective: str = "reconstruct"
    """reconstruct: fill in hidden patches (pretraining); classify: classify images (fine-tuning, or from scratch)"""
    epochs: Positive = 100
    """passes over the training images"""
    batch_size: Positive = 256
    """images per step, over all processes; the last batch of an epoch holds the remainder"""
    seed: Annotated[int, Range("0 or more, and below 2**64", lambda n: 0 <= n < 2**64)] = 0
    """the one seed of weights, data order, augmentation and masks"""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """number format of matrix products; auto: on a GPU bf16 if it has it, on a CPU the faster one, timed at the start"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            self.objective in OBJECTIVES,
            "train.objective",
            self.objective,
            f"one of {', '.join(OBJECTIVES)}",
        )


@dataclass(frozen=True)
class RunConfig(Section, section="run"):
    """Where a run computes and what it writes: nothing here changes more than the last bits of a result."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """where to compute; auto: cuda, then mps, then cpu"""
    threads: NonNegative = 0
    """CPU threads per process; 0: torch's choice. Another number may change the last bits of a run"""
    grad_accum_steps: NonNegative = 0
    """micro-batches per process and step, to save memory; the gradient is the whole batch's; 0: chosen by token count"""
    attention: Literal["auto", "math", "flash"] = "auto"
    """math: two products and a softmax; flash: torch's fused kernel; auto: the faster one here"""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; auto: on a GPU, or in bf16 on a CPU, for runs of 5,000 steps or more"""
    save_every: Positive = 500
    """steps between checkpoints"""
    snapshots: NonNegative = 0
    """copies of the weights to keep, in half precision, more of them early in the run: for films and sliders"""
    dynamics_every: NonNegative = 0
    """steps between records of every weight matrix's gradient and movement, and at 1, 2, 4, 8, ... before; 0: off"""
    val_every: NonNegative = 0
    """epochs between measurements on the validation images (data.val_size), for the curves; 0: only at the end"""
    knn_images: NonNegative = 50_000
    """pretraining: training images that k-NN searches for neighbours, spread evenly; 0: all"""
    track: list[Literal["tensorboard", "wandb", "mlflow"]] = field(default_factory=list)
    """also write the metrics to TensorBoard, Weights & Biases or MLflow; each is an extra: pip install -e '.[wandb]'"""

    def steps_between_lines(self, total_steps: int) -> int:
        """Return the steps between lines of metrics.jsonl: a fiftieth of a run of `total_steps`, from 1 to 10."""
        return min(max(total_steps // 50, 1), 10)


@dataclass(frozen=True)
class Config:
    """All settings of a run, one section per concern."""

    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    mask: MaskConfig = field(default_factory=MaskConfig)
    reconstruct: ReconstructConfig = field(default_factory=ReconstructConfig)
    classify: ClassifyConfig = field(default_factory=ClassifyConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        data, train, run = self.data, self.train, self.run
        patches, objective = math.prod(self.model.grid_size), OBJECTIVES[train.objective]

        def require(ok: bool, key: str, allowed: str) -> None:
            section, name = key.split(".")
            _require(ok, key, getattr(getattr(self, section), name), allowed)

        # settings that must fit the image, the length of the run, or the batch
        least = f"model.image_size {self.model.image_size} must have 2 patches or more: one to hide, one to see"
        require(patches >= 2, "model.patch_size", least)
        most = f"at most train.epochs, which is {train.epochs}"
        require(self.optim.warmup_epochs <= train.epochs, "optim.warmup_epochs", most)
        require(run.val_every <= train.epochs, "run.val_every", most)
        below = f"below train.epochs, which is {train.epochs}, or drop_patches would do nothing"
        require(self.classify.whole_epochs < train.epochs, "classify.whole_epochs", below)
        most = f"at most train.batch_size, which is {train.batch_size}"
        require(run.grad_accum_steps <= train.batch_size, "run.grad_accum_steps", most)
        contrast = self.reconstruct.contrast
        alone = "it compares images within a batch: leave run.grad_accum_steps out"
        require(not contrast or run.grad_accum_steps <= 1, "reconstruct.contrast", alone)
        pairs = "reconstruct.contrast needs two views per image"
        require(not contrast or self.augment.views == 2, "augment.views", pairs)

        # settings that would do nothing, or use the test images too early
        once = "test images are used once, at the end; hold out training images with data.val_size"
        require(not run.val_every or data.val_size > 0, "run.val_every", once)
        fewer = "pretraining needs none; data.limit takes fewer images"
        require(data.labels == 1 or objective.labels, "data.labels", fewer)
        require(
            self.augment.views == 1 or not objective.labels,
            "augment.views",
            "several views only apply to pretraining",
        )

    @property
    def images_per_step(self) -> int:
        """Images computed per step, over all processes; each view counts."""
        return self.train.batch_size * self.augment.views

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, as YAML and JSON hold them."""
        return {
            name: {k: _plain(v) for k, v in section.items()}
            for name, section in asdict(self).items()
        }

    def deciding(self) -> dict[str, Any]:
        """Return the settings that decide the result, by "section.key"; the content hash says which images are used."""
        return flat_settings(
            {key: section for key, section in self.to_dict().items() if key not in ("data", "run")}
        )

    def schedule(self, steps_per_epoch: int) -> tuple[int, int, int]:
        """Return the steps at which warm-up ends, the learning rate begins to fall, and the run ends."""
        total = self.train.epochs * steps_per_epoch
        warmup = round(self.optim.warmup_epochs * steps_per_epoch)
        return warmup, max(warmup, total - round(self.optim.cooldown * total)), total

    def conflicts(self, before: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
        """Yield the settings that would turn a run begun with `before` (from `to_dict`) into another run.

        Yields:
            key, value before, value now.
        """
        saved = flat_settings(before)
        for key, now in self.deciding().items():
            if (old := saved.get(key, now)) != now:
                yield key, old, now


def flat_settings(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Flatten sections of settings to "section.key"."""
    return {
        f"{name}.{key}": value
        for name, section in sections.items()
        for key, value in section.items()
    }


def _plain(value: object) -> object:
    """Return a value as YAML and JSON hold it: a list for a tuple or an array."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple):
        return list(value)
    return value
