"""The settings of a run: typed dataclasses that check themselves.

Nothing here imports torch, so that `--help` and a wrong setting answer at once. A section says how
its settings affect results:

    data       which images; a resumed run checks their content, not these settings
    augment, model, mask, reconstruct, classify, optim, train
               decide the result; a resumed run keeps them
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
from importlib import import_module
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from vit.errors import ConfigError, quoted

Source = Literal["cifar10", "cifar100", "folder", "scenes", "dataset"]
BUILT_IN = tuple(name for name in get_args(Source) if name not in ("folder", "dataset"))
"""The sources that need only their name; the others need a path, or are passed in Python."""
# Encoder and decoder have the proportions of MAE's: the decoder is narrower, and less deep
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
MOST_PIXELS = 16_384
"""The longest side of an image; anything larger is refused at once."""
MOST_UNITS = 65_536
"""The largest width, depth and number of heads."""


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
"""The registry of objectives; `vit.training.objectives` has a module of the same name for each."""


def unread_sections(objective: str) -> set[str]:
    """Return the names of the sections that only other objectives read."""
    sections: set[str] = set()
    for other in OBJECTIVES.values():
        sections |= set(other.sections)
    return sections - set(OBJECTIVES[objective].sections)


# --- Numbers in a range ---------------------------------------------------------------------------


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
Pixels = Annotated[int, Range(f"1 to {MOST_PIXELS:,} pixels", lambda n: 1 <= n <= MOST_PIXELS)]
Units = Annotated[int, Range(f"1 to {MOST_UNITS:,}", lambda n: 1 <= n <= MOST_UNITS)]
Ratio = Annotated[float, Range("above 0, up to 100", lambda x: 0 < x <= 100)]
FewTokens = Annotated[int, Range("0 to 1,000", lambda n: 0 <= n <= 1000)]


# --- The sections, as in config.yaml --------------------------------------------------------------


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
                raise self.refusal(name, str(error)) from error
            object.__setattr__(self, name, value)  # the section is frozen

    def refusal(self, name: str, allowed: str, value: object = None) -> ConfigError:
        """Return the error of a setting, with what is allowed.

        Args:
            name: of the setting.
            allowed: in words.
            value: in force, where that of the setting is None.
        """
        if value is None:
            value = getattr(self, name)
        return ConfigError(
            f"{self.section}.{name}: {quoted(_plain(value))} cannot be used; {allowed}"
        )


@dataclass(frozen=True)
class DataConfig(Section, section="data"):
    """Where the images come from, and which of them are used."""

    # What is read
    source: Source = "cifar10"
    """what to train on: CIFAR, a folder of your own images, the built-in Scenes, or (dataset) the
    data passed to vit.fit"""
    root: str = "data"
    """folder that holds (or receives) CIFAR's archive, or your folder of images"""
    name: str = ""
    """name of the data in outputs; empty: the source's own"""
    download: bool = True
    """download CIFAR if it is not in data.root"""
    fallback: Literal["stop", "scenes"] = "stop"
    """if CIFAR is not on disk and cannot be downloaded: stop, or warn and train on Scenes"""

    # Which of its images are used
    limit: NonNegative = 0
    """use only this many training images and at most as many test images, evenly spaced; 0: all"""
    val_size: NonNegative = 0
    """training images held out for validation, to choose settings by; the test images stay unseen;
    0: none"""
    labels: Share = 1.0
    """classification: share of the training images that have labels; only these are trained on"""

    # How image files are read
    on_bad_image: Literal["stop", "skip"] = "stop"
    """if an image of a folder or data set cannot be read: stop and name it, or skip and list it"""
    cache: str = "~/.cache/vit-patch-trainer"
    """folder for the decoded images of a folder or data set; they need not fit in memory"""

    def __post_init__(self) -> None:
        super().__post_init__()
        # a shell makes this of a variable that is not set, and it would be the current folder
        for name in ("root", "cache"):
            if getattr(self, name) == "":
                raise self.refusal(name, "it needs the name of a folder")


