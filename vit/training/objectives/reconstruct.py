"""Fill in hidden patches (He et al. 2022), with an optional second loss that tells images apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from vit.config import Config, ViTConfig
from vit.data import Dataset
from vit.data.draws import Draws
from vit.data.images import evenly_spaced
from vit.evaluate import Options
from vit.evaluate.reconstruction import fixed_mask, reconstruct
from vit.mae import MaskedAutoencoder, Model, build_autoencoder
from vit.masking import mask_from_noise, num_keep
from vit.training.distributed import gather_batch
from vit.training.objectives import Objective
from vit.training.objectives.terms import Projector, info_nce

if TYPE_CHECKING:
    from vit.figures import Curve
    from vit.figures.style import Figure
    from vit.training.run import Run

SHOWN = 10
"""Test images in reconstructions.png; for CIFAR-10, one per class."""


class Reconstruct(Objective):
    """Predict the pixels of the hidden patches."""

    model: MaskedAutoencoder

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

    def figures(self, run: Run, measured: dict[str, Any]) -> dict[str, Figure]:
        """Draw reconstructions: test images, what the model sees of them, and what it fills in."""
        from vit.figures import reconstruction_figure

        # fill some test images in
        mask, test = self.config.mask, run.data.test
        some = test.subset(test.showcase(SHOWN))
        fixed = fixed_mask(mask.kind, 0, len(some), self.config.model.grid_size, mask.ratio)
        result = reconstruct(cast(MaskedAutoencoder, run.result), some.images[:], run.normalize, fixed, run.compute)

        # the caption
        hidden, patches = int(fixed.mask[0].sum()), fixed.mask.shape[1]
        how = f"{run.caption} · {mask.kind} mask, {hidden} of {patches} patches hidden"
        if result.from_normalized:
            how += (
                " · the model predicts normalised patches: their brightness and contrast are estimated from the visible"
                " patches around, not taken from the original"
            )
        images, title = (result.original, result.filled, result.hidden), "Filled in from what is visible"
        return {"reconstructions": reconstruction_figure(*images, some.label_names, title, how)}

    @staticmethod
    def learns(settings: Mapping[str, Any], init: str) -> str:
        pairs = ", and which two views are of one image" if settings["reconstruct.contrast"] else ""
        return f"to fill in the {settings['mask.ratio']:.0%} of an image that it does not see{pairs}"

    @staticmethod
    def curves(settings: dict[str, Any], end: str, measured: Mapping[str, Any]) -> list[Curve]:
        """Return the loss over the hidden patches, how often the other view is found, and the k-NN accuracy."""
        from vit.figures import Curve

        lines, accuracy = {}, {}
        if measured:
            neighbours, baselines = measured.get("neighbours") or {}, measured["test_loss_of_baselines"]
            names = {"encoder_accuracy": end, "raw_pixel_accuracy": "by raw pixels"}
            accuracy = {name: neighbours[key] for key, name in names.items() if key in neighbours}
            lines = {
                end: measured["test_loss"],
                "guessing the mean of the visible": baselines["mean_of_visible_patches"],
                "copying the nearest visible": baselines["nearest_visible_patch"],
            }
        compared = settings["reconstruct.contrast"]
        key = "masked_loss" if compared else "loss"
        found = [Curve("other view found among the batch's", "pair_accuracy", share=True)] if compared else []
        loss = Curve("loss over the hidden patches", key, "val_loss", lines)
        return [loss, *found, Curve("nearest neighbours", "", "val_knn_accuracy", accuracy, share=True)]


OBJECTIVE = Reconstruct
