"""The average of a model's weights over the steps, which is often better than the last ones (Polyak & Juditsky 1992)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class WeightAverage:
    """An exponential moving average of a model's parameters.

    Args:
        model: whose; it is copied as it is now.
        decay: of the average in a step, once the run is old enough: (1 + step) / (10 + step) is taken where that is smaller,
            because else the random start would weigh long.

    Attributes:
        model: a model with the averaged weights.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay
        self._averages: list[Tensor] = list(self.model.parameters())
        self._values: list[Tensor] = list(model.parameters())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after step `step` (from 0). Nothing waits for the device."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._averages, self._values, 1 - decay)
