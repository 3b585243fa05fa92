"""Fill in hidden patches (He et al. 2022), with a term that keeps images apart where `reconstruct.uniformity` asks for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.config import Config, ViTConfig
from vit.data import Dataset
from vit.data.draws import Draws
from vit.data.images import evenly_spaced
from vit.evaluate import Options
from vit.evaluate.reconstruction import fixed_mask, reconstruct
from vit.mae import MaskedAutoencoder, Model, build_autoencoder
from vit.masking import mask_from_noise, num_keep
from vit.training.objectives import Objective

if TYPE_CHECKING:
    from vit.figures import Curve
    from vit.figures.style import Figure
    from vit.training.run import Run

SHOWN = 10
"""Test images in reconstructions.png; of CIFAR-10, one of each class."""


class Reconstruct(Objective):
    """Predict the pixels of the hidden patches."""

    model: MaskedAutoencoder

    def __init__(self, model: MaskedAutoencoder, config: Config, data: Dataset):
        super().__init__(model, config, data)
        self.weight = config.reconstruct.uniformity
        self.compares_images = "reconstruct.uniformity" if self.weight else ""
        patches = math.prod(config.model.grid_size)
        self.keep = num_keep(patches, config.mask.ratio)
        prefix = config.model.class_token + config.model.registers
        self.lengths = {"encoder": self.keep + prefix, "decoder": patches + prefix}

    @classmethod
    def build_model(cls, config: Config, encoder: ViTConfig) -> Model:
        return build_autoencoder(encoder, config.model.decoder_config(), config.reconstruct.norm_pix_loss)

    @classmethod
    def take_over(cls, model: Model, loaded: Model, data: Dataset) -> str:
        """Copy the decoder where there is one of the same shape."""
        old, new = loaded.decoder, model.decoder
        if old is None or new is None or old.config != new.config:
            return "its encoder goes on, with a new decoder"
        new.load_state_dict(old.state_dict())
        return "its encoder goes on, with its decoder"

    def mask_ratio(self, step: int) -> float:
        return self.config.mask.ratio

    def forward(self, images: Tensor, targets: Tensor | None, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss over the hidden patches; with uniformity, the weighted sum, and both."""
        assert draws.mask_noise is not None
        mask = mask_from_noise(draws.mask_noise, self.keep)
        loss, tokens = self.model.loss(images, mask, draws.drop_path)
        if not self.weight:
            return loss, {}
        alike = uniformity(tokens[:, self.model.encoder.num_prefix_tokens :].mean(dim=1))
        return loss + self.weight * alike, {"masked_loss": loss, "uniformity": alike}

    def validate(self, run: Run) -> dict[str, float]:
        return {"val_loss": self._evaluate(run, ["reconstruction"], run.data)["test_loss"]}

    def measure(self, run: Run) -> dict[str, Any]:
        """Measure the loss beside its baselines, and, with labels, the nearest neighbours of the encoder's features."""
        data, searched = run.data, self.config.run.knn_images
        methods = ["reconstruction", *(["knn"] if data.train.labelled and data.test.labelled else [])]
        if searched:  # the features of the others are not needed
            data = replace(data, train=data.train.subset(evenly_spaced(len(data.train), searched)))
        return self._evaluate(run, methods, data)

    def _evaluate(self, run: Run, methods: list[str], data: Dataset) -> dict[str, Any]:
        return run.evaluate(methods, data, Options(masks=((self.config.mask.kind, self.config.mask.ratio),)))

    def figures(self, run: Run, measured: dict[str, Any]) -> dict[str, Figure]:
        """Draw reconstructions: test images, what the model sees of them, and how it fills in the rest."""
        from vit.figures import reconstruction_figure

        # fill some test images in
        mask, test = self.config.mask, run.data.test
        some = test.subset(test.showcase(SHOWN))
        fixed = fixed_mask(mask.kind, 0, len(some), self.config.model.grid_size, mask.ratio)
        result = reconstruct(cast(MaskedAutoencoder, run.result), some.images, run.normalize, fixed, run.compute)

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
        return f"to fill in the {settings['mask.ratio']:.0%} of an image that it does not see"

    @staticmethod
    def curves(settings: dict[str, Any], end: str, measured: Mapping[str, Any]) -> list[Curve]:
        """Return the loss over the hidden patches, beside its baselines."""
        from vit.figures import Curve

        lines = {}
        if measured:
            baselines = measured["test_loss_of_baselines"]
            lines = {
                end: measured["test_loss"],
                "guessing the mean of the visible": baselines["mean_of_visible_patches"],
                "copying the nearest visible": baselines["nearest_visible_patch"],
            }
        key = "masked_loss" if settings["reconstruct.uniformity"] else "loss"
        return [Curve("loss over the hidden patches", key, "val_loss", lines)]


def uniformity(features: Tensor) -> Tensor:
    """Return the mean squared cosine between any two images of a batch, float32.

    Filling in patches alone lets all images share a few directions; a small weight on this spreads them out (U-MAE, Zhang et
    al. 2022, "How mask matters"). Unlike other losses it depends on which images are computed together.

    Args:
        features: (B, D), B at least 2 (of a single image it is 0).

    Returns:
        A scalar from 0, all images at right angles, to 1, all on one line.
    """
    with torch.autocast(features.device.type, enabled=False):
        unit = F.normalize(features.float(), dim=1)
        cosines = unit @ unit.T  # (B, B)
    pairs = max(len(features) * (len(features) - 1), 1)
    return (cosines.square().sum() - cosines.diagonal().square().sum()) / pairs


OBJECTIVE = Reconstruct
