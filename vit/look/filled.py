"""What a masked autoencoder fills in for the patches that it does not see."""

from __future__ import annotations

from typing import Any

from vit.device import Compute
from vit.evaluation.reconstruction import Reconstruction, reconstruct
from vit.look.subject import ModelWithImages


def fill_in(subject: ModelWithImages) -> Reconstruction:
    """Return the images with their masked patches as the model's decoder fills them in.

    Args:
        subject: under a mask, its model with a decoder.
    """
    model: Any = subject.model  # one with a decoder
    assert subject.mask is not None
    compute = Compute(subject.device)
    return reconstruct(model, subject.pixels, model.origin.normalize, subject.mask, compute)
