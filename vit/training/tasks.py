"""What a run learns: to fill in hidden patches, or to name the class of whole images."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import Config
from vit.data.batches import steps_per_epoch, stream, to_device
from vit.data.mixing import draw_mixing, mix, mixed_labels
from vit.encoder import VisionTransformer
from vit.mae import MaskedAutoencoder, uniformity
from vit.masking import NOISE, Mask, mask_from_noise, num_keep


class Task(nn.Module):
    """Model and loss as one module, which is what is compiled and what DistributedDataParallel wraps.

    A step takes the images at `rows`, varies them, lets `pose` make a question of them, normalises, and calls `forward`,
    which a batch may be given to in parts.

    Args:
        model: its parameters are this module's.
        config: all settings.

    Attributes:
        measures: names of what `forward` gives back; the first is the loss.
    """

    measures: tuple[str, ...] = ("loss",)

    def __init__(self, model: nn.Module, config: Config):
        super().__init__()
        self.model = model
        self.config = config

    def rows(self, whole: int, part: slice) -> Tensor:
        """Which images of a batch of so many are needed to compute a part of it: int64."""
        return torch.arange(part.start, part.stop)

    def pose(
        self, images: Tensor, indices: Tensor, step: int, whole: int, part: slice
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Make a question of images.

        Args:
            images: float32 (rows, C, H, W) from 0 to 1, on the device, those of `rows`.
            indices: int64 (rows,), which of all training images they are.
            step: from 0, which all draws depend on.
            whole, part: which part of a batch of how many images.

        Returns:
            The images (B, C, H, W) of the part, and what else `forward` takes, each with B in front.
        """
        raise NotImplementedError

    def forward(self, inputs: Tensor, *others: Tensor, drop_path: Tensor | None = None) -> Tensor:
        """Normalised images (B, C, H, W) and what `pose` gave -> float32 (measures,), means over the images.

        `drop_path` holds the encoder's draws, as `vit.encoder.VisionTransformer.forward` takes them.
        """
        raise NotImplementedError

    def _mask(self, ratio: float, step: int, whole: int, part: slice, device: torch.device) -> Mask:
        kind, grid, seed = self.config.mask.kind, self.config.model.grid_size, self.config.train.seed
        noise = NOISE[kind](whole, grid, stream(seed, "mask", step))[part]
        return mask_from_noise(to_device(noise, device), num_keep(grid[0] * grid[1], ratio))


class Reconstruction(Task):
    """Fill in hidden patches (He et al. 2022), with `uniformity` beside it where `mask.uniformity` says so."""

    def __init__(self, model: MaskedAutoencoder, config: Config):
        super().__init__(model, config)
        self.weight = config.mask.uniformity
        if self.weight:
            self.measures = ("loss", "masked_loss", "uniformity")

    def pose(
        self, images: Tensor, indices: Tensor, step: int, whole: int, part: slice
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The images, and a mask."""
        return images, self._mask(self.config.mask.ratio, step, whole, part, images.device)

    def forward(self, inputs: Tensor, *others: Tensor, drop_path: Tensor | None = None) -> Tensor:
        """Inputs and mask -> the loss over the hidden patches; with uniformity, their weighted sum, and both."""
        model, mask = cast(MaskedAutoencoder, self.model), Mask(*others)
        loss, tokens = model.loss(inputs, mask, drop_path)
        if not self.weight:
            return loss[None]
        alike = uniformity(tokens[:, model.encoder.num_prefix_tokens :].mean(dim=1))
        return torch.stack([loss + self.weight * alike, loss, alike])


class Classification(Task):
    """Name the class of images: cross-entropy with the labels, which Mixup and CutMix may have blended.

    Args:
        model: with a head.
        config: all settings.
        labels: int64 (N,), of all training images.
        classes: how many there are.
    """

    measures = ("loss", "train_accuracy")

    def __init__(self, model: VisionTransformer, config: Config, labels: Tensor, classes: int):
        super().__init__(model, config)
        self.labels = labels
        self.classes = classes
        self.mixes = config.classify.mixup > 0 or config.classify.cutmix > 0
        per_epoch = steps_per_epoch(len(labels), config.train.batch_size)
        self.whole_from = round((config.train.epochs - config.classify.whole_epochs) * per_epoch)

    def rows(self, whole: int, part: slice) -> Tensor:
        """Those of the part; with mixing, also the one after them."""
        return torch.arange(part.start, part.stop + self.mixes) % whole

    def pose(
        self, images: Tensor, indices: Tensor, step: int, whole: int, part: slice
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The images, mixed; what is to be said of each (B, classes); and a mask, where patches are dropped."""
        settings, labels = self.config.classify, self.labels[indices]
        following, share = labels[: part.stop - part.start], torch.ones(part.stop - part.start)
        if self.mixes:
            generator = stream(self.config.train.seed, "mixing", step)
            size = (images.shape[-2], images.shape[-1])
            mixing = draw_mixing(whole, size, settings.mixup, settings.cutmix, generator).of(part)
            images = mix(images[:-1], images[1:], mixing)
            labels, following, share = labels[:-1], labels[1:], mixing.share
        said = mixed_labels(labels, following, share, self.classes, settings.label_smoothing)
        targets = to_device(said, images.device)
        if not settings.drop_patches or step >= self.whole_from:
            return images, (targets,)
        return images, (targets, *self._mask(settings.drop_patches, step, whole, part, images.device))

    def forward(self, inputs: Tensor, *others: Tensor, drop_path: Tensor | None = None) -> Tensor:
        """Inputs, targets and perhaps a mask -> cross-entropy, and how often the likeliest class is the target's."""
        targets, mask = others[0], Mask(*others[1:]) if others[1:] else None
        model = cast(VisionTransformer, self.model)
        logits = model.forward_head(model(inputs, mask, drop_path)).float()
        right = (logits.argmax(1) == targets.argmax(1)).float().mean()
        return torch.stack([F.cross_entropy(logits, targets), right])
