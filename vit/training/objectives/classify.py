"""Classify images: cross-entropy with the labels, which Mixup and CutMix may have blended."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.config import Config, ViTConfig
from vit.data import Dataset
from vit.data.augment import mixed_labels
from vit.data.cache import NAMED_CLASSES
from vit.data.draws import Draws, steps_per_epoch
from vit.encoder import VisionTransformer
from vit.errors import DataError
from vit.mae import Model
from vit.masking import mask_from_noise, num_keep
from vit.training.objectives import Objective


class Classify(Objective):
    """Predict the class of whole images, or of some of their patches (`classify.drop_patches`)."""

    model: VisionTransformer
    measures = ("head",)

    def __init__(self, model: VisionTransformer, config: Config, data: Dataset):
        super().__init__(model, config, data)
        settings, names = config.classify, data.train.class_names
        self.classes = len(names)
        per_epoch = steps_per_epoch(len(data.train), config.train.batch_size)
        self.whole_from = round((config.train.epochs - settings.whole_epochs) * per_epoch)
        patches = math.prod(config.model.grid_size)
        self.keep = num_keep(patches, settings.drop_patches) if settings.drop_patches else patches
        longest = patches if settings.whole_epochs else self.keep
        self.lengths = {"encoder": longest + config.model.class_token + config.model.registers}
        if absent := {*names} - {names[number] for number in data.train.labels.tolist()}:
            few, more = sorted(absent)[:NAMED_CLASSES], len(absent) - NAMED_CLASSES
            self.notes.append(
                f"no training images of {', '.join(few)}{f' and {more:,} other classes' if more > 0 else ''}"
            )

    @classmethod
    def encoder_settings(cls, config: Config, data: Dataset) -> dict[str, Any]:
        classes, has = data.train.class_names, f"train.objective: {data.name} has"
        if len(classes) == 1:
            raise DataError(f"{has} one class, {classes[0]!r}: there is nothing to distinguish")
        if not (data.train.labelled and data.test.labelled):
            raise DataError(f"{has} no labels to learn; a folder has them as <class>/<image>")
        return {"num_classes": len(classes)}

    @classmethod
    def build_model(cls, config: Config, encoder: ViTConfig) -> Model:
        return VisionTransformer(encoder)

    @classmethod
    def take_over(cls, model: Model, loaded: Model, data: Dataset) -> str:
        """Copy the head if its classes have the same names and it reads the same pooled token."""
        old, new = loaded.encoder.config, model.encoder.config
        same = (old.num_classes, old.global_pool) == (new.num_classes, new.global_pool)
        fits = same and loaded.origin.class_names == data.train.class_names
        if fits:
            model.encoder.head.load_state_dict(loaded.encoder.head.state_dict())
        return f"its encoder is kept, with {'its' if fits else 'a new'} head"

    def mask_ratio(self, step: int) -> float:
        return self.config.classify.drop_patches if step < self.whole_from else 0.0

    def targets(self, labels: Tensor, draws: Draws) -> Tensor:
        """Return each image's distribution over the classes: float32 (B, K)."""
        own = labels[draws.indices]
        partners, share = own, torch.ones(len(own))
        if draws.partner is not None and draws.share is not None:
            partners, share = labels[draws.partner], draws.share
        return mixed_labels(
            own, partners, share, self.classes, self.config.classify.label_smoothing
        )

    def forward(
        self, images: Tensor, targets: Tensor | None, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross-entropy and the top-1 accuracy."""
        mask = None if draws.mask_noise is None else mask_from_noise(draws.mask_noise, self.keep)
        assert targets is not None
        logits = self.model.forward_head(
            self.model(images, mask, draws.drop_path)
        ).float()  # (B, K)
        accuracy = (logits.argmax(1) == targets.argmax(1)).float().mean()
        return F.cross_entropy(logits, targets), {"train_accuracy": accuracy}


OBJECTIVE = Classify
