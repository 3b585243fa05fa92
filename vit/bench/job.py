"""The job that is timed: one training step, the same for every contestant, and what it costs in arithmetic."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from vit.config import (
    OBJECTIVES,
    AugmentConfig,
    ClassifyConfig,
    Config,
    DataConfig,
    MaskConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from vit.masking import num_keep


@dataclass(frozen=True)
class Job:
    """A contestant and the step it makes.

    Attributes:
        contestant: "ours", "vit-pytorch", "transformers", "transformers eager", or "ceiling": the products alone.
        objective: "reconstruct", or ours only: "classify", on whole images with every augmentation on.
        patch: patch size in pixels.
        precision: "auto", "bf16" or "fp32".
        batch: images a step.
        image_size: pixels.
        mask_ratio: share of hidden patches.
        preset: of `vit.config.PRESETS`, for the encoder.
        decoder_dim, decoder_depth, decoder_heads: of the decoder.
        embed_dim, depth: of the encoder, instead of the preset's.
        with_data: ours only: uint8 images are drawn, augmented and masked anew at each step, as in a run.
        images: number of images in that data set.
        allocator: ours only: whether freed memory is kept.
        fused_adamw: ours only: whether AdamW is one kernel.
        run: more of `RunConfig`: device and threads; ours only: attention, grad_accum_steps, compile.
    """

    contestant: str = "ours"
    objective: str = "reconstruct"
    patch: int = 4
    precision: str = "auto"
    batch: int = 256
    image_size: int = 32
    mask_ratio: float = 0.75
    preset: str = "tiny"
    decoder_dim: int = 192
    decoder_depth: int = 4
    decoder_heads: int = 3
    embed_dim: int | None = None
    depth: int | None = None
    with_data: bool = False
    images: int = 4096
    allocator: bool = True
    fused_adamw: bool = True
    run: dict[str, Any] = field(default_factory=dict)

    def config(self) -> Config:
        """The settings with which train.py would run this job.

        Raises:
            ConfigError: they cannot be used.
        """
        labels = OBJECTIVES[self.objective].labels
        size = ModelConfig(
            preset=self.preset,  # type: ignore[arg-type]
            image_size=self.image_size,
            patch_size=self.patch,
            embed_dim=self.embed_dim,
            depth=self.depth,
            decoder_dim=self.decoder_dim,
            decoder_depth=self.decoder_depth,
            decoder_heads=self.decoder_heads,
        )
        return Config(
            data=DataConfig(source="scenes"),
            augment=AugmentConfig(crop="pad", rand_augment=2, erasing=0.25) if labels else AugmentConfig(),
            model=size,
            mask=MaskConfig() if labels else MaskConfig(ratio=self.mask_ratio),
            classify=ClassifyConfig(label_smoothing=0.1, mixup=0.8, cutmix=1.0) if labels else ClassifyConfig(),
            train=TrainConfig(objective=self.objective, batch_size=self.batch, precision=self.precision),  # type: ignore[arg-type]
            run=RunConfig(**self.run),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they travel to a worker."""
        return asdict(self)


@dataclass(frozen=True)
class Linear:
    """A linear layer of the model: how often it stands there, and what an image sends through it.

    Attributes:
        count: layers of this shape.
        tokens: of one image.
        inputs, outputs: widths.
        first: whether its input needs no gradient.
    """

    count: int
    tokens: int
    inputs: int
    outputs: int
    first: bool = False

    @property
    def flops(self) -> int:
        """Forward and backward, of all `count` layers, for one image; a multiply-add counts as two."""
        return 2 * self.count * self.tokens * self.inputs * self.outputs * (2 if self.first else 3)


CLASSES = 10  # of Scenes


def _stacks(config: Config) -> list[tuple[int, int, int]]:
    """Tokens, depth and width of the encoder, and of the decoder where there is one."""
    model, size = config.model, config.model.dimensions
    patches, prefix = math.prod(model.grid_size), model.class_token + model.registers
    if OBJECTIVES[config.train.objective].labels:
        return [(patches + prefix, size["depth"], size["embed_dim"])]
    visible = num_keep(patches, config.mask.ratio)
    return [
        (visible + prefix, size["depth"], size["embed_dim"]),
        (patches + prefix, size["decoder_depth"], size["decoder_dim"]),
    ]


def linears(config: Config) -> list[Linear]:
    """All matrix products with weights in a step."""
    model, stacks = config.model, _stacks(config)
    prefix = model.class_token + model.registers
    values = 3 * math.prod(model.patch_size_2d)
    tokens, _, width = stacks[0]
    found = [Linear(1, tokens - prefix, values, width, first=True)]
    for length, depth, dim in stacks:
        hidden = round(dim * model.mlp_ratio)
        found += [Linear(depth, length, *shape) for shape in ((dim, 3 * dim), (dim, dim), (dim, hidden), (hidden, dim))]
    if OBJECTIVES[config.train.objective].labels:
        return [*found, Linear(1, 1, width, CLASSES)]
    whole, _, decoder_width = stacks[1]
    found.append(Linear(1, tokens, width, decoder_width))
    found.append(Linear(1, whole - prefix, decoder_width, values))
    return found


def attention_flops(config: Config) -> int:
    """Both products of attention, forward and backward, for one image."""
    return sum(3 * depth * 4 * tokens * tokens * dim for tokens, depth, dim in _stacks(config))


def flops_per_image(config: Config) -> int:
    """All matrix products of a step, forward and backward, for one image; a multiply-add counts as two."""
    return sum(layer.flops for layer in linears(config)) + attention_flops(config)
