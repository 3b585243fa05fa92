"""Fill in masked patches (He et al. 2022), with an optional second loss that tells images apart."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import OBJECTIVES, Config, ViTConfig
from vit.data import Dataset
from vit.data.draws import Draws
from vit.mae import MaskedAutoencoder, Model, build_autoencoder
from vit.masking import mask_from_noise, num_keep
from vit.training.distributed import gather_batch
from vit.training.objectives import Objective

TEMPERATURE = 0.2
"""Divides the cosine similarities of the contrastive loss."""


class Reconstruct(Objective):
    """Predict the pixels of the masked patches."""

    model: MaskedAutoencoder
    info = OBJECTIVES["reconstruct"]
    measures = ("reconstruction", "knn")

    def __init__(self, model: MaskedAutoencoder, config: Config, data: Dataset):
        super().__init__(model, config, data)
        # a norm of classifiers, which nothing here reads
        model.encoder.fc_norm.requires_grad_(False)
        settings = config.reconstruct
        self.compares_images = settings.contrast > 0
        self.contrast = settings.contrast
        self.projector = None
        if self.compares_images:
            self.projector = Projector(model.encoder.config.embed_dim)

        # the encoder sees the visible patches, the decoder all
        patches = math.prod(config.model.grid_size)
        self.keep = num_keep(patches, config.mask.ratio)
        prefix = config.model.class_token + config.model.registers
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
        """Return the loss over the masked patches.

        With `reconstruct.contrast`, it is the weighted sum of two, and both are metrics.
        """
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


class Projector(nn.Sequential):
    """Map features (B, D) to (B, 128), where views are compared; discarded after training.

    As in SimCLR (Chen et al. 2020).

    Args:
        width: D.
    """

    def __init__(self, width: int):
        super().__init__(nn.Linear(width, 512), nn.BatchNorm1d(512), nn.GELU(), nn.Linear(512, 128))


def info_nce(projected: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Find each image's other view among all views of a batch (InfoNCE, van den Oord et al. 2018).

    Args:
        projected: (B, D); rows 2i and 2i + 1 are views of one image; at least two images.
        temperature: divides the cosine similarities.

    Returns:
        The cross-entropy, a scalar (0 is certainty, log(B - 1) guessing), and how often the other
        view is the likeliest.
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


OBJECTIVE = Reconstruct
