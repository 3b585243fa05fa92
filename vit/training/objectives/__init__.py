"""What a run learns: one file per objective of the package, each with a class `OBJECTIVE`.

The files are named as in `vit.config.OBJECTIVES`; `fit` takes a class that stands elsewhere, as
docs/objectives.md shows.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor, nn

from vit.config import OBJECTIVES, Config, ObjectiveInfo, ViTConfig
from vit.data import Dataset
from vit.data.draws import Draws
from vit.encoder import VisionTransformer
from vit.mae import Model


class Objective(nn.Module):
    """A model and its loss as one module, to be compiled.

    Args:
        model: from `build_model`; its parameters are this module's.
        config: all settings.
        data: the training and test data.

    Attributes:
        info: which settings it reads, and whether it learns from labels.
        compares_images: whether the loss compares the images of a batch; if so, a process computes
            its images at once, and `forward` gathers those of the other processes
            (`vit.training.distributed.gather_batch`).
        lengths: the most tokens that each part of the model gets in training, by the part's name.
        measures: what is measured of the model, during the run and at its end: "reconstruction",
            "knn" or "head" of `vit.evaluation.METHODS`; without labels, only the first.
        notes: lines that the user should see.
    """

    info = ObjectiveInfo(())
    compares_images: bool = False
    measures: tuple[str, ...] = ()
    lengths: dict[str, int]

    def __init__(self, model: Model, config: Config, data: Dataset):
        super().__init__()
        self.model = model
        self.config = config
        self.notes: list[str] = []

    # ---- The model, and what it takes over from a loaded one ------------------------------------

    @classmethod
    def encoder_settings(cls, config: Config, data: Dataset) -> dict[str, Any]:
        """Return the fields of `ViTConfig` that follow from the objective, not from the settings.

        Raises:
            DataError: the data lacks what the objective needs.
        """
        return {}

    @classmethod
    def build_model(cls, config: Config, encoder: ViTConfig) -> Model:
        """Build the model to train, with random weights."""
        raise NotImplementedError

    @classmethod
    def take_over(cls, model: Model, loaded: Model, data: Dataset) -> str:
        """Copy what follows the encoder from a loaded checkpoint, where it fits.

        Returns:
            A note on what was done.
        """
        raise NotImplementedError

    @property
    def encoder(self) -> VisionTransformer:
        return self.model.encoder

    # ---- The step -------------------------------------------------------------------------------

    def is_masked(self, step: int) -> bool:
        """Return whether patches are masked in this step (from 0): its draws then hold a mask."""
        return False

    def targets(self, labels: Tensor, draws: Draws) -> Tensor | None:
        """Return the targets of `forward`, on the CPU: (B, ...), or None if it needs none.

        Args:
            labels: of all images: int64 (N,).
            draws: of the whole batch, whichever process computes its rows.
        """
        return None

    def forward(
        self, images: Tensor, targets: Tensor | None, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and metrics by name: means over the images, the same ones in every step.

        It is a pure function of its arguments and the weights; a batch may come in parts, unless
        the loss compares images.

        Args:
            images: normalised (B, C, H, W).
            targets: from `targets`, on the device.
            draws: of these images, with only what the model reads.
        """
        raise NotImplementedError

    def after_step(self, step: int) -> None:
        """Called after step `step` (from 1) has changed the weights.

        A teacher kept in a submodule, for example, is updated here.
        """


REGISTERED: dict[str, type[Objective]] = {}
"""Objectives that stand outside of the package, by name."""


def register(objective: type[Objective]) -> str:
    """Let `train.objective` name a class that stands outside of the package; return its name."""
    name = objective.__name__
    REGISTERED[name] = objective
    OBJECTIVES[name] = objective.info
    return name


def objective_class(name: str) -> type[Objective]:
    """Return the class of an objective by its name in `vit.config.OBJECTIVES`."""
    if name in REGISTERED:
        return REGISTERED[name]
    return import_module(f"vit.training.objectives.{name}").OBJECTIVE
