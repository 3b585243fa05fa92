"""Classify images: cross-entropy with the labels, which Mixup and CutMix may have blended.

Images without labels get the guesses of an averaged model, where it is sure.
"""

from __future__ import annotations

import math
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.config import OBJECTIVES, Config, ViTConfig
from vit.data import Dataset
from vit.data.augment import mixed_labels
from vit.data.cache import NAMED_CLASSES
from vit.data.draws import Draws
from vit.data.images import match_classes
from vit.encoder import VisionTransformer
from vit.errors import DataError
from vit.mae import Model
from vit.masking import mask_from_noise, num_keep
from vit.training.objectives import Objective
from vit.training.optimizer import AveragedWeights

TEACHER_DECAY = 0.998
"""The largest, of the averaged weights that guess labels: they forget half in 350 steps."""
CONFIDENCE = 0.7
"""The probability from which a guess is learned."""


class Classify(Objective):
    """Predict the class of whole images, or of some of their patches (`classify.drop_patches`).

    Images without labels are learned as by Semi-ViT (Cai et al. 2022), which averages the weights
    as Mean Teacher does (Tarvainen & Valpola 2017) and takes sure guesses as labels as FixMatch
    does (Sohn et al. 2020): the average sees the whole image; the model, some of its patches
    (`classify.drop_patches`), but for the last epochs.

    Attributes:
        teacher: the averaged model, or None if all training images have labels.
    """

    model: VisionTransformer
    info = OBJECTIVES["classify"]
    measures = ("head",)

    def __init__(self, model: VisionTransformer, config: Config, data: Dataset):
        super().__init__(model, config, data)
        settings = config.classify
        names = data.train.class_names
        self.classes = len(names)

        # some patches are dropped in every step but those of the last epochs
        per_epoch = config.steps_per_epoch(data.visit_count)
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
        labels = data.train.labels
        has_label = labels >= 0
        present = {names[label] for label in labels[has_label].tolist()}
        absent = sorted(set(names) - present)
        if absent:
            kind = "training images"
            if not has_label.all():
                kind = "labelled training images"
            note = f"no {kind} of {', '.join(absent[:NAMED_CLASSES])}"
            if len(absent) > NAMED_CLASSES:
                note += f" and {len(absent) - NAMED_CLASSES:,} other classes"
            self.notes.append(note)

        # who guesses the labels that are missing; an image without a label counts no more than
        # one with a label, however few there are
        self.teacher = None
        self.guess_weight = 0.0
        if not has_label.all():
            self.teacher = AveragedWeights(model, TEACHER_DECAY)
            visited = labels
            if data.visits is not None:
                visited = labels[data.visits.images]
            others = int((visited < 0).sum())
            self.guess_weight = min(1.0, others / (len(visited) - others))

    @classmethod
    def encoder_settings(cls, config: Config, data: Dataset) -> dict[str, Any]:
        # with one class every prediction is right
        classes = data.train.class_names
        if len(classes) == 1:
            raise DataError(
                f"train.objective: {data.name} has one class, {classes[0]!r}: "
                "there is nothing to distinguish"
            )
        if not data.has_classes:
            raise DataError(
                f"train.objective: {data.name} has no labels to learn; "
                "a folder has them as <class>/<image>"
            )
        return {"num_classes": len(classes)}

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

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.teacher is not None:
            # without stochastic depth: its guesses are not random
            self.teacher.eval()
        return self

    def targets(self, labels: Tensor, draws: Draws) -> Tensor:
        """Return each image's distribution over the classes: float32 (B, K).

        If some images lack a label, (B, K + 1): the last column is 0 for an image with a label, and
        the others are 0 for an image without. Rows are scaled (`mean_weights`), so that each kind
        of image has a mean of its own.
        """
        image_labels = labels[draws.indices]
        # without mixing, each image is its own partner
        partner_labels = image_labels
        share = torch.ones(len(image_labels))
        if draws.partner is not None and draws.share is not None:
            partner_labels = labels[draws.partner]
            share = draws.share
        smoothing = self.config.classify.label_smoothing
        if self.teacher is None:
            return mixed_labels(image_labels, partner_labels, share, self.classes, smoothing)

        # nothing is mixed
        has_label = image_labels >= 0
        label_or_zero = image_labels.clamp(min=0)
        targets = mixed_labels(label_or_zero, label_or_zero, share, self.classes, smoothing)
        columns = [targets * mean_weights(has_label), mean_weights(~has_label)]
        return torch.cat(columns, dim=1)

    def forward(
        self, images: Tensor, targets: Tensor | None, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross-entropy and the top-1 accuracy, of the labelled images.

        If some images lack a label, the loss is the sum of two means: "labelled_loss", over those
        with a label, and one over the others, among which those that the teacher is not sure of
        count 0. "guessed" is the share that it is sure of.
        """
        assert targets is not None
        mask = None
        if draws.mask_noise is not None:
            mask = mask_from_noise(draws.mask_noise, self.keep)
        tokens = self.model(images, mask, draws.drop_path)
        logits = self.model.forward_head(tokens).float()  # (B, K)
        if self.teacher is None:
            is_right = logits.argmax(1) == targets.argmax(1)
            return F.cross_entropy(logits, targets), {"train_accuracy": is_right.float().mean()}

        return self.loss_with_guesses(images, logits, targets[:, :-1], targets[:, -1])

    def loss_with_guesses(
        self, images: Tensor, logits: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and metrics of a batch in which images lack a label.

        Args:
            images: (B, C, H, W), as the teacher sees them.
            logits: (B, K), of the model.
            targets: (B, K), the first columns of `targets`.
            weights: (B,), its last column.
        """
        # the labels
        labelled_loss = F.cross_entropy(logits, targets)
        is_right = logits.argmax(1) == targets.argmax(1)
        accuracy = (is_right * targets.sum(1)).mean()

        # the teacher's guesses of whole images, where it is sure
        assert self.teacher is not None
        teacher: Any = self.teacher.module
        with torch.no_grad():
            probabilities = teacher.forward_head(teacher(images)).float().softmax(1)
            confidence, guesses = probabilities.max(1)  # (B,) each
        weights = weights * (confidence > CONFIDENCE)
        smoothing = self.config.classify.label_smoothing
        losses = F.cross_entropy(logits, guesses, reduction="none", label_smoothing=smoothing)
        loss = labelled_loss + self.guess_weight * (losses * weights).mean()
        metrics = {
            "labelled_loss": labelled_loss,
            "train_accuracy": accuracy,
            "guessed": weights.mean(),
        }
        return loss, metrics

    def after_step(self, step: int) -> None:
        """Add the weights to the teacher's average."""
        if self.teacher is not None:
            self.teacher.update(self.model, step)


def mean_weights(chosen: Tensor) -> Tensor:
    """Return float32 (B, 1); the mean of values times these is that of the chosen, bool (B,)."""
    # a batch may have none
    count = chosen.sum().clamp(min=1)
    return chosen.float()[:, None] * len(chosen) / count


OBJECTIVE = Classify
