"""What a trained or loaded model carries: where it came from, and how its input is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vit.inputs import ModelInputs

if TYPE_CHECKING:
    from torchvision.transforms.v2 import Transform


@dataclass(frozen=True, kw_only=True)
class Origin(ModelInputs):
    """Where a model came from and how its input is made: its `origin`, once trained or loaded.

    Attributes:
        source: the run folder, or the name or path that was loaded.
        class_names: of the head, or of the training data; empty if unknown.
        data: name of the training data; "" if unknown.
        data_content_hash: `vit.data.Dataset.content_hash` of the training and test images; "" if
            unknown.
    """

    source: str
    class_names: tuple[str, ...]
    data: str
    data_content_hash: str

    @property
    def problem_type(self) -> str:
        """What the head tells, as transformers calls it; "" for one of several classes.

        For example multi_label_classification.
        """
        return ""

    @property
    def notes(self) -> list[str]:
        """What was assumed or changed when the model was loaded."""
        return []

    @property
    def untrained(self) -> list[str]:
        """The names of the tensors that the checkpoint lacked."""
        return []

    def was_tested_on(self, content_hash: str) -> bool:
        """Return whether its training held out the images with this hash.

        Args:
            content_hash: of the `vit.data.ImageSet`.
        """
        # the hash of the data is that of the training images, "-", that of the test images
        return self.data_content_hash.rpartition("-")[2] == content_hash

    @property
    def transform(self) -> Transform:
        """A torchvision v2 transform that makes the model's input, for a Dataset or a v2.Compose.

        PIL images of any mode and orientation become the model's input float32 (C, H, W), just as
        their files do by `read_images` and `normalize` (a large JPEG within rounding, because fewer
        pixels of its file are decoded); uint8 tensors (..., 3, h, w) or (..., 1, h, w) become
        (..., C, H, W), just as by `inputs`.

        Raises:
            DataError: (when called) other tensors, or the model takes neither colour nor grey
                images.
        """
        # torchvision's transforms take seconds to import
        from vit.transform import ModelTransform

        return ModelTransform(self)
