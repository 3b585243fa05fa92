"""The job to time: one training step, the same for every contestant. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Job:
    """A contestant and its step.

    Attributes:
        objective: pretraining, or fine-tuning on whole images with every augmentation.
        preset: size of the encoder.
        image_size: pixels.
        mask_ratio: fraction of the patches to mask.
        decoder_dim, decoder_depth, decoder_heads: width, layers and heads of the decoder.
        class_token: a class token in our model, as in transformers'; vit-pytorch's has none.
        device: "auto", "cpu", "cuda" or "mps".
        compile: torch.compile for ours: "auto", "on" or "off".
        threads: CPU threads; 0: torch's choice.
        contestant: "ours", a peer's name, or "ceiling": the matrix products of our step alone.
        patch: patch size in pixels.
        precision: "auto", "bf16", "fp16" or "fp32".
        batch: images per step.
        with_data: ours only: uint8 images are drawn, augmented and masked anew at each step, as in
            a run.
        images: number of images in that data set.
        allocator: ours only: whether freed memory is kept.
        fused_adamw: ours only: whether AdamW is one kernel.
        run: ours only: settings of `RunConfig`, attention and grad_accum_steps.
    """

    objective: str = "reconstruct"
    preset: str = "tiny"
    image_size: int = 32
    mask_ratio: float = 0.75
    decoder_dim: int = 192
    decoder_depth: int = 4
    decoder_heads: int = 3
    class_token: bool = True
    device: str = "auto"
    compile: str = "off"
    threads: int = 0
    contestant: str = "ours"
    patch: int = 4
    precision: str = "auto"
    batch: int = 256
    with_data: bool = False
    images: int = 4096
    allocator: bool = True
    fused_adamw: bool = True
    run: dict[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> bool:
        """Whether the step learns from labels."""
        return OBJECTIVES[self.objective].labels

    def config(self) -> Config:
        """Return the settings with which train.py would run this job.

        Raises:
            ConfigError: they cannot be used.
        """
        more: dict[str, Any] = {"mask": MaskConfig(ratio=self.mask_ratio)}
        if self.labels:
            more = {
                "augment": AugmentConfig(crop="pad", rand_augment=2),
                "classify": ClassifyConfig(label_smoothing=0.1, mixup=0.8, cutmix=1.0),
            }
        names = ["preset", "image_size", "class_token"]
        names += ["decoder_dim", "decoder_depth", "decoder_heads"]
        return Config(
            data=DataConfig(source="scenes"),
            model=ModelConfig(
                patch_size=(self.patch, self.patch), **{name: getattr(self, name) for name in names}
            ),
            train=TrainConfig(
                objective=self.objective,
                # more than anybody times
                epochs=100_000,
                batch_size=self.batch,
                precision=self.precision,  # type: ignore[arg-type]
            ),
            run=RunConfig(
                device=self.device,  # type: ignore[arg-type]
                threads=self.threads,
                compile=self.compile,  # type: ignore[arg-type]
                **self.run,
            ),
            **more,
        )

    def __str__(self) -> str:
        size = self.config().model.filled
        encoder = f"encoder {size['embed_dim']} x {size['depth']} x {size['num_heads']}"
        work = f"decoder {self.decoder_dim} x {self.decoder_depth}, {self.mask_ratio:.0%} masked"
        if self.labels:
            work = "classification of whole images, every augmentation"
        if not self.class_token:
            encoder += ", ours without class token"
        images = f"{self.image_size} x {self.image_size} pixels"
        return (
            f"patch {self.patch}, {self.precision}, batch {self.batch}: {images}, {encoder}, {work}"
        )
