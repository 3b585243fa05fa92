"""What a masked autoencoder fills in for the patches that it does not see."""

from __future__ import annotations

import torch

from vit.device import Compute
from vit.evaluate.reconstruction import Reconstruction, reconstruct
from vit.look.shown import ModelWithImages


def fill_in(subject: ModelWithImages) -> Reconstruction:
    """Return the images with the patches that the subject's mask hides as the model's decoder fills them in.

    Args:
        subject: under a mask, its model with a decoder.
    """
    compute = Compute(torch.device("cpu"))
    normalize = subject.model.origin.normalize
    return reconstruct(subject.model, subject.pixels, normalize, subject.mask, compute)  # type: ignore[arg-type]
