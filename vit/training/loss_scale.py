"""Loss scaling, without which small gradients are 0 in float16 (Micikevicius et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from vit.device import Compute


class LossScale(torch.amp.GradScaler):
    """torch's scale of the loss, which stays on the device, and what an overflow is.

    It halves where a gradient overflows, and doubles after 2,000 steps without. In other types than
    float16 it does nothing.
    """

    def __init__(self, compute: Compute):
        super().__init__(compute.device.type, enabled=compute.precision == "fp16")

    def has_overflowed(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Return whether the scale is too large for this step, which then makes no update.

        That is no error: the loss is finite, and a smaller scale will do. Where the scale is 1, the
        gradient itself is not finite.

        Args:
            loss: a scalar, not scaled.
            grad_norm: a scalar, of the gradient after `unscale_`.

        Returns:
            A boolean scalar on the device.
        """
        can_shrink = self.scale(torch.ones_like(loss)) > 1
        return loss.isfinite() & ~grad_norm.isfinite() & can_shrink
