"""A model's image preparation as a torchvision transform.

This is a module of its own because torchvision's transforms take seconds to import.
"""

from __future__ import annotations

from typing import Any

from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import Transform

from vit.inputs import ModelInputs


class ModelTransform(Transform):
    """Turns images into a model's input: see `vit.weights.Origin.transform`."""

    def __init__(self, inputs: ModelInputs):
        super().__init__()
        self.inputs = inputs

    def transform(self, inpt: Image.Image | Tensor, params: dict[str, Any]) -> Tensor:
        """Turn an image, or uint8 images (..., 3, h, w), into the model's input (..., C, H, W)."""
        # an image, cropped and resized before it becomes a tensor
        if isinstance(inpt, Image.Image):
            return self.inputs.normalize(self.inputs.read_images([inpt]))[0]

        # images in any number of dimensions, as one batch
        batch = self.inputs.inputs(inpt.reshape(-1, *inpt.shape[-3:]))
        return batch.reshape(*inpt.shape[:-3], *batch.shape[1:])

    def extra_repr(self) -> str:
        """Describe the transform, for a printed pipeline."""
        inputs = self.inputs
        shape = (inputs.channels, *inputs.image_size)
        return f"to {shape}, {inputs.prepared}, {inputs.normalize}"
