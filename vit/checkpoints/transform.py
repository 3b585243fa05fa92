"""A model's image preparation as a torchvision transform; a module of its own because torchvision takes seconds to import."""

from __future__ import annotations

from typing import Any

from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import Transform
from torchvision.transforms.v2.functional import pil_to_tensor

from vit.errors import DataError
from vit.inputs import ModelInputs, fit_picture


class ModelTransform(Transform):
    """Turns images into a model's input: see `vit.checkpoints.Origin.transform`."""

    def __init__(self, inputs: ModelInputs):
        super().__init__()
        self.inputs = inputs

    def transform(self, inpt: Image.Image | Tensor, params: dict[str, Any]) -> Tensor:
        """Turn a picture, or uint8 images (..., 3, h, w), into the model's input (..., C, H, W)."""
        if isinstance(inpt, Image.Image):
            return self.inputs.inputs(self._pixels(inpt)[None], whole=True)[0]
        batch = self.inputs.inputs(inpt.reshape(-1, *inpt.shape[-3:]))
        return batch.reshape(*inpt.shape[:-3], *batch.shape[1:])

    def _pixels(self, picture: Image.Image) -> Tensor:
        """Return a picture at the model's size: uint8 (3, H, W)."""
        try:
            return pil_to_tensor(fit_picture(picture, self.inputs.image_size, self.inputs.prepared))
        except (ValueError, OSError) as error:
            raise DataError(str(error)) from error

    def extra_repr(self) -> str:
        """Describe the transform, for a printed pipeline."""
        made = self.inputs
        shape = (made.channels, *made.image_size)
        cropped = f", the middle {made.crop_share:.1%}" if made.crop_share < 1 else ""
        return f"to {shape}, {made.interpolation}{cropped}, mean {made.normalize.mean}, std {made.normalize.std}"
