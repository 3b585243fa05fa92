"""The settings of a run: pydantic models, each setting with its sentence, type and range.

Nothing here imports torch, so that `--help` and wrong settings are answered at once. The sections
affect results in different ways:

    data       which images; a resumed run checks their content, not these settings
    augment, model, mask, reconstruct, classify, optim, train
               decide the result; a resumed run keeps them
    run        where it computes and what it writes; a resumed run may change them
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn, Self, TypeVar, get_args

import yaml
from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from vit.errors import ConfigError, did_you_mean, quoted

Source = Literal["cifar10", "cifar100", "folder", "scenes", "dataset"]
Device = Literal["auto", "cpu", "cuda", "mps"]
OnBadImage = Literal["stop", "skip"]
Tracker = Literal["tensorboard", "wandb"]
BUILT_IN = tuple(name for name in get_args(Source) if name not in ("folder", "dataset"))
"""The sources that need only their name; the others need a path, or are passed in Python."""
USUAL = ("data", "out", "train.epochs", "train.batch_size", "model.image_size")
"""The settings that most runs need: `vit train --help` and the page of settings begin with them.

A name without a section is an option of `vit train`.
"""
# Encoder and decoder have the proportions of MAE's: the decoder is narrower, and less deep
PRESETS = {
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


class ObjectiveInfo(NamedTuple):
    """What the settings need to know about an objective.

    Attributes:
        sections: the objective-specific sections that it reads; the others have their defaults.
        labels: whether it learns from labels.
    """

    sections: tuple[str, ...]
    labels: bool = False


OBJECTIVES = {
    "reconstruct": ObjectiveInfo(("mask", "reconstruct")),
    "classify": ObjectiveInfo(("classify",), labels=True),
}
"""What is known of each objective; its class stands in `vit.training.objectives`."""


def unread_sections(objective: str) -> set[str]:
    """Return the names of the sections that only other objectives read."""
    sections = {section for info in OBJECTIVES.values() for section in info.sections}
    return sections.difference(OBJECTIVES[objective].sections)


# --- One value, as YAML, the command line and Python give it --------------------------------------


def _number(value: Any) -> Any:
    """Refuse true and false, which Python counts as 1 and 0, and 1_000, which it reads as 1,000."""
    if hasattr(value, "item"):  # one of NumPy's or torch's
        value = value.item()
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise ValueError("it should be a number")
    return value


def several(value: Any) -> Any:
    """Return a list of the values in a text: 3,4 or [3, 4], or of an array."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if not isinstance(value, str):
        return value
    if value.startswith("[") and value.endswith("]"):
        value = value[1:-1]
    return [part.strip(" '\"") for part in value.split(",") if part.strip()]


