"""Controls for what a model learns from patches that occur together: the same task on images with mixed-up patches."""

from __future__ import annotations

import torch
from torch import Tensor

from vit.config import Config
from vit.data.draws import make_generator, to_device
from vit.mae import MaskedAutoencoder
from vit.patches import patchify, unpatchify
from vit.training.tasks import Reconstruction


class ShuffledPatches(Reconstruction):
    """Fill in hidden patches of images whose patches were shuffled, anew in every step, after augmentation.

    Args:
        model, config: as in `Reconstruction`.
        across: each patch keeps its place and goes into another image of the batch, so that nothing in an image belongs
            together; else each image's patches change places, so that what occurs together still does, but anywhere.
    """

    def __init__(self, model: MaskedAutoencoder, config: Config, across: bool):
        super().__init__(model, config)
        self.across = across

    def rows(self, whole: int, part: slice) -> Tensor:
        """All of them: a patch may come from any."""
        return torch.arange(whole)

    def pose(
        self, images: Tensor, indices: Tensor, step: int, whole: int, part: slice
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The shuffled images, and a mask."""
        size, grid = self.config.model.patch_size_2d, self.config.model.grid_size
        patches = patchify(images, size)  # (whole, L, P)
        draws = torch.rand(patches.shape[:2], generator=make_generator(self.config.train.seed, "shuffle", step))
        along = 0 if self.across else 1
        order = to_device(draws.argsort(along), images.device)[:, :, None].expand_as(patches)
        shuffled = unpatchify(patches.gather(along, order), size, grid)
        return super().pose(shuffled[part], indices[part], step, whole, part)
