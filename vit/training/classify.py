"""Classify images: cross-entropy with the labels, which Mixup and CutMix may have blended."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.config import OBJECTIVES, Config, ViTConfig
from vit.data import Dataset
from vit.data.augment import mixed_labels
from vit.data.draws import Draws
from vit.encoder import VisionTransformer
from vit.errors import DataError, shortened
from vit.mae import Model
from vit.masking import mask_from_noise, num_keep
from vit.training.objectives import Objective
from vit.weights import match_classes


class Classify(Objective):
    """Predict the class of whole images, or of some of their patches (`classify.drop_patches`)."""

    model: VisionTransformer
    info = OBJECTIVES["classify"]
    measures = ("head",)

    def __init__(self, model: VisionTransformer, config: Config, data: Dataset):
        super().__init__(model, config, data)
        settings = config.classify
        names = data.train.class_names
        self.classes = len(names)
        self.smoothing = settings.label_smoothing

        # some patches are dropped in every step but those of the last epochs
        per_epoch = config.steps_per_epoch(len(data.train))
        self.whole_from = round((config.train.epochs - settings.whole_epochs) * per_epoch)
        patches = math.prod(config.model.grid_size)
        self.keep = patches
        if settings.drop_patches:
            self.keep = num_keep(patches, settings.drop_patches)
        longest = self.keep
        if settings.whole_epochs:
            longest = patches
        self.lengths = {"encoder": longest + config.model.class_token + config.model.registers}

        # with few labels, classes may have none
        absent = sorted(set(names) - set(data.train.label_names))
        if absent:
            self.notes.append(f"no training images of {shortened(', '.join(absent))}")

    @classmethod
    def encoder_settings(cls, config: Config, data: Dataset) -> dict[str, Any]:
        # with one class every prediction is right
        if not data.has_classes:
            raise DataError(
                "train.objective",
                f"{data.name} has no two classes to tell apart; "
                "a folder has them as <class>/<image>",
            )
        return {"num_classes": len(data.train.class_names)}

    @classmethod
    def build_model(cls, config: Config, encoder: ViTConfig) -> Model:
        return VisionTransformer(encoder)

    @classmethod
    def take_over(cls, model: Model, loaded: Model, data: Dataset) -> str:
        """Copy the head, in the data's order, if its classes and the pooled token are the same."""
        old = loaded.encoder.config
        new = model.encoder.config
        # another pooled token would feed the head with features that it never saw
        order = match_classes(loaded.origin.class_names, data.train.class_names)
        fits = old.num_classes == new.num_classes and old.global_pool == new.global_pool
        if not fits or order is None:
            return "its encoder is kept, with a new head"
        # a row per class
        head = {name: value[order] for name, value in loaded.encoder.head.state_dict().items()}
        model.encoder.head.load_state_dict(head)
        note = "its encoder is kept, with its head"
        if not loaded.origin.class_names:
            note += ", whose classes have no names: they are taken by their numbers"
        return note

    def is_masked(self, step: int) -> bool:
        return step < self.whole_from and self.config.classify.drop_patches > 0

    def targets(self, labels: Tensor, draws: Draws) -> Tensor:
        """Return each image's distribution over the classes: float32 (B, K)."""
        image_labels = labels[draws.indices]
        # without mixing, each image is its own partner
        partner_labels = image_labels
        share = torch.ones(len(image_labels))
        if draws.partner is not None and draws.share is not None:
            partner_labels = labels[draws.partner]
            share = draws.share
        return mixed_labels(image_labels, partner_labels, share, self.classes, self.smoothing)

    def forward(
        self, images: Tensor, targets: Tensor | None, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross-entropy and the top-1 accuracy."""
        assert targets is not None
        mask = None
        if draws.mask_noise is not None:
            mask = mask_from_noise(draws.mask_noise, self.keep)
        tokens = self.model(images, mask, draws.drop_path)
        logits = self.model.forward_head(tokens).float()  # (B, K)
        is_right = logits.argmax(1) == targets.argmax(1)
        return F.cross_entropy(logits, targets), {"train_accuracy": is_right.float().mean()}


OBJECTIVE = Classify
