"""Objectives: the base class; reconstruction of masked patches (He et al. 2022); classification.

`fit` also takes a class from elsewhere, as docs/objectives.md shows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import OBJECTIVES, Config, ObjectiveInfo, ViTConfig
from vit.data import Dataset
from vit.data.augment import mixed_labels
from vit.data.draws import Draws
from vit.encoder import VisionTransformer
from vit.errors import DataError, shortened
from vit.mae import MaskedAutoencoder, Model, build_autoencoder
from vit.masking import mask_from_noise, num_keep
from vit.training.distributed import gather_batch
from vit.weights import match_classes

TEMPERATURE = 0.2
"""Divides the cosine similarities of the contrastive loss."""


class Objective(nn.Module):
    """A model and its loss as one module, to be compiled.

    Args:
        model: from `build_model`; its parameters are this module's.
        config: all settings.
        data: the training and test data.

    Attributes:
        info: which settings it reads, and whether it needs labels.
        compares_images: whether the loss compares the images of a batch; if so, a process computes
            its images at once, and `forward` gathers those of the other processes
            (`vit.training.distributed.gather_batch`).
        lengths: the most tokens that each part of the model gets in training, by the part's name.
        measures: the methods that measure the model, during the run and at its end:
            "reconstruction", "knn" or "head" of `vit.evaluation.METHODS`; without labels, only the
            first.
        notes: lines that the user should see.
    """

    info = ObjectiveInfo(())
    compares_images: bool = False
    measures: tuple[str, ...] = ()
    lengths: dict[str, int]

    def __init__(self, model: Model, config: Config, data: Dataset):
        super().__init__()
        self.model = model
        self.config = config
        self.notes: list[str] = []

    # ---- The model, and the parts taken over from a loaded one
    # ------------------------------------

    @classmethod
    def encoder_settings(cls, data: Dataset) -> dict[str, Any]:
        """Return the fields of `ViTConfig` that follow from the objective, not from the settings.

        Raises:
            DataError: the data lacks what the objective needs.
        """
        return {}

    @classmethod
    def build_model(cls, config: Config, encoder: ViTConfig) -> Model:
        """Build the model to train, with random weights."""
        raise NotImplementedError

    @classmethod
    def take_over(cls, model: Model, loaded: Model, data: Dataset) -> str:
        """Copy the parts after the encoder from a loaded checkpoint, if they fit; report which."""
        return "its encoder is kept"

    @property
    def encoder(self) -> VisionTransformer:
        return self.model.encoder

    # ---- The step -------------------------------------------------------------------------------

    def is_masked(self, step: int) -> bool:
        """Return whether patches are masked in this step (from 0): its draws then hold a mask."""
        return False

    def targets(self, labels: Tensor, draws: Draws) -> Tensor | None:
        """Return the targets of `forward`, on the CPU: (B, ...), or None if it needs none.

        Args:
            labels: of all images: int64 (N,).
            draws: of this process's images, on the CPU.
        """
        return None

    def forward(
        self, images: Tensor, targets: Tensor | None, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and metrics by name, means over the images; the names never change.

        It is a pure function of its arguments and the weights; a batch may come in parts, unless
        the loss compares images.

        Args:
            images: normalised (B, C, H, W).
            targets: from `targets`, on the device.
            draws: of these images, with only what the model reads.
        """
        raise NotImplementedError

    def after_step(self, step: int) -> None:
        """Called after step `step` (from 1) has changed the weights.

        A teacher kept in a submodule, for example, is updated here.
        """