def _path(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def _switch(value: Any) -> Any:
    """Return "on" or "off": YAML reads these words as true and false."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


def pair(size: Any) -> Any:
    """Return a size as (height, width); one number stands for a square."""
    sides = several(size)
    if not isinstance(sides, Sequence):
        sides = [sides]
    if len(sides) == 1:
        sides = [*sides, *sides]
    return tuple(sides)


def _known_objective(name: str) -> str:
    if name not in OBJECTIVES:
        raise ValueError(f"it should be one of {', '.join(OBJECTIVES)}")
    return name


T = TypeVar("T")
Several = Annotated[tuple[T, ...], BeforeValidator(several)]
Pair = Annotated[tuple[T, T], BeforeValidator(several)]
Whole = Annotated[int, BeforeValidator(_number)]
Number = Annotated[float, BeforeValidator(_number), AllowInfNan(False)]
Positive = Annotated[Whole, Field(ge=1, lt=2**64)]
NonNegative = Annotated[Whole, Field(ge=0, lt=2**64)]
PositiveFloat = Annotated[Number, Field(gt=0)]
NonNegativeFloat = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(gt=0, le=1)]
Probability = Annotated[Number, Field(ge=0, le=1)]
BelowOne = Annotated[Number, Field(ge=0, lt=1)]
Within = Annotated[Number, Field(gt=0, lt=1)]
# Larger sizes are mistakes, and would fill the memory before an error is raised
Units = Annotated[Whole, Field(ge=1, le=65_536)]
NoneOrMore = Annotated[Whole, Field(ge=0, le=10_000_000)]
Size = Pair[Units]
Square = Annotated[tuple[Units, Units], BeforeValidator(pair)]
Words = Several[str]
PathName = Annotated[str, BeforeValidator(_path)]
# A shell makes an empty name of a variable that is not set, and it would be the current folder
FolderName = Annotated[str, Field(min_length=1), BeforeValidator(_path)]


# --- What all settings have in common -------------------------------------------------------------


def reason(problems: Sequence[ErrorDetails]) -> str:
    """Return in words what pydantic refuses of a value; of several types, what each needs."""
    reasons: dict[str, None] = {}
    for item in problems:
        text = item["msg"].removeprefix("Value error, ")
        if item["type"] == "string_unicode":
            text = "it is not read as UTF-8: rename it or, in another locale, set PYTHONUTF8=1"
        reasons[text[:1].lower() + text[1:]] = None
    return ", or ".join(reasons)


class Settings(BaseModel):
    """Values that cannot change, each checked on creation: its type and its range."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    section: ClassVar[str] = ""

    def __init__(self, **values: Any):
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise self._refused(values, error.errors(include_url=False)) from None

    @classmethod
    def _refused(cls, values: Mapping[str, Any], problems: Sequence[ErrorDetails]) -> ConfigError:
        """Return the error of the first value that pydantic refused, in one line."""
        # A rule of this file, or a section, has raised its own error
        first = problems[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            return cause

        # A name that does not exist, with what may be meant
        name = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            hint = did_you_mean(name, cls.model_fields)
            return ConfigError(cls.key(name), f"no such setting{hint}")

        # A value: for several types, the requirement of each
        same = [item for item in problems if item["loc"][0] == name]
        text = f"{quoted(values.get(name))} cannot be used; {reason(same)}"
        return ConfigError(cls.key(name), text)

    @classmethod
    def key(cls, name: str) -> str:
        """Return what a setting is called, with its section."""
        return f"{cls.section}.{name}".removeprefix(".")

    def refuse(self, name: str, allowed: str) -> NoReturn:
        """Refuse a setting that does not fit others, and say what is allowed."""
        text = f"{quoted(getattr(self, name))} cannot be used; {allowed}"
        raise ConfigError(self.key(name), text)


S = TypeVar("S", bound=Settings)


def changed(settings: S, changes: Mapping[str, Any]) -> S:
    """Return settings with some of them changed, all checked anew: the only way to change any.

    Args:
        settings: a `Config`, one of its sections, or an architecture.
        changes: by name; of a `Config`, sections by their name or settings by "section.key".
    """
    values = settings.model_dump()
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if name:
            values.setdefault(section, {})[name] = value
        else:
            values[section] = value
    return type(settings)(**values)


def flat_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten sections of settings to "section.key"."""
    settings: dict[str, Any] = {}
    for name, section in sections.items():
        if isinstance(section, Mapping):
            settings |= {f"{name}.{key}": value for key, value in section.items()}
        elif section is not None:  # it may hold only comments
            settings[str(name)] = section
    return settings


def spelled(value: object) -> str:
    """Return a setting as a user writes it: 12, [32, 48], true, runs/tiny, "" for an empty text."""
    if isinstance(value, str | os.PathLike):
        return str(value) or '""'
    return json.dumps(value)


# --- The architecture of a model, which a checkpoint states ---------------------------------------


class ViTConfig(Settings):
    """The architecture of a vision transformer, as `vit.encoder` builds it and a checkpoint's
    config.json states it."""

    # Images
    image_size: Square = (32, 32)
    """size of the model's input in pixels: one number for squares, or [height, width]; other images
    are cropped to that shape and resized"""
    patch_size: Square = (4, 4)
    """size of a patch in pixels: one number for squares, or [height, width]; must divide
    image_size"""
    channels: Units = 3
    """number of image channels"""

    # Size
    embed_dim: Units = 192
    """width of the tokens, a multiple of num_heads"""
    depth: Units = 12
    """number of layers"""
    num_heads: Units = 3
    """attention heads per layer"""
    mlp_ratio: PositiveFloat = 4.0
    """hidden width of the MLPs, as a multiple of the tokens' width"""

    # Tokens beside the patches, and positions
    class_token: bool = True
    """put a class token before the patches"""
    registers: NoneOrMore = 0
    """number of register tokens after the class token (Darcet et al. 2024)"""
    pos_embed: Literal["learned", "sincos"] = "learned"
    """position embedding: a learned table, or the fixed 2-D sin-cos one"""
    no_embed_class: bool = False
    """add positions to the patches only, not to class token and registers (timm's name)"""

    # Layers
    qkv: Literal["linear", "identity"] = "linear"
    """linear: Q = X W_Q, K = X W_K, V = X W_V; identity: Q = K = V = X, without the three
    matrices"""
    qkv_bias: bool = True
    """add a bias to Q, K and V"""
    layer_scale: Number | None = None
    """initial value of a learned scale on each residual branch of the encoder; null: none"""
    drop_path: BelowOne = 0.0
    """stochastic depth: probability of dropping a residual branch of the encoder; rises linearly
    from 0 in the first layer to this value in the last"""

    # The head of a classifier
    global_pool: Literal["avg", "token"] = "avg"
    """input of the classification head: the mean of the patches (average pooling), or the class
    token"""
    fc_norm: bool = False
    """apply the final norm after pooling, as MAE's fine-tuning does, instead of before it (timm's
    name)"""
    num_classes: NoneOrMore = 0
    """outputs of the classification head; 0: no head"""

    # Layers of other families
    qk_norm: bool = False
    """normalise queries and keys in each head (Dehghani et al. 2023)"""
    mlp: Literal["gelu", "swiglu"] = "gelu"
    """MLP with a GELU, or gated (SwiGLU, Shazeer 2020)"""
    norm_eps: Within = 1e-6
    """eps of all norms: 1e-6 in timm, MAE and DINO, often 1e-12 in transformers; torch's 1e-5 moves
    features by 1e-4"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        height, width = self.image_size
        p, q = self.patch_size
        if height % p or width % q:
            self.refuse("patch_size", f"it must divide {height} x {width}")
        # A token for the head to read
        if self.global_pool == "token" and not self.class_token:
            self.refuse("global_pool", f"there is no class token ({self.key('class_token')})")
        self._check_heads("embed_dim", "num_heads")
        width = self.filled["embed_dim"]
        if self.pos_embed == "sincos" and width % 4:
            self.refuse("embed_dim", f"{width} is no multiple of 4, for its sin-cos positions")
        return self

    def _check_heads(self, name: str, heads: str) -> None:
        """Refuse a width that is no multiple of its heads."""
        size = self.filled
        if size[name] % size[heads]:
            problem = f"{size[name]} is no multiple of {self.key(heads)}, which is {size[heads]}"
            self.refuse(name, problem)

    @property
    def hidden_dim(self) -> int:
        """Hidden width of the MLPs."""
        return round(self.embed_dim * self.mlp_ratio)

    @property
    def grid_size(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        height, width = self.image_size
        p, q = self.patch_size
        return height // p, width // q

    @property
    def filled(self) -> dict[str, Any]:
        """All values by name."""
        return dict(self)


class DecoderConfig(Settings):
    """The architecture of a masked autoencoder's decoder, with fields as in `ViTConfig`.

    None stands for the encoder's value.
    """

    dim: Units
    """width of the tokens, a multiple of 4 and of num_heads"""
    depth: Units
    num_heads: Units
    mlp_ratio: PositiveFloat | None = None
    qkv: Literal["linear", "identity"] | None = None
    qkv_bias: bool | None = None
    qk_norm: bool | None = None
    mlp: Literal["gelu", "swiglu"] | None = None
    norm_eps: Within | None = None

    def complete(self, encoder: ViTConfig) -> DecoderConfig:
        """Replace every None by the encoder's value."""
        missing = {name: getattr(encoder, name) for name, value in self if value is None}
        return changed(self, missing)

    def blocks(self, encoder: ViTConfig) -> ViTConfig:
        """Return the architecture of the decoder's layers: the encoder's, with these values."""
        values = dict(self.complete(encoder))
        values["embed_dim"] = values.pop("dim")
        return changed(encoder, {"layer_scale": None, "drop_path": 0.0, **values})


# --- The sections, as in config.yaml --------------------------------------------------------------
class DataConfig(Settings):
    """The training data."""

    section = "data"

    # What is read
    source: Source = "cifar10"
    """training data: CIFAR, a folder of your own images, the built-in Scenes, or (dataset) the data
    passed to vit.fit"""
    root: FolderName = "data"
    """your folder of images, or the folder of CIFAR's archive"""
    name: str = ""
    """name of the data in outputs; empty: the name of the source"""
    download: bool = True
    """download CIFAR if it is not in data.root"""
    fallback: Literal["stop", "scenes"] = "stop"
    """without CIFAR on disk and without a network: stop, or train on Scenes"""

    # Which of its images are used
    limit: NonNegative = 0
    """number of training images to use, and at most as many test images; 0: all"""
    val_size: NonNegative = 0
    """number of training images to hold out, approximately; the run is measured on them instead of
    the test images, to choose settings; 0: none"""
    labels: Share = 1.0
    """classification: fraction of the training images to train on, as if only these had labels"""

    # How image files are read
    on_bad_image: OnBadImage = "stop"
    """unreadable images: stop at the first, or skip and list them"""
    cache: FolderName = "~/.cache/vit-patch-trainer"
    """folder where decoded images of a folder or data set are cached; they need not fit in
    memory"""


class AugmentConfig(Settings):
    """Augmentation of the training images."""

    section = "augment"

    # The crop
    crop: Literal["resized", "pad", "none"] = "resized"
    """resized: random resized crop; pad: random shift within a padded border"""
    crop_scale: Pair[Share] = (0.2, 1.0)
    """with crop resized: smallest and largest fraction of the area"""
    flip: Probability = 0.5
    """probability of a horizontal flip"""
    views: Positive = 1
    """number of views of each image in a batch, each with its own augmentation and mask"""

    # Colours
    color_jitter: BelowOne = 0.0
    """maximum strength of colour jitter, applied to 80% of views (SimCLR), e.g. 0.4; 0: off"""
    grayscale: Probability = 0.0
    """probability of converting a view to greyscale"""

    # Stronger augmentation, for fine-tuning, and a control experiment
    rand_augment: Annotated[Whole, Field(ge=0, le=15)] = 0
    """RandAugment: number of operations per image, each applied with probability 1/2, at magnitude
    9 of 10; e.g. 2 for fine-tuning; 0: off"""
    shuffle: Literal["none", "within", "across"] = "none"
    """control experiment: shuffle patches within each image, or across the batch at each
    position"""


class ModelConfig(ViTConfig):
    """Encoder and decoder; with `init`, the architecture is the checkpoint's."""

    section = "model"
    # Training images have three channels, and the data determines the classes
    channels: ClassVar[int] = 3  # type: ignore[misc]
    num_classes: ClassVar[int] = 0  # type: ignore[misc]

    # Initial weights and size
    init: PathName = ""
    """checkpoint to start from, e.g. a run folder, a name from `vit models` or timm/NAME; empty:
    random initialisation"""
    preset: Literal["micro", "tiny", "small", "base"] = "tiny"
    """width, depth and heads of encoder and decoder; embed_dim, depth, ... override them"""
    embed_dim: Units | None = None  # type: ignore[assignment]
    """width of the encoder's tokens, a multiple of num_heads; null: from the preset"""
    depth: Units | None = None  # type: ignore[assignment]
    """number of encoder layers; null: from the preset"""
    num_heads: Units | None = None  # type: ignore[assignment]
    """attention heads per encoder layer; null: from the preset"""
    pos_embed: Literal["learned", "sincos"] = "sincos"
    """position embedding of the encoder: a learned table, or the fixed 2-D sin-cos one (the decoder
    always has the fixed one)"""

    # The decoder
    decoder_dim: Annotated[Units, Field(multiple_of=4)] | None = None
    """width of the decoder's tokens, a multiple of 4 and of decoder_heads; null: from the preset"""
    decoder_depth: Units | None = None
    """number of decoder layers; null: from the preset"""
    decoder_heads: Units | None = None
    """attention heads per decoder layer; null: from the preset"""

    # What is trained
    freeze: Words = ()
    """parts that are not trained: patch_embed, pos_embed, W_Q, W_K, W_V, W_O, mlp,
    encoder.blocks.0, decoder.W_Q, ..."""

    @model_validator(mode="after")
    def _check_decoder(self) -> Self:
        self._check_heads("decoder_dim", "decoder_heads")
        return self

    @property
    def filled(self) -> dict[str, Any]:
        """All settings by name; what is null is that of the preset, if it has one."""
        given = {name: value for name, value in self if value is not None}
        return dict(self) | PRESETS[self.preset] | given

    def vit_config(self, **derived: Any) -> ViTConfig:
        """Return the encoder's architecture; `derived` are fields that the objective decides."""
        values = self.filled | derived
        return ViTConfig(**{key: values[key] for key in ViTConfig.model_fields if key in values})

    def decoder_config(self) -> DecoderConfig:
        """Return the decoder's architecture; its layers are like the encoder's."""
        size = self.filled
        return DecoderConfig(
            dim=size["decoder_dim"], depth=size["decoder_depth"], num_heads=size["decoder_heads"]
        )


class MaskConfig(Settings):
    """The mask, with objective reconstruct."""

    section = "mask"

    kind: Literal["random", "block", "grid"] = "random"
    """random: each patch independently; block: one rectangle per image; grid: a regular pattern"""
    ratio: Within = 0.75
    """fraction of the patches to mask, in configs/ 0.6 or 0.75; at least one patch is masked and
    one is visible"""


class ReconstructConfig(Settings):
    """The losses of objective reconstruct."""

    section = "reconstruct"

    norm_pix_loss: bool = True
    """reconstruct patches normalised by their own mean and standard deviation, instead of raw
    pixels"""
    contrast: NonNegativeFloat = 0.0
    """weight of a contrastive loss between two views of each image (InfoNCE, as in CAN); 0: off"""


class ClassifyConfig(Settings):
    """Regularisation and cheaper steps, with objective classify."""

    section = "classify"

    # Labels, and images with their labels
    label_smoothing: BelowOne = 0.0
    """fraction of each label to spread over all classes"""
    mixup: NonNegativeFloat = 0.0
    """alpha of Mixup, which mixes two images and their labels; 0: off"""
    cutmix: NonNegativeFloat = 0.0
    """alpha of CutMix, which pastes a rectangle of one image into another; with Mixup, each is
    applied to half of the images; 0: off"""

    # Cheaper steps
    drop_patches: BelowOne = 0.0
    """fraction of the patches to drop from each training image, for cheaper steps (PatchDropout);
    evaluation uses all patches"""
    whole_epochs: NonNegativeFloat = 0.0
    """number of final epochs without drop_patches"""


class OptimConfig(Settings):
    """Optimizer and learning rate: warm-up, constant if cooldown < 1, cosine decay."""

    section = "optim"

    # The update, and the learning rate over time
    name: Literal["adamw", "muon"] = "adamw"
    """adamw; muon: orthogonalised momentum for the matrices of the layers, AdamW for the rest, both
    with AdamW's learning rate"""
    blr: PositiveFloat = 1.5e-4
    """base learning rate, for batches of 256 images: lr = blr x train.batch_size / 256; with muon,
    in configs/ 2e-3 to 1.2e-2"""
    warmup_epochs: NonNegativeFloat = 1.0
    """epochs of warm-up"""
    cooldown: Share = 1.0
    """fraction of the steps used for the final cosine decay of the learning rate; 1: decay from the
    end of warm-up. Below 1, --resume can extend the run by a larger train.epochs"""

    # Regularisation, and averages
    weight_decay: NonNegativeFloat = 0.05
    """decoupled weight decay of the weight matrices; not applied to norms, biases, tokens,
    positions"""
    betas: Pair[BelowOne] = (0.9, 0.95)
    """AdamW's decay rates for the averages of the gradient and of its square"""
    layer_decay: Share = 1.0
    """learning rate of each layer as a fraction of the next layer's, for fine-tuning; 1: the same
    for all"""
    ema: BelowOne = 0.0
    """decay of an exponential moving average of the weights, e.g. 0.9995, which becomes the model;
    0: off"""
    clip_grad: NonNegativeFloat = 1.0
    """maximum gradient norm, to which larger gradients are scaled down; 0: off"""


class TrainConfig(Settings):
    """Objective and length of training."""

    section = "train"

    objective: Annotated[str, AfterValidator(_known_objective)] = "reconstruct"
    """reconstruct: reconstruct masked patches (pretraining); classify: classify images
    (fine-tuning, or from scratch)"""
    epochs: Positive = 100
    """number of passes over the training images"""
    batch_size: Positive = 256
    """images per step, over all processes; the last batch of an epoch may be smaller;
    with reconstruct.contrast it is dropped"""
    seed: NonNegative = 0
    """seed of initialisation, data order, augmentation and masks"""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """number format of matrix products; auto: bf16 where the hardware is faster with it, else fp16
    on a GPU and fp32 on a CPU"""


class RunConfig(Settings):
    """Device, output and measurements of a run.

    They affect the last bits of the weights at most.
    """

    section = "run"

    # Device and computation
    device: Device = "auto"
    """device; auto: cuda (an NVIDIA GPU) if there is one, else mps (Apple's), else cpu"""
    threads: NonNegative = 0
    """CPU threads per process; 0: torch's choice, at most the cores of a container; another number
    may change the last bits"""
    grad_accum_steps: NonNegative = 0
    """micro-batches per process and step (gradient accumulation), to save memory; 0: chosen by the
    number of tokens"""
    attention: Literal["auto", "math", "flash"] = "auto"
    """attention kernel. math: two products and a softmax; flash: torch's fused kernel; auto: the
    faster one on this machine"""
    compile: Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)] = "auto"
    """torch.compile; auto: on for runs of 5,000 steps or more on a GPU, or in bf16 on a CPU"""

    # Output
    save_every: Positive = 500
    """steps between checkpoints"""
    snapshots: NonNegative = 0
    """number of copies of the weights to keep for `vit explore --snapshots`, in half precision,
    more of them early in the run"""
    dynamics_every: NonNegative = 0
    """record gradient size and movement of every weight matrix every N steps (and at steps 1, 2, 4,
    8, ... before the first); 0: off"""
    val_every: NonNegative = 0
    """epochs between measurements on the held-out images (data.val_size), for the curves; 0: only
    at the end"""
    knn_images: NonNegative = 50_000
    """pretraining: number of training images among which k-NN searches; 0: all"""
    track: Several[Tracker] = ()
    """write the metrics to TensorBoard or Weights & Biases too; install the extra: pip install -e
    '.[wandb]'"""


