"""Fill in hidden patches (He et al. 2022), with an optional second loss that tells images apart."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vit.config import Config, ViTConfig
from vit.data import Dataset
from vit.data.draws import Draws
from vit.data.images import evenly_spaced
from vit.evaluate import Options
from vit.mae import MaskedAutoencoder, Model, build_autoencoder
from vit.masking import mask_from_noise, num_keep
from vit.training.distributed import gather_batch
from vit.training.objectives import Objective
from vit.training.objectives.terms import Projector, info_nce

if TYPE_CHECKING:
    from vit.training.run import Run


class Reconstruct(Objective):
    """Predict the pixels of the hidden patches."""

    model: MaskedAutoencoder
    measures = ("reconstruction", "knn")

    def __init__(self, model: MaskedAutoencoder, config: Config, data: Dataset):
        super().__init__(model, config, data)
        model.encoder.fc_norm.requires_grad_(False)  # of a classifier: nothing here reads it
        settings = config.reconstruct
        self.compares_images = settings.contrast > 0
        self.projector = Projector(model.encoder.config.embed_dim) if settings.contrast else None
        patches = math.prod(config.model.grid_size)
        self.keep = num_keep(patches, config.mask.ratio)
        prefix = config.model.class_token + config.model.registers
        self.lengths = {"encoder": self.keep + prefix, "decoder": patches + prefix}

    @classmethod
    def build_model(cls, config: Config, encoder: ViTConfig) -> Model:
        return build_autoencoder(encoder, config.model.decoder_config(), config.reconstruct.norm_pix_loss)

    @classmethod
    def take_over(cls, model: Model, loaded: Model, data: Dataset) -> str:
        """Copy the decoder if there is one of the same architecture."""
        old, new = loaded.decoder, model.decoder
        if old is None or new is None or old.config != new.config:
            return "its encoder is kept, with a new decoder"
        new.load_state_dict(old.state_dict())
        return "its encoder is kept, with its decoder"

    def mask_ratio(self, step: int) -> float:
        return self.config.mask.ratio

    def forward(self, images: Tensor, targets: Tensor | None, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss over the hidden patches; with `reconstruct.contrast`, the weighted sum and both its terms."""
        assert draws.mask_noise is not None
        settings, mask = self.config.reconstruct, mask_from_noise(draws.mask_noise, self.keep)
        loss, tokens = self.model.loss(images, mask, draws.drop_path)
        if self.projector is None:
            return loss, {}
        pooled = gather_batch(self.encoder.pool(tokens), draws.place)  # (B, D): the other processes' views too
        projected = self.projector(pooled)  # (B, 128)
        contrast, found = info_nce(projected, settings.temperature)
        metrics = {"masked_loss": loss, "contrast": contrast, "pair_accuracy": found}
        return loss + settings.contrast * contrast, metrics

    def validate(self, run: Run) -> dict[str, float]:
        """Measure the loss and, with labels, the k-NN accuracy of the encoder's features."""
        found = self.measure(run, baselines=False)
        neighbours = found["neighbours"]
        accuracy = {"val_knn_accuracy": neighbours["encoder_accuracy"]} if neighbours else {}
        return {"val_loss": found["test_loss"], **accuracy}

    def measure(self, run: Run, baselines: bool = True) -> dict[str, Any]:
        """Measure the loss and its baselines and, with labels, the k-NN accuracy of features and, as a baseline, of raw pixels.

        Without `baselines`, leave out the raw pixels.
        """
        data, searched, mask = run.data, self.config.run.knn_images, self.config.mask
        methods = ["reconstruction", *(["knn"] if data.train.labelled and data.test.labelled else [])]
        if 0 < searched < len(data.train):  # the other images' features are not needed
            data = replace(data, train=data.train.subset(evenly_spaced(len(data.train), searched)))
        return run.evaluate(methods, data, Options(masks=((mask.kind, mask.ratio),), raw_pixels=baselines))


OBJECTIVE = Reconstruct
