"""AdamW, its parameter groups and its schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from vit.config import ConfigError, OptimConfig

TOKENS_AND_POSITIONS = ("cls_token", "reg_token", "mask_token", "pos_embed")


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """The parameters that learn, in two groups: matrices decay; norms, biases, scales, tokens and positions do not."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim < 2 or name.rpartition(".")[2] in TOKENS_AND_POSITIONS
            (others if plain else matrices).append(parameter)
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over `parameter_groups`; its learning rate is set at every step from `learning_rate`.

    Raises:
        ConfigError: every parameter is frozen.
    """
    groups = parameter_groups(model, config.weight_decay)
    if not groups:
        raise ConfigError("model.freeze: every part is frozen; leave one out, so that something can learn")
    return torch.optim.AdamW(groups, lr=0.0, betas=config.betas, fused=True)


def learning_rate(step: int, total_steps: int, warmup_steps: int, peak: float, end: float = 0.0) -> float:
    """The learning rate of step `step` (from 0): linear warm-up to `peak`, then half a cosine down to `end`.

    The first step already moves: its rate is peak / warmup_steps. The last step's rate is the last above `end`.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    return end + (peak - end) * 0.5 * (1 + math.cos(math.pi * progress))