class Reconstruct(Objective):
    """Predict the pixels of the masked patches."""

    model: MaskedAutoencoder
    info = OBJECTIVES["reconstruct"]
    measures = ("reconstruction", "knn")

    def __init__(self, model: MaskedAutoencoder, config: Config, data: Dataset):
        super().__init__(model, config, data)
        # a norm of classifiers, which is not used here
        model.encoder.fc_norm.requires_grad_(False)
        self.contrast = config.reconstruct.contrast
        self.compares_images = self.contrast > 0
        self.projector = None
        if self.compares_images:
            # to features (B, 128), where views are compared (SimCLR, Chen et al. 2020)
            self.projector = nn.Sequential(
                nn.Linear(model.encoder.config.embed_dim, 512),
                nn.BatchNorm1d(512),
                nn.GELU(),
                nn.Linear(512, 128),
            )

        # the encoder sees the visible patches, the decoder all
        patches = model.encoder.patch_embed.num_patches
        self.keep = num_keep(patches, config.mask.ratio)
        prefix = model.encoder.num_prefix_tokens
        self.lengths = {"encoder": self.keep + prefix, "decoder": patches + prefix}

    @classmethod
    def build_model(cls, config: Config, encoder: ViTConfig) -> Model:
        return build_autoencoder(
            encoder, config.model.decoder_config(), config.reconstruct.norm_pix_loss
        )

    @classmethod
    def take_over(cls, model: Model, loaded: Model, data: Dataset) -> str:
        """Copy the decoder if there is one of the same architecture."""
        old = loaded.decoder
        new = model.decoder
        if old is None or new is None or old.config != new.config:
            return "its encoder is kept, with a new decoder"
        new.load_state_dict(old.state_dict())
        return "its encoder is kept, with its decoder"

    def is_masked(self, step: int) -> bool:
        return True

    def forward(
        self, images: Tensor, targets: Tensor | None, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss over the masked patches, and metrics of the contrastive one."""
        assert draws.mask_noise is not None
        mask = mask_from_noise(draws.mask_noise, self.keep)
        loss, tokens = self.model.loss(images, mask, draws.drop_path)
        if self.projector is None:
            return loss, {}

        # the views of the whole batch, those of the other processes included
        pooled = gather_batch(self.encoder.pool(tokens), draws.place)  # (B, D)
        projected = self.projector(pooled)  # (B, 128)
        contrast, accuracy = info_nce(projected, TEMPERATURE)
        metrics = {"masked_loss": loss, "contrast": contrast, "pair_accuracy": accuracy}
        return loss + self.contrast * contrast, metrics


def info_nce(projected: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Find each image's other view among all views of a batch (InfoNCE, van den Oord et al. 2018).

    Args:
        projected: (B, D); rows 2i and 2i + 1 are views of one image; at least two images.
        temperature: divides the cosine similarities.

    Returns:
        The cross-entropy, a scalar (log(B - 1) at chance), and how often the other view is the most
        similar.
    """
    # in float32: divided by the temperature, the rounding of bfloat16 would be large
    with torch.autocast(projected.device.type, enabled=False):
        unit = F.normalize(projected.float(), dim=1)
        logits = unit @ unit.T / temperature  # (B, B)
        # no view is its own partner
        logits.fill_diagonal_(-torch.inf)

    # rows 2i and 2i + 1 differ in their last bit
    partner = torch.arange(len(projected), device=projected.device) ^ 1
    accuracy = (logits.argmax(1) == partner).float().mean()
    return F.cross_entropy(logits, partner), accuracy


class Classify(Objective):
    """Predict the class of whole images, or of some of their patches; labels may be blended."""

    model: VisionTransformer
    info = OBJECTIVES["classify"]
    measures = ("head",)

    def __init__(self, model: VisionTransformer, config: Config, data: Dataset):
        super().__init__(model, config, data)
        settings = config.classify
        names = data.train.class_names
        self.classes = len(names)
        self.smoothing = settings.label_smoothing

        # some patches are dropped in every step except in the last epochs
        self.whole_from = config.whole_from(len(data.train))
        patches = model.patch_embed.num_patches
        self.keep = patches
        if settings.drop_patches:
            self.keep = num_keep(patches, settings.drop_patches)
        longest = self.keep
        if settings.whole_epochs:
            longest = patches
        self.lengths = {"encoder": longest + model.num_prefix_tokens}

        # with few labels, some classes may have none
        absent = sorted(set(names) - set(data.train.label_names))
        if absent:
            self.notes.append(f"no training images of {shortened(', '.join(absent))}")

    @classmethod
    def encoder_settings(cls, data: Dataset) -> dict[str, Any]:
        # with one class every prediction is right
        if not data.has_classes:
            problem = "has no two classes to tell apart; a folder has them as <class>/<image>"
            # a class whose files are in another format
            absent = [note for note in data.decisions if "left out" in note]
            notes = "; ".join([problem, *absent])
            raise DataError("train.objective", f"{data.name} {notes}")
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
        """Return each image's class distribution, blended like the image: float32 (B, K)."""
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


CLASSES: dict[str, type[Objective]] = {"reconstruct": Reconstruct, "classify": Classify}
"""By name; `register` adds others."""


def register(objective: type[Objective]) -> str:
    """Let `train.objective` name a class from outside the package; return its name."""
    name = objective.__name__
    CLASSES[name] = objective
    OBJECTIVES[name] = objective.info
    return name