# --- Files of settings ----------------------------------------------------------------------------

PACKAGE = Path(__file__).resolve().parent
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "configs"
"""The configurations: next to the package in the repository, inside it in a wheel."""


def user_path(name: str | os.PathLike[str], key: str = "") -> Path:
    """Return a path as its user means it: with a home folder in place of ~ or ~user.

    No shell has read what stands in a settings file, in Python, or in --out=~/page.html.

    Args:
        name: what the user wrote, or a default.
        key: of the setting that has this default.
    """
    text = os.fspath(name)
    path = os.path.expanduser(text)
    # else a folder called ~ is made here, and whoever removes ~ loses all
    is_root = os.environ.get("HOME") == "" and text.partition("/")[0] == "~"
    if is_root or path.startswith("~"):
        raise ConfigError(
            key or text, "its ~ is no known home folder; set HOME, or write the folder out"
        )
    return Path(path)


def config_file(name: str | os.PathLike[str]) -> Path:
    """Return the settings file of this name: an existing one, else one of the package.

    Args:
        name: a path, or a name as quickstart or configs/quickstart.yaml.
    """
    path = user_path(name)
    shipped = CONFIGS / f"{path.name.removesuffix('.yaml')}.yaml"
    if not path.is_file() and path.parent in (Path(), Path("configs")) and shipped.exists():
        return shipped
    return path


