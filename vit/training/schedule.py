"""The learning rate of every step."""

from __future__ import annotations

import math

from torch.optim import Optimizer


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set every group's learning rate to `lr`, times its "lr_scale" if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


def learning_rate(step: int, warmup_end: int, falls_from: int, total: int, peak: float) -> float:
    """Return the learning rate of step `step` (from 0).

    It rises linearly to `peak`, and falls along half a cosine to 0. If it falls only from a later
    step on, a run need not know its length until then (Hägele et al. 2024). The rates of the first
    step (peak / warmup_end) and of the last are above 0.
    """
    # the steps before `falls_from` have progress 0 and the peak's rate
    if step < warmup_end:
        return peak * (step + 1) / warmup_end
    progress = max(step - falls_from, 0) / max(total - falls_from, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))