@dataclass(frozen=True)
class AugmentConfig(Section, section="augment"):
    """How training images are augmented, each by its own random draws."""

    # Where the image is cut
    crop: Literal["resized", "pad", "none"] = "resized"
    """resized: a random part, resized to the full image; pad: the image, shifted within a padded
    border"""
    crop_scale: tuple[float, float] = (0.2, 1.0)
    """crop resized: smallest and largest share of the area"""
    flip: Probability = 0.5
    """probability of a horizontal flip"""
    views: Positive = 1
    """copies of each image in a batch, each augmented and masked by its own draws"""

    # Its colours
    color_jitter: BelowOne = 0.0
    """largest change of brightness, contrast and saturation, in 8 of 10 views (SimCLR), e.g. 0.4;
    0: off"""
    grayscale: Probability = 0.0
    """probability of turning a view grey"""

    # Stronger changes, for fine-tuning, and a control
    rand_augment: Annotated[int, Range("0 (off) to 15 operations", lambda n: 0 <= n <= 15)] = 0
    """RandAugment: operations drawn per image, each applied with probability 1/2, at strength 9 of
    10; e.g. 2 for fine-tuning; 0: off"""
    shuffle: Literal["none", "within", "across"] = "none"
    """a control for learning from patches that belong together: shuffle patches within each image,
    or, position by position, across the batch"""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            raise self.refusal("crop_scale", "two shares, 0 < low <= high <= 1")


@dataclass(frozen=True)
class ModelConfig(Section, section="model"):
    """The encoder, the decoder, and which of their parts learn."""

    # What it begins with, and its size
    init: str = ""
    """checkpoint to start from: anything that `vit.checkpoints.load_model` reads; empty: random
    weights"""
    preset: Literal["micro", "tiny", "small", "base"] = "tiny"
    """width, depth and heads of encoder and decoder, unless given one by one"""
    image_size: Pixels | tuple[Pixels, Pixels] = 32
    """pixels: one number for squares, or [height, width]; other images are cropped to that shape
    and resized"""
    patch_size: Pixels | tuple[Pixels, Pixels] = 4
    """pixels: one number for squares, or [height, width]; divides the image"""
    embed_dim: Units | None = None
    """width of the encoder's tokens, a multiple of num_heads; null: the preset's"""
    depth: Units | None = None
    """number of the encoder's blocks; null: the preset's"""
    num_heads: Units | None = None
    """attention heads per block; null: the preset's"""
    mlp_ratio: Ratio = 4.0
    """hidden width of the MLPs / width of the tokens"""

    # Tokens beside the patches, and positions
    class_token: bool = True
    """put a class token before the patches"""
    registers: FewTokens = 0
    """number of register tokens after the class token (Darcet et al. 2024)"""
    pos_embed: Literal["learned", "sincos"] = "sincos"
    """the encoder's positions: a learned table, or the fixed 2-D sin-cos one (the decoder's are
    always fixed)"""

    # Blocks
    qkv: Literal["linear", "identity"] = "linear"
    """linear: Q = X W_Q, K = X W_K, V = X W_V; identity: Q = K = V = X, without the three
    matrices"""
    qkv_bias: bool = True
    """give the three maps a bias"""
    layer_scale: float | None = None
    """initial value of a learned scale on each residual branch of the encoder; null: none"""
    drop_path: BelowOne = 0.0
    """stochastic depth: probability of dropping the encoder's last residual branch, rising linearly
    from 0 at the first"""
    global_pool: Literal["avg", "token"] = "avg"
    """what a classifier reads: the mean of the patches, or the class token"""

    # The decoder
    decoder_dim: Units | None = None
    """width of the decoder's tokens, a multiple of 4 and of decoder_heads; null: the preset's"""
    decoder_depth: Units | None = None
    """number of the decoder's blocks; null: the preset's"""
    decoder_heads: Units | None = None
    """attention heads per decoder block; null: the preset's"""

    # What learns
    freeze: list[str] = field(default_factory=list)
    """parts that do not learn: patch_embed, pos_embed, W_Q, W_K, W_V, W_O, mlp, encoder.blocks.0,
    decoder.W_Q, ..."""

    def __post_init__(self) -> None:
        super().__post_init__()

        # Whole patches
        for axis, side in enumerate(("height", "width")):
            image = self.image_size_2d[axis]
            if image % self.patch_size_2d[axis]:
                divisors = ", ".join(str(n) for n in range(1, image + 1) if image % n == 0)
                allowed = f"it must divide the image's {side} of {image} (model.image_size)"
                raise self.refusal("patch_size", f"{allowed}: {divisors}")

        # Heads of equal width, and positions in four parts: sine and cosine of row and column
        dimensions = self.dimensions
        for name, heads in (("embed_dim", "num_heads"), ("decoder_dim", "decoder_heads")):
            width = dimensions[name]
            if width % dimensions[heads]:
                allowed = f"a multiple of model.{heads}, which is {dimensions[heads]}"
                raise self.refusal(name, allowed, width)
            has_table = name == "decoder_dim" or self.pos_embed == "sincos"
            if has_table and width % 4:
                raise self.refusal(name, "a multiple of 4, for its sin-cos positions", width)

        # An MLP with a hidden unit, and a token for the head to read
        width = dimensions["embed_dim"]
        if self.mlp_ratio * width < 1:
            allowed = f"at least 1 / {width}, for one hidden unit (model.embed_dim {width})"
            raise self.refusal("mlp_ratio", allowed)
        if self.global_pool == "token" and not self.class_token:
            raise self.refusal("global_pool", "there is no class token (model.class_token)")

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
        height, width = self.image_size_2d
        p, q = self.patch_size_2d
        return height // p, width // q

    @property
    def dimensions(self) -> dict[str, int]:
        """Width, depth and heads of encoder and decoder: as given, else the preset's."""
        dimensions = dict(PRESETS[self.preset])
        for key in dimensions:
            value = getattr(self, key)
            if value is not None:
                dimensions[key] = value
        return dimensions

    def vit_config(self, **derived: Any) -> ViTConfig:
        """Return the encoder's architecture; `derived` are fields that the objective decides."""
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