def read_settings(*names: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what settings files say, by "section.key"; the values are not checked yet.

    Args:
        names: see `config_file`; a later file wins.
    """
    settings: dict[str, Any] = {}
    for path in map(config_file, names):
        try:
            sections = yaml.safe_load(path.read_bytes())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ConfigError("config", f"cannot read {path}: {error}") from error
        if not isinstance(sections, dict):
            raise ConfigError(
                "config", f"{path} contains no settings such as `train: {{epochs: 3}}`"
            )
        settings |= flat_settings(sections)
    return settings


# --- All settings ---------------------------------------------------------------------------------


class Config(Settings):
    """All settings of a run, one section per concern."""

    data: DataConfig = DataConfig()
    augment: AugmentConfig = AugmentConfig()
    model: ModelConfig = ModelConfig()
    mask: MaskConfig = MaskConfig()
    reconstruct: ReconstructConfig = ReconstructConfig()
    classify: ClassifyConfig = ClassifyConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        # A file may serve several objectives: what this one does not read has its defaults, so that
        # it changes nothing
        for name in unread_sections(self.train.objective):
            # the settings are frozen
            object.__setattr__(self, name, Config.model_fields[name].default)

        epochs = self.train.epochs
        contrasts = self.reconstruct.contrast > 0
        learns_labels = OBJECTIVES[self.train.objective].labels
        if self.optim.warmup_epochs > epochs:
            self.optim.refuse("warmup_epochs", f"at most train.epochs, which is {epochs}")
        # A contrastive loss compares two views with a whole batch
        if contrasts and self.run.grad_accum_steps > 1:
            self.reconstruct.refuse(
                "contrast", "it compares the images of a batch: leave run.grad_accum_steps out"
            )
        if contrasts and self.augment.views != 2:
            self.augment.refuse("views", "reconstruct.contrast needs two views per image")
        # Settings that would use the test images too early, or do nothing
        if self.run.val_every > 0 and self.data.val_size == 0:
            self.run.refuse(
                "val_every",
                "the test images are used once, at the end; hold out training images with"
                " data.val_size",
            )
        if self.data.labels < 1 and not learns_labels:
            self.data.refuse(
                "labels", "pretraining uses no labels; to use fewer images, set data.limit"
            )
        if self.augment.views > 1 and learns_labels:
            self.augment.refuse("views", "only pretraining uses several views")
        return self

    @property
    def images_per_step(self) -> int:
        """Images computed per step, over all processes; each view counts."""
        return self.train.batch_size * self.augment.views

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
    ) -> Config:
        """Return all settings, of which some are given by "section.key".

        Args:
            settings: as in a file.
            overrides: win over `settings`, and are meant for this objective; a file may serve
                several.
        """
        overrides = overrides or {}
        config = changed(cls(), {**settings, **overrides})
        unread = unread_sections(config.train.objective)
        for key in overrides:
            if key.partition(".")[0] in unread:
                reason = f"train.objective {config.train.objective} does not use it"
                raise ConfigError(key, f"cannot be used; {reason}")
        return config

    @classmethod
    def read(
        cls, name: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None
    ) -> Config:
        """Return the settings of a file, and the defaults of those that it does not name.

        Args:
            name: path of a YAML file, or the name of one of the package: quickstart.
            overrides: settings by "section.key", which win over the file.
        """
        return cls.from_settings(read_settings(name), overrides)

    def to_yaml(self) -> str:
        """Return a complete configuration file."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, default_flow_style=None, width=120)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, as for YAML and JSON."""
        return self.model_dump(mode="json")

    def deciding(self) -> dict[str, Any]:
        """Return the settings that decide the result, by "section.key".

        The images are known by their hash, not by the settings in `data`.
        """
        sections = self.to_dict()
        del sections["data"], sections["run"]
        return flat_settings(sections)

    def steps_per_epoch(self, count: int) -> int:
        """Return the number of steps in which `count` images come once.

        The last one takes the remainder, which is 1 to `train.batch_size` images. The contrastive
        loss is easier among fewer images, so with it the remainder, other images in each epoch, is
        left out; only fewer images than a batch are a batch of their own.
        """
        batch_size = self.train.batch_size
        if self.reconstruct.contrast > 0:
            return max(count // batch_size, 1)
        return -(-count // batch_size)

    def schedule(self, steps_per_epoch: int) -> tuple[int, int, int]:
        """Return the steps at which warm-up ends, cooldown begins, and the run ends."""
        total = self.train.epochs * steps_per_epoch
        warmup = round(self.optim.warmup_epochs * steps_per_epoch)
        cooldown = total - round(self.optim.cooldown * total)
        return warmup, max(warmup, cooldown), total

    def whole_from(self, count: int) -> int:
        """Return the step, of `count` images, from which classification sees whole images."""
        epochs = max(self.train.epochs - self.classify.whole_epochs, 0)
        return round(epochs * self.steps_per_epoch(count))

    def held_steps(self, count: int) -> int:
        """Return the number of steps, with `count` images, that a longer run would begin with.

        They come before the last phase, in which the learning rate falls or classification sees
        whole images; 0 if the rate falls from the start, towards the end of just this run.
        """
        if self.optim.cooldown == 1:
            return 0
        _, falls_from, _ = self.schedule(self.steps_per_epoch(count))
        return min(falls_from, self.whole_from(count))
