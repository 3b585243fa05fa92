"""A model's image preparation as a torchvision transform; a module of its own because torchvision takes seconds to import."""

from __future__ import annotations

from typing import Any

from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import Transform
from torchvision.transforms.v2.functional import pil_to_tensor

from vit.checkpoints.origin import Origin
from vit.data.decode import fit_picture
from vit.data.images import DataError


class ModelTransform(Transform):
    """Turns images into a model's input: see `Origin.transform`."""

    def __init__(self, origin: Origin):
        super().__init__()
        self.origin = origin

    def transform(self, inpt: Image.Image | Tensor, params: dict[str, Any]) -> Tensor:
        """Turn a picture, or uint8 images (..., 3, h, w), into the model's input (..., C, H, W)."""
        if isinstance(inpt, Image.Image):
            return self.origin.inputs(self._pixels(inpt)[None], whole=True)[0]
        inputs = self.origin.inputs(inpt.reshape(-1, *inpt.shape[-3:]))
        return inputs.reshape(*inpt.shape[:-3], *inputs.shape[1:])

    def _pixels(self, picture: Image.Image) -> Tensor:
        """Return a picture at the model's size: uint8 (3, H, W)."""
        try:
            return pil_to_tensor(fit_picture(picture, self.origin.image_size, self.origin.prepared))
        except (ValueError, OSError) as error:
            raise DataError(str(error)) from error

    def extra_repr(self) -> str:
        """Describe the transform, for a printed pipeline."""
        origin = self.origin
        shape = (origin.channels, *origin.image_size)
        kept = f", the middle {origin.crop_share:.1%}" if origin.crop_share < 1 else ""
        return f"to {shape}, {origin.interpolation}{kept}, mean {origin.normalize.mean}, std {origin.normalize.std}"
