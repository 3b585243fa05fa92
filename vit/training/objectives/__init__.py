"""What a run learns: one file per objective, named as in `vit.config.OBJECTIVES`, each with a class `OBJECTIVE`.

docs/objectives.md shows how to write one.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vit.config import Config, ViTConfig
from vit.data import Dataset
from vit.data.draws import Draws
from vit.encoder import VisionTransformer
from vit.mae import Model

if TYPE_CHECKING:
    from vit.figures import Curve
    from vit.figures.style import Figure
    from vit.training.run import Run


class Objective(nn.Module):
    """A model and its loss as one module, which is what is compiled and wrapped for several processes.

    Args:
        model: from `build_model`; its parameters are this module's.
        config: all settings.
        data: what is learned from.

    Attributes:
        kind: of run, in a word.
        compares_images: the setting, if any, by which the loss depends on which images are computed together.
        lengths: the most tokens that each part of the model gets in training, by its name.
        notes: lines that the user should see.
    """

    kind = "pretraining"
    compares_images: str = ""
    lengths: dict[str, int]

    def __init__(self, model: Model, config: Config, data: Dataset):
        super().__init__()
        self.model, self.config = model, config
        self.notes: list[str] = []

    # --- the model: how it is built, and what is taken over from a loaded one ---

    @classmethod
    def encoder_settings(cls, config: Config, data: Dataset) -> dict[str, Any]:
        """Fields of `ViTConfig` that follow from the objective, not from the settings.

        Raises:
            DataError: the data has not what the objective needs.
        """
        return {}

    @classmethod
    def build_model(cls, config: Config, encoder: ViTConfig) -> Model:
        """Build the model that is trained, with random weights."""
        raise NotImplementedError

    @classmethod
    def take_over(cls, model: Model, loaded: Model, data: Dataset) -> str:
        """Copy what lies behind the encoder from a checkpoint, where it fits; return a note on what was done."""
        raise NotImplementedError

    @property
    def encoder(self) -> VisionTransformer:
        return self.model.encoder

    # --- the step ---

    def mask_ratio(self, step: int) -> float:
        """Return the share of patches that the encoder does not see in this step; 0 where it sees all."""
        return 0.0

    def targets(self, labels: Tensor, draws: Draws) -> Tensor | None:
        """Return what `forward` compares with, on the CPU, from the labels of all images: (B, ...), or None."""
        return None

    def forward(self, images: Tensor, targets: Tensor | None, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and what else is measured by name: means over the images, the same names in every step.

        A pure function of its arguments and the weights; a batch may come in parts.

        Args:
            images: normalised (B, C, H, W).
            targets: from `targets`, on the device.
            draws: of these images; only what the model reads is there.
        """
        raise NotImplementedError

    def after_step(self, step: int) -> None:
        """Called when step `step` (from 1) has changed the weights: a teacher's average, kept in buffers or submodules."""

    # --- what is measured and drawn ---

    def validate(self, run: Run) -> dict[str, float]:
        """Measure the model in the course of a run on the validation images (`run.data.test`), for metrics.jsonl."""
        raise NotImplementedError

    def measure(self, run: Run) -> dict[str, Any]:
        """Measure the trained model on `run.data.test`: plain values for summary.json."""
        raise NotImplementedError

    def figures(self, run: Run, measured: dict[str, Any]) -> dict[str, Figure]:
        """Draw what was learned: figures by the stem of their file's name; `measured` is of `measure`."""
        raise NotImplementedError

    @staticmethod
    def learns(settings: Mapping[str, Any], init: str) -> str:
        """Return what a run with these settings (by "section.key") learns, to follow "it learns"; `init`: its checkpoint."""
        raise NotImplementedError

    @staticmethod
    def curves(settings: dict[str, Any], end: str, measured: Mapping[str, Any]) -> list[Curve]:
        """Return the curves of a run beside learning rate and gradient norm.

        Those without a `key`, measured on held-out images alone, are drawn of a run that has them.

        Args:
            settings: by "section.key".
            end: label of what was measured at the end.
            measured: of `measure`; empty for a run that is not finished.
        """
        raise NotImplementedError


def objective_class(name: str) -> type[Objective]:
    """Return the class of an objective by its name in `vit.config.OBJECTIVES`."""
    return import_module(f"vit.training.objectives.{name}").OBJECTIVE