@dataclass(frozen=True)
class MaskConfig(Section, section="mask"):
    """Pretraining: which patches are masked."""

    kind: Literal["random", "block", "grid"] = "random"
    """random: each patch independently; block: one rectangle per image; grid: a regular pattern"""
    ratio: Annotated[float, Range("above 0 and below 1", lambda x: 0 < x < 1)] = 0.75
    """share of patches to mask, above 0 and below 1; rounded, but at least one is masked and one
    visible"""


@dataclass(frozen=True)
class ReconstructConfig(Section, section="reconstruct"):
    """Objective reconstruct: the target, and an optional contrastive loss."""

    norm_pix_loss: bool = True
    """predict patches normalised by their own mean and standard deviation, instead of raw pixels"""
    contrast: NonNegativeFloat = 0.0
    """weight of a second loss: find the other view of an image among those of the batch (CAN);
    0: off"""


@dataclass(frozen=True)
class ClassifyConfig(Section, section="classify"):
    """Objective classify: how training changes images and labels."""

    # The labels and the images they belong to
    label_smoothing: BelowOne = 0.0
    """share of each label to spread over all classes"""
    mixup: NonNegativeFloat = 0.0
    """alpha of Mixup, which blends two images and their labels; 0: off"""
    cutmix: NonNegativeFloat = 0.0
    """alpha of CutMix, which pastes a rectangle of one image into another; 0: off; with both, each
    gets half of the images"""

    # Cheaper steps
    drop_patches: BelowOne = 0.0
    """share of patches to drop from each training image (PatchDropout): cheaper steps; evaluation
    sees all"""
    whole_epochs: NonNegativeFloat = 0.0
    """final epochs without drop_patches, so that the model has seen whole images"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.whole_epochs > 0 and self.drop_patches == 0:
            raise self.refusal("whole_epochs", "it only applies with drop_patches")


@dataclass(frozen=True)
class OptimConfig(Section, section="optim"):
    """The optimizer and its schedule: warm-up, a constant rate if cooldown < 1, half a cosine."""

    # The update, and the learning rate over time
    name: Literal["adamw", "muon"] = "adamw"
    """muon: orthogonalised momentum for the blocks' matrices, AdamW for the rest, at AdamW's
    learning rate"""
    blr: PositiveFloat = 1.5e-4
    """base learning rate, for 256 images per step: lr = blr x train.batch_size / 256"""
    warmup_epochs: NonNegativeFloat = 1.0
    """epochs of warm-up"""
    cooldown: Share = 1.0
    """the last share of the steps, in which the learning rate falls; below 1, --resume may change
    train.epochs: the run goes on from where it was held"""

    # How weights are held back, and gradients averaged
    weight_decay: NonNegativeFloat = 0.05
    """decoupled weight decay of the matrices; norms, biases, tokens and positions have none"""
    betas: tuple[float, float] = (0.9, 0.95)
    """decay rates of AdamW's averages of the gradient and of its square"""
    layer_decay: Share = 1.0
    """each block's learning rate as a fraction of the next block's, for fine-tuning; 1: all the
    same"""
    ema: BelowOne = 0.0
    """decay of a moving average of the weights, e.g. 0.9995; the average becomes the model;
    0: off"""
    clip_grad: NonNegativeFloat = 1.0
    """maximum gradient norm; larger gradients are scaled down to it; 0: off"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 <= beta < 1 for beta in self.betas):
            raise self.refusal("betas", "two numbers from 0 to below 1")


@dataclass(frozen=True)
class TrainConfig(Section, section="train"):
    """What is learned, and for how long."""

    objective: str = "reconstruct"
    """reconstruct: fill in masked patches (pretraining); classify: classify images (fine-tuning, or
    from scratch)"""
    epochs: Positive = 100
    """passes over the training images"""
    batch_size: Positive = 256
    """images per step, over all processes; the last batch of an epoch holds the remainder, but with
    reconstruct.contrast it is left out"""
    seed: NonNegative = 0
    """the one seed of weights, data order, augmentation and masks"""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """number format of matrix products; auto: on a GPU bf16, or fp16 if it has no bf16; on a CPU
    bf16 if it has AMX or is AMD's with AVX512-BF16, else fp32"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective not in OBJECTIVES:
            raise self.refusal("objective", f"one of {', '.join(OBJECTIVES)}")


