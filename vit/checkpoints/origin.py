"""What a loaded model carries.

It says where the model came from, how its input is made, and what became of each tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vit.checkpoints.report import Report
from vit.inputs import ModelInputs

if TYPE_CHECKING:
    from torchvision.transforms.v2 import Transform


@dataclass(frozen=True, kw_only=True)
class Origin(ModelInputs):
    """Where a model came from and how its input is made.

    This is the `origin` of every model from `load_model`.

    Attributes:
        source: the requested name or path.
        format: the file's format.
        class_names: of the head, or of the training data; empty if unknown.
        data: name of the training data; "" if unknown.
        data_content_hash: `vit.data.Dataset.content_hash` of the training and test images; "" if
            unknown.
        report: what became of each tensor.
        details: the checkpoint's whole config.json.
    """

    source: str
    format: str
    class_names: tuple[str, ...]
    data: str
    data_content_hash: str
    report: Report
    details: dict[str, Any]

    @property
    def problem_type(self) -> str:
        """What the head tells, as transformers calls it; "" for one of several classes.

        For example multi_label_classification.
        """
        problem_type = str(self.details.get("problem_type") or "")
        if problem_type == "single_label_classification":
            return ""
        return problem_type

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
        from vit.checkpoints.transform import ModelTransform

        return ModelTransform(self)
