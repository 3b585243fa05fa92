"""The settings of a run: typed dataclasses, checked when they are made.

Nothing here imports torch, so that `--help` and a wrong setting answer at once. Sections say what a setting does to the result:

    data       which images; a resumed run checks their content, not these settings
    augment, model, mask, reconstruct, classify, optim, train       decide the result; a resumed run keeps them
    run        where it computes and what it writes; may change when a run is resumed
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints

from vit.errors import UserError

Source = Literal["cifar10", "cifar100", "folder", "scenes", "hf", "dataset"]
BUILT_IN = tuple(name for name in get_args(Source) if name not in ("folder", "hf", "dataset"))
"""The sources that have a name; others need a place, or are handed over in Python."""
PRESETS: dict[str, dict[str, int]] = {
    "micro": dict(embed_dim=96, depth=6, num_heads=3, decoder_dim=64, decoder_depth=1, decoder_heads=2),
    "tiny": dict(embed_dim=192, depth=12, num_heads=3, decoder_dim=128, decoder_depth=2, decoder_heads=4),
    "small": dict(embed_dim=384, depth=12, num_heads=6, decoder_dim=256, decoder_depth=4, decoder_heads=8),
    "base": dict(embed_dim=768, depth=12, num_heads=12, decoder_dim=512, decoder_depth=8, decoder_heads=16),
}


MOST_PIXELS, MOST_UNITS = 16_384, 65_536
"""The longest side of an image; the largest width, depth and number of heads. More is refused before it is computed with."""


class ObjectiveInfo(NamedTuple):
    """An objective as far as settings are concerned.

    Attributes:
        sections: those that only objectives read, and this one does.
        labels: whether it learns from labels.
    """

    sections: tuple[str, ...]
    labels: bool = False


OBJECTIVES = {
    "reconstruct": ObjectiveInfo(("mask", "reconstruct")),
    "classify": ObjectiveInfo(("classify",), labels=True),
}
"""The registry of objectives; `vit.training.objectives` has a module of the same name for each."""


class ConfigError(UserError, ValueError):
    """A setting that cannot be used; the message is one line: the key, the value, what is allowed."""


def _require(ok: bool, key: str, value: object, allowed: str) -> None:
    if not ok:
        raise ConfigError(f"{key}: {_plain(value)!r} cannot be used; {allowed}")


class Range(NamedTuple):
    """The numbers a setting may have: how a message says it, and whether a number is one of them.

    (jsonargparse's own number types say `v>=0`, and would not check a section that is made in Python.)
    """

    allowed: str
    holds: Callable[[float], bool]


Positive = Annotated[int, Range("1 or more", lambda n: n >= 1)]
NonNegative = Annotated[int, Range("0 or more", lambda n: n >= 0)]
PositiveFloat = Annotated[float, Range("a positive number", lambda x: x > 0)]
NonNegativeFloat = Annotated[float, Range("0 or more", lambda x: x >= 0)]
Share = Annotated[float, Range("above 0 and at most 1", lambda x: 0 < x <= 1)]
Probability = Annotated[float, Range("a number from 0 to 1", lambda x: 0 <= x <= 1)]
BelowOne = Annotated[float, Range("from 0 to below 1", lambda x: 0 <= x < 1)]


class Section:
    """Checks all settings when it is made: null only where allowed, finite numbers, and the range that the type states.

    Options of commands are checked too; they have no section, and are named as on the command line.
    """

    section = ""

    def __init_subclass__(cls, section: str = "") -> None:
        cls.section = section

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for item in fields(self):  # type: ignore[arg-type]
            key = f"{self.section}.{item.name}" if self.section else f"--{item.name.replace('_', '-')}"
            value = getattr(self, item.name)
            allowed = "leave the key out to have its default"
            _require(value is not None or "None" in str(item.type), key, value, allowed)
            numbers = value if isinstance(value, tuple | list) else () if value is None else (value,)
            for number in numbers:
                finite = not isinstance(number, float) or math.isfinite(number)
                _require(finite, key, number, "a finite number is needed")
                countable = not isinstance(number, int) or number < 2**64
                _require(countable, key, number, "a whole number below 2**64 is needed")
            hint = hints[item.name]
            for part in (hint, *get_args(hint)):  # a type, those of a union, or that of a list
                for allowed_range in get_args(part)[1:]:
                    for number in numbers if isinstance(allowed_range, Range) else ():
                        _require(allowed_range.holds(number), key, number, allowed_range.allowed)


@dataclass(frozen=True)
class DataConfig(Section, section="data"):
    """Which images: where they come from, and which of them are used."""

    source: Source = "cifar10"
    """what to train on: CIFAR, a folder of your own images, the built-in Scenes, a Hugging Face data set, or (dataset) what
    vit.fit is given"""
    root: str = "data"
    """folder of the data set: the one that holds (or gets) CIFAR's archive, or your folder of images; source hf: the data
    set's name on the hub, or a folder of save_to_disk"""
    name: str = ""
    """what outputs call the data; empty: the source's own name"""
    download: bool = True
    """download CIFAR when it is not in data.root; source hf: what is not in its cache"""
    fallback: Literal["stop", "scenes"] = "stop"
    """when CIFAR is neither on disk nor to be downloaded: stop, or warn and train on Scenes"""
    limit: NonNegative = 0
    """use only this many training images and at most as many test images, spread evenly; 0: all"""
    val_size: NonNegative = 0
    """number of training images held out for validation, to choose settings by; the test images stay unseen; 0: none"""
    labels: Share = 1.0
    """classification: share of the training images whose labels are known, and which are trained on"""
    subset_seed: NonNegative = 0
    """seed that draws val_size and labels, of each class its share"""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """an image of a folder or data set that cannot be read: stop with its name, or leave it out and list it"""
    cache: str = "~/.cache/vit-patch-trainer"
    """folder for the decoded images of a folder or data set; they need not fit in memory"""


def named_data(data: str, root: str = DataConfig.root) -> dict[str, Any]:
    """Return source and root, as in `DataConfig`, of what every command takes as data.

    Args:
        data: a name of BUILT_IN, a folder of images, or hf: and the name of a Hugging Face data set.
        root: folder that holds (or gets) the archive of a data set with a name.

    Raises:
        ConfigError: it is neither.
    """
    if data in BUILT_IN:
        return {"source": data, "root": root}
    if data.startswith("hf:"):
        return {"source": "hf", "root": data.removeprefix("hf:")}
    if not os.path.isdir(os.path.expanduser(data)):
        raise ConfigError(f"--data: {data!r} is neither {', '.join(BUILT_IN)} nor a folder of images")
    return {"source": "folder", "root": data}


@dataclass(frozen=True)
class AugmentConfig(Section, section="augment"):
    """How the training images are varied, each by draws of its own."""

    crop: Literal["resized", "pad", "none"] = "resized"
    """a random part resized to the image, or the image shifted within a padded border, or neither"""
    crop_scale: tuple[float, float] = (0.2, 1.0)
    """crop resized: smallest and largest share of the area"""
    crop_ratio: tuple[float, float] = (0.75, 1.3333333333333333)
    """crop resized: smallest and largest width / height, where 1 has the shape of model.image_size"""
    crop_padding: NonNegative = 4
    """crop pad: width of the border in pixels of the model's input"""
    flip: Probability = 0.5
    """probability of a horizontal flip"""
    views: Positive = 1
    """how often each image of a batch comes, every time varied and masked by draws of its own"""
    color_jitter: BelowOne = 0.0
    """most by which brightness, contrast and saturation of a view change, of 8 views in 10 (SimCLR); 0.4, say; 0: off"""
    grayscale: Probability = 0.0
    """probability that a view is grey"""
    rand_augment: Annotated[int, Range("0 (off) to 15 operations", lambda n: 0 <= n <= 15)] = 0
    """RandAugment: operations drawn per image, each applied half of the time; 2 for fine-tuning, 0: off"""
    rand_magnitude: Annotated[float, Range("from 0 to 10", lambda x: 0 <= x <= 10)] = 9.0
    """their mean strength, out of 10"""
    erasing: Probability = 0.0
    """probability of covering a random rectangle with one colour (random erasing)"""
    shuffle: Literal["none", "within", "across"] = "none"
    """a control for what is learned from patches that belong together: patches change places within each image, or keep
    their places and change images across the batch"""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = scale = self.crop_scale
        _require(0 < low <= high <= 1, "augment.crop_scale", scale, "two shares, 0 < low <= high <= 1")
        low, high = ratio = self.crop_ratio
        _require(0 < low <= high, "augment.crop_ratio", ratio, "two ratios, 0 < low <= high")


@dataclass(frozen=True)
class ViTConfig:
    """The architecture of a vision transformer: what `vit.encoder` builds, and what config.json says of a checkpoint."""

    image_size: tuple[int, int] = (32, 32)
    """(H, W) in pixels"""
    patch_size: tuple[int, int] = (4, 4)
    """(p, q) in pixels; divides the image"""
    channels: int = 3
    """of the images"""
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
    """probability of leaving out the encoder's last residual branch, growing linearly from 0 at the first"""
    global_pool: Literal["avg", "token"] = "avg"
    """what a classifier reads: the mean of the patches, or the class token"""
    fc_norm: bool = False
    """put the final norm after the pooling instead of before it (timm's name; MAE's fine-tuning does so)"""
    num_classes: int = 0
    """width of the classifier's head; 0: none"""
    qk_norm: bool = False
    """normalise queries and keys, head by head (Dehghani et al. 2023)"""
    mlp: Literal["gelu", "swiglu"] = "gelu"
    """kind of MLP: with a GELU, or gated (SwiGLU, Shazeer 2020)"""
    norm_eps: Annotated[float, Range("above 0 and below 1", lambda x: 0 < x < 1)] = 1e-6
    """eps of all norms: 1e-6 in timm, MAE and DINO, often 1e-12 in transformers; torch's 1e-5 moves features by 1e-4"""


@dataclass(frozen=True)
class DecoderConfig:
    """The architecture of a masked autoencoder's decoder: fields as in `ViTConfig`; what is None is the encoder's."""

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
        """Fill in what is None from `encoder`."""
        missing = [item.name for item in fields(self) if getattr(self, item.name) is None]
        return replace(self, **{name: getattr(encoder, name) for name in missing})

    def blocks(self, encoder: ViTConfig) -> ViTConfig:
        """Return the configuration of the decoder's blocks: the encoder's, with the decoder's own settings."""
        own = asdict(self.complete(encoder))
        return replace(encoder, embed_dim=own.pop("dim"), layer_scale=None, drop_path=0.0, **own)


@dataclass(frozen=True)
class ModelConfig(ViTConfig, Section, section="model"):
    """The encoder, the decoder, and which of their parts learn."""

    init: str = ""
    """checkpoint to begin with: whatever `vit.checkpoints.load_model` reads; empty: random weights"""
    preset: Literal["micro", "tiny", "small", "base"] = "tiny"
    """width, depth and heads of encoder and decoder, as far as they are not given one by one"""
    image_size: int | tuple[int, int] = 32  # type: ignore[assignment]
    """pixels: one number for squares, or [height, width]; images of another size are cut to that shape and resized"""
    patch_size: int | tuple[int, int] = 4  # type: ignore[assignment]
    """pixels: one number for squares, or [height, width]; divides the image"""
    channels: ClassVar[int] = 3  # type: ignore[misc]  # the data decides, so it is no setting
    num_classes: ClassVar[int] = 0  # type: ignore[misc]  # likewise
    embed_dim: int | None = None  # type: ignore[assignment]
    """width of the encoder's tokens, a multiple of num_heads; null: the preset's"""
    depth: int | None = None  # type: ignore[assignment]
    """number of the encoder's blocks; null: the preset's"""
    num_heads: int | None = None  # type: ignore[assignment]
    """attention heads per block; null: the preset's"""
    pos_embed: Literal["learned", "sincos"] = "sincos"
    """the encoder's positions: a learned table, or the fixed 2-D sin-cos one (the decoder's are always fixed)"""
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
            _require(fits, f"model.{key}", getattr(self, key), f"a positive number of pixels, at most {MOST_PIXELS:,}")
        for axis, name in enumerate(("height", "width")):
            image, patch = self.image_size_2d[axis], self.patch_size_2d[axis]
            divisors = ", ".join(str(n) for n in range(1, image + 1) if image % n == 0)
            allowed = f"it must divide the image's {name} of {image} (model.image_size): {divisors}"
            _require(image % patch == 0, "model.patch_size", self.patch_size, allowed)
        for key, value in self.dimensions.items():
            _require(1 <= value <= MOST_UNITS, f"model.{key}", value, f"a positive number, at most {MOST_UNITS:,}")
        for dim, heads in (("embed_dim", "num_heads"), ("decoder_dim", "decoder_heads")):
            value, count = self.dimensions[dim], self.dimensions[heads]
            _require(value % count == 0, f"model.{dim}", value, f"a multiple of model.{heads}, which is {count}")
            fits = value % 4 == 0 or (dim == "embed_dim" and self.pos_embed != "sincos")
            _require(fits, f"model.{dim}", value, "a multiple of 4, for its sin-cos positions")
        _require(self.mlp_ratio * self.dimensions["embed_dim"] >= 1, "model.mlp_ratio", self.mlp_ratio, "positive")
        token = self.global_pool == "token" and not self.class_token
        _require(not token, "model.global_pool", self.global_pool, "there is no class token (model.class_token)")

    @property
    def image_size_2d(self) -> tuple[int, int]:
        """(H, W) in pixels."""
        return _pair(self.image_size)

    @property
    def patch_size_2d(self) -> tuple[int, int]:
        """(p, q) in pixels."""
        return _pair(self.patch_size)

    @property
    def grid_size(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        (height, width), (p, q) = self.image_size_2d, self.patch_size_2d
        return height // p, width // q

    @property
    def dimensions(self) -> dict[str, int]:
        """Width, depth and heads of encoder and decoder: those given, else the preset's."""
        return {
            key: preset if (given := getattr(self, key)) is None else given
            for key, preset in PRESETS[self.preset].items()
        }

    def vit_config(self, **derived: Any) -> ViTConfig:
        """Return the encoder's architecture; `derived` is what the data decides: channels, num_classes."""
        settings = {item.name: getattr(self, item.name) for item in fields(ViTConfig)}
        sizes = {"image_size": self.image_size_2d, "patch_size": self.patch_size_2d}
        widths = {key: self.dimensions[key] for key in ("embed_dim", "depth", "num_heads")}
        return ViTConfig(**settings | sizes | widths | derived)

    def decoder_config(self) -> DecoderConfig:
        """Return the decoder's architecture; its blocks are of the encoder's kind."""
        size = self.dimensions
        return DecoderConfig(size["decoder_dim"], size["decoder_depth"], size["decoder_heads"])


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


@dataclass(frozen=True)
class MaskConfig(Section, section="mask"):
    """Pretraining: which patches are hidden."""

    kind: Literal["random", "block", "grid"] = "random"
    """each patch by itself, one rectangle per image, or a regular pattern"""
    ratio: Annotated[float, Range("above 0 (nothing hidden) and below 1 (all hidden)", lambda x: 0 < x < 1)] = 0.75
    """share of the patches that is hidden, above 0 and below 1; rounded, at least one is hidden and one seen"""


@dataclass(frozen=True)
class ReconstructConfig(Section, section="reconstruct"):
    """Objective reconstruct: what is predicted of the hidden patches."""

    norm_pix_loss: bool = True
    """predict each patch normalised by its own mean and deviation, instead of its colours"""
    contrast: NonNegativeFloat = 0.0
    """weight of a second loss that finds the other view of an image among those of the batch (CAN); 0: off"""
    temperature: PositiveFloat = 0.2
    """contrast: what the cosines are divided by; lower ones look harder at the nearest"""


@dataclass(frozen=True)
class ClassifyConfig(Section, section="classify"):
    """Objective classify, of a pretrained encoder or from scratch: what is done to images and labels in training."""

    label_smoothing: BelowOne = 0.0
    """share of each label that is spread over all classes"""
    mixup: NonNegativeFloat = 0.0
    """alpha of Mixup, which blends two images and their labels; 0: off"""
    cutmix: NonNegativeFloat = 0.0
    """alpha of CutMix, which puts a rectangle of one image into another; 0: off; with both, each for half of the images"""
    drop_patches: BelowOne = 0.0
    """share of the patches that are left out of each training image (PatchDropout): cheaper steps; tests see all"""
    whole_epochs: NonNegativeFloat = 0.0
    """epochs at the end in which none are left out, so that the model has seen whole images"""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = self.whole_epochs
        _require(not whole or self.drop_patches > 0, "classify.whole_epochs", whole, "it goes with drop_patches")


@dataclass(frozen=True)
class OptimConfig(Section, section="optim"):
    """The optimizer and its schedule: linear warm-up, then a cosine."""

    name: Literal["adamw", "muon"] = "adamw"
    """muon: the blocks' matrices by orthogonalised momentum, all else by AdamW, at AdamW's learning rate"""
    blr: PositiveFloat = 1.5e-4
    """base learning rate, for 256 images a step: lr = blr x train.batch_size / 256"""
    min_lr: NonNegativeFloat = 0.0
    """learning rate at the end"""
    warmup_epochs: NonNegativeFloat = 1.0
    """length of the warm-up in epochs"""
    weight_decay: NonNegativeFloat = 0.05
    """decoupled weight decay of the matrices; norms, biases, tokens and positions have none"""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's averaging of the gradient and of its square"""
    layer_decay: Share = 1.0
    """factor of the learning rate from each block to the one before it, for fine-tuning; 1: all learn alike"""
    ema: BelowOne = 0.0
    """also average the weights over the steps, with this decay (0.9995, say), and keep the average; 0: off"""
    clip_grad: NonNegativeFloat = 1.0
    """largest gradient norm, longer ones are shortened to it; 0: off"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(all(0 <= b < 1 for b in self.betas), "optim.betas", self.betas, "two numbers from 0 to below 1")


@dataclass(frozen=True)
class TrainConfig(Section, section="train"):
    """What is learned, and how long."""

    objective: Literal[*OBJECTIVES] = "reconstruct"  # type: ignore[valid-type]
    """fill in hidden patches (pretraining), or name the class of whole images (fine-tuning, or from scratch)"""
    epochs: Positive = 100
    """how often every training image is seen"""
    batch_size: Positive = 256
    """images per step, of all processes together; the last batch of an epoch has the rest"""
    seed: Annotated[int, Range("0 or more, and below 2**64", lambda n: 0 <= n < 2**64)] = 0
    """the one number behind weights, order, augmentation and masks"""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """number format of the matrix products; auto: bf16 where the device computes it, else fp32"""


@dataclass(frozen=True)
class RunConfig(Section, section="run"):
    """Where a run computes and what it writes: nothing here changes the result but for its last bits."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """where to compute; auto: cuda, then mps, then cpu"""
    threads: NonNegative = 0
    """threads on the CPU, of each process; 0: torch's choice. Another number may change the last bits of a run"""
    grad_accum_steps: NonNegative = 0
    """parts in which a process computes its batch, to save memory; the gradient is the whole batch's; 0: chosen by length"""
    attention: Literal["auto", "math", "flash"] = "auto"
    """how attention is computed: math, two products and a softmax; flash, torch's fused kernel; or the faster one here"""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile: auto compiles on a GPU when the run is long enough for it to pay"""
    save_every: Positive = 500
    """steps between two checkpoints"""
    log_every: NonNegative = 0
    """steps between two lines of metrics.jsonl; 0: a fiftieth of the run's, from 1 to 10"""
    snapshots: NonNegative = 0
    """moments of the run whose weights are kept for good, in half precision, the first more often: for films and sliders"""
    dynamics_every: NonNegative = 0
    """steps between two records of gradient and movement of every weight matrix, and at 1, 2, 4, 8, ... before; 0: off"""
    val_every: NonNegative = 0
    """epochs between two measurements on the validation images (data.val_size), for the curves; 0: only at the end"""
    knn_images: NonNegative = 50_000
    """pretraining: images that the nearest neighbours are searched in whenever it is measured, spread evenly; 0: all"""
    test_flip: bool = False
    """classification: also measure on images and their mirror images together, reported apart"""
    track: list[Literal["tensorboard", "wandb", "mlflow"]] = field(default_factory=list)
    """also write the metrics to TensorBoard, Weights & Biases or MLflow; each is an extra: pip install -e '.[wandb]'"""

    def steps_between_lines(self, total_steps: int) -> int:
        """Return `log_every`, or what it is chosen as for a run of so many steps."""
        return self.log_every or min(max(total_steps // 50, 1), 10)


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

        # what must fit the image, the length of the run, and the batch
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
        alone = "it compares a batch's images with each other: leave run.grad_accum_steps out"
        require(not contrast or run.grad_accum_steps <= 1, "reconstruct.contrast", alone)
        pairs = "reconstruct.contrast needs two views of each image"
        require(not contrast or self.augment.views == 2, "augment.views", pairs)

        # what would do nothing, or use the test images too early
        once = "the test images are looked at once, at the end; hold some training images out with data.val_size"
        require(not run.val_every or data.val_size > 0, "run.val_every", once)
        for owner, info in OBJECTIVES.items():
            for section in [name for name in info.sections if name not in objective.sections]:
                for item in fields(getattr(self, section)):
                    unset = getattr(getattr(self, section), item.name) == item.default
                    require(unset, f"{section}.{item.name}", f"it is of train.objective {owner}")
        fewer = "pretraining needs none; data.limit takes fewer images"
        require(data.labels == 1 or objective.labels, "data.labels", fewer)
        require(self.augment.views == 1 or not objective.labels, "augment.views", "several views are for pretraining")
        require(not run.test_flip or objective.labels, "run.test_flip", "it is of train.objective classify")

    @property
    def images_per_step(self) -> int:
        """Images that a step computes, of all processes together: each view counts."""
        return self.train.batch_size * self.augment.views

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists, as they stand in YAML and JSON."""
        return {name: {k: _plain(v) for k, v in section.items()} for name, section in asdict(self).items()}

    def deciding(self) -> dict[str, Any]:
        """The settings that decide the result, by "section.key"; which images are used, their content hash says."""
        return flat_settings({key: section for key, section in self.to_dict().items() if key not in ("data", "run")})

    def conflicts(self, before: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
        """Yield the settings by which a run that began with `before` (of `to_dict`) would become another run.

        Yields:
            key, value before, value now.
        """
        saved = flat_settings(before)
        for key, now in self.deciding().items():
            if (old := saved.get(key, now)) != now:
                yield key, old, now


def flat_settings(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return settings in sections by "section.key"."""
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