@dataclass(frozen=True)
class RunConfig(Section, section="run"):
    """Where a run computes, what it writes, and how its result is measured.

    The weights depend on it in their last bits at most.
    """

    # Where and how it computes
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """where to compute; auto: cuda, then mps, then cpu"""
    threads: NonNegative = 0
    """CPU threads per process; 0: torch's choice; another number may change the last bits"""
    grad_accum_steps: NonNegative = 0
    """micro-batches per process and step, to save memory; the gradient is the whole batch's; 0:
    chosen by token count"""
    attention: Literal["auto", "math", "flash"] = "auto"
    """math: two products and a softmax; flash: torch's fused kernel; auto: the faster one here"""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; auto: on a GPU, or in bf16 on a CPU, for runs of 5,000 steps or more"""

    # What it writes
    save_every: Positive = 500
    """steps between checkpoints"""
    snapshots: NonNegative = 0
    """copies of the weights to keep, in half precision, more of them early in the run: for films
    and sliders"""
    dynamics_every: NonNegative = 0
    """steps between records of every weight matrix's gradient and movement, and at 1, 2, 4, 8, ...
    before; 0: off"""
    val_every: NonNegative = 0
    """epochs between measurements on the validation images (data.val_size), for the curves; 0: only
    at the end"""
    knn_images: NonNegative = 50_000
    """pretraining: training images that k-NN searches for neighbours, spread over all; 0: all"""
    track: list[Literal["tensorboard", "wandb"]] = field(default_factory=list)
    """also write the metrics to TensorBoard or Weights & Biases; each is an extra: pip install -e
    '.[wandb]'"""

    def steps_between_lines(self, total_steps: int) -> int:
        """Return the steps between lines of metrics.jsonl: 1 to 10, at most a fiftieth of a run."""
        return min(max(total_steps // 50, 1), 10)


# --- All settings ---------------------------------------------------------------------------------


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
        # A file may serve several objectives: what this one does not read has its defaults, so that
        # it changes nothing
        for name in unread_sections(self.train.objective):
            default = type(getattr(self, name))()
            object.__setattr__(self, name, default)

        self._check_sizes()
        self._check_contrast()
        self._check_use_of_images()

    def _check_sizes(self) -> None:
        """Refuse what does not fit into the image, the run or the batch."""
        epochs = self.train.epochs
        batch_size = self.train.batch_size

        # Two patches or more: one to mask and one to see
        if math.prod(self.model.grid_size) < 2:
            allowed = f"model.image_size {self.model.image_size} must have 2 patches or more"
            raise self.model.refusal("patch_size", allowed)

        # The run
        allowed = f"at most train.epochs, which is {epochs}"
        if self.optim.warmup_epochs > epochs:
            raise self.optim.refusal("warmup_epochs", allowed)
        if self.run.val_every > epochs:
            raise self.run.refusal("val_every", allowed)
        if self.classify.whole_epochs >= epochs:
            allowed = f"below train.epochs, which is {epochs}, or drop_patches would do nothing"
            raise self.classify.refusal("whole_epochs", allowed)

        # The batch
        if self.run.grad_accum_steps > batch_size:
            allowed = f"at most train.batch_size, which is {batch_size}"
            raise self.run.refusal("grad_accum_steps", allowed)

    def _check_contrast(self) -> None:
        """Refuse a contrastive loss that cannot compare two views with a whole batch."""
        if self.reconstruct.contrast == 0:
            return
        if self.run.grad_accum_steps > 1:
            allowed = "it compares images within a batch: leave run.grad_accum_steps out"
            raise self.reconstruct.refusal("contrast", allowed)
        if self.augment.views != 2:
            raise self.augment.refusal("views", "reconstruct.contrast needs two views per image")
        if self.train.batch_size == 1:
            allowed = "2 or more: reconstruct.contrast compares an image with others"
            raise self.train.refusal("batch_size", allowed)

    def _check_use_of_images(self) -> None:
        """Refuse what would use the test images too early, or do nothing."""
        learns_labels = OBJECTIVES[self.train.objective].labels
        if self.run.val_every > 0 and self.data.val_size == 0:
            allowed = (
                "test images are used once, at the end; hold out training images with data.val_size"
            )
            raise self.run.refusal("val_every", allowed)
        if self.data.labels < 1 and not learns_labels:
            allowed = "pretraining needs none; data.limit takes fewer images"
            raise self.data.refusal("labels", allowed)
        if self.augment.views > 1 and learns_labels:
            raise self.augment.refusal("views", "several views only apply to pretraining")

    @property
    def images_per_step(self) -> int:
        """Images computed per step, over all processes; each view counts."""
        return self.train.batch_size * self.augment.views

    @classmethod
    def read(
        cls, name: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None
    ) -> Config:
        """Return the settings of a file, and the defaults of those that it does not name.

        Args:
            name: path of a YAML file, or the name of one of the package: quickstart.
            overrides: settings by "section.key", which win over the file.

        Raises:
            ConfigError: the file cannot be read, or a key or a value cannot be used.
        """
        # the reader of files imports this module
        settings = import_module("vit.settings")
        return settings.train_command([os.fspath(name)], overrides or {}).config

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, as YAML and JSON hold them."""
        sections = asdict(self)
        for section in sections.values():
            for key, value in section.items():
                section[key] = _plain(value)
        return sections

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

    def held_steps(self, count: int) -> int:
        """Return the number of steps, with `count` images, that a longer run would begin with.

        They come before the last phase, in which the learning rate falls or classification sees
        whole images; 0 if the rate falls from the start, towards the end of just this run.
        """
        if self.optim.cooldown == 1:
            return 0
        per_epoch = self.steps_per_epoch(count)
        _, falls_from, _ = self.schedule(per_epoch)
        whole_from = round((self.train.epochs - self.classify.whole_epochs) * per_epoch)
        return min(falls_from, whole_from)

    def conflicts(self, before: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
        """Yield the settings that would turn a run into another.

        Args:
            before: all settings of that run, from `to_dict`.

        Yields:
            key, value before, value now.
        """
        saved = flat_settings(before)
        for key, now in self.deciding().items():
            old = saved.get(key, now)
            if old != now:
                yield key, old, now


def flat_settings(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Flatten sections of settings to "section.key"."""
    settings = {}
    for name, section in sections.items():
        for key, value in section.items():
            settings[f"{name}.{key}"] = value
    return settings


# --- The architecture of a model, which a checkpoint states ---------------------------------------


@dataclass(frozen=True)
class ViTConfig:
    """The architecture of a vision transformer, as `vit.encoder` builds it and a checkpoint's
    config.json states it."""

    # Images
    image_size: tuple[int, int] = (32, 32)
    """(H, W) in pixels"""
    patch_size: tuple[int, int] = (4, 4)
    """(p, q) in pixels; divides the image"""
    channels: int = 3
    """channels of the images"""

    # Size
    embed_dim: int = 192
    """width of the tokens, a multiple of num_heads"""
    depth: int = 12
    """number of blocks"""
    num_heads: int = 3
    """attention heads per block"""
    mlp_ratio: float = 4.0
    """hidden width of the MLPs / width of the tokens"""

    # Tokens beside the patches, and positions
    class_token: bool = True
    """put a class token before the patches"""
    registers: NonNegative = 0
    """number of register tokens after the class token (Darcet et al. 2024)"""
    pos_embed: Literal["learned", "sincos"] = "learned"
    """positions: a learned table, or the fixed 2-D sin-cos one"""
    no_embed_class: bool = False
    """give positions to the patches only, not to class token and registers (timm's name)"""

    # Blocks
    qkv: Literal["linear", "identity"] = "linear"
    """linear: Q = X W_Q, K = X W_K, V = X W_V; identity: Q = K = V = X, without the three
    matrices"""
    qkv_bias: bool = True
    """give the three maps a bias"""
    layer_scale: float | None = None
    """initial value of a learned scale on each residual branch of the encoder; null: none"""
    drop_path: BelowOne = 0.0
    """stochastic depth: probability of dropping the encoder's last residual branch, rising linearly
    from 0 at the first"""

    # The head of a classifier
    global_pool: Literal["avg", "token"] = "avg"
    """what a classifier reads: the mean of the patches, or the class token"""
    fc_norm: bool = False
    """apply the final norm after pooling, as MAE's fine-tuning does, instead of before it (timm's
    name)"""
    num_classes: int = 0
    """outputs of the classification head; 0: no head"""

    # Blocks of other families
    qk_norm: bool = False
    """normalise queries and keys, head by head (Dehghani et al. 2023)"""
    mlp: Literal["gelu", "swiglu"] = "gelu"
    """kind of MLP: with a GELU, or gated (SwiGLU, Shazeer 2020)"""
    norm_eps: Annotated[float, Range("above 0 and below 1", lambda x: 0 < x < 1)] = 1e-6
    """eps of all norms: 1e-6 in timm, MAE and DINO, often 1e-12 in transformers; torch's 1e-5 moves
    features by 1e-4"""


@dataclass(frozen=True)
class DecoderConfig:
    """The architecture of a masked autoencoder's decoder, with fields as in `ViTConfig`.

    None stands for the encoder's value.
    """

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
        values = {}
        for item in fields(self):
            if getattr(self, item.name) is None:
                values[item.name] = getattr(encoder, item.name)
        return replace(self, **values)

    def blocks(self, encoder: ViTConfig) -> ViTConfig:
        """Return the architecture of the decoder's blocks: the encoder's, with these values."""
        values = asdict(self.complete(encoder))
        values["embed_dim"] = values.pop("dim")
        return replace(encoder, layer_scale=None, drop_path=0.0, **values)


# --- Values: checked, converted, written ----------------------------------------------------------

SWITCHES = {"on": True, "yes": True, "off": False, "no": False}
"""The words of YAML 1.1, which is what most files are written in, for true and false."""
TERMS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
}


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

    # A choice of words; many YAML readers take a bare on, off, yes or no for true or false
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

    # One value; YAML 1.1 gives 1e-3, without a point, as a text
    elif hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            number = float(value)
            if math.isfinite(number):
                return number
    elif hint is bool and isinstance(value, str) and value.lower() in SWITCHES:
        return SWITCHES[value.lower()]
    elif hint is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    elif type(value) is hint:
        # the largest seed; no setting needs more
        if hint is int and abs(value) >= 2**64:
            raise ValueError("it needs a number below 2^64")
        return value
    raise ValueError(f"it needs {allowed_by(hint)}")


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


@cache  # to read annotations, which are text, takes longer than all checks
def hints_of(section: type) -> dict[str, Any]:
    """Return the types of a section's settings, with their ranges."""
    return get_type_hints(section, include_extras=True)


def spelled(value: object) -> str:
    """Return a setting as a user writes it: 12, [32, 48], true, runs/tiny, "" for an empty text."""
    if isinstance(value, str | os.PathLike):
        return str(value) or '""'
    return json.dumps(value)


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Return a size as (height, width); one number stands for a square."""
    if isinstance(size, int):
        return size, size
    height, width = size
    return height, width


def _plain(value: object) -> object:
    """Return a value as YAML and JSON hold it: a list for a tuple or an array."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple):
        return list(value)
    return value


# --- A command's --data ---------------------------------------------------------------------------


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
    folder = os.path.expanduser(data)
    if os.path.isfile(folder):
        raise ConfigError(f"--data: {data!r} is a file; name the folder that it is in")
    if not os.path.isdir(folder):
        names = ", ".join(BUILT_IN)
        raise ConfigError(f"--data: {data!r} is neither {names} nor a folder of images")
    return {"source": "folder", "root": data}
