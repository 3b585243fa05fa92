"""The optimizer and its parameter groups, the average of the weights, the scale of the loss."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from vit.config import OptimConfig
from vit.device import Compute
from vit.training.distributed import Distributed
from vit.training.muon import Muon

TOKENS_AND_POSITIONS = ("cls_token", "reg_token", "mask_token", "pos_embed")


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Group the trainable parameters by weight decay, learning rate and optimizer.

    Matrices decay; norms, biases, scales, tokens and positions do not. With layer decay, a group's
    "lr_scale" multiplies its learning rate: 1 for head, last norm and decoder, less for each
    earlier layer, least for embedding, tokens and positions (Clark et al. 2020, ELECTRA; Bao et al.
    2022, BEiT). With Muon, "use_fallback" says which groups AdamW updates: all but the matrices
    within the layers of encoder and decoder.

    Args:
        model: a `VisionTransformer`, or a model that holds one.
        config: the optimizer's name, weight decay and layer decay are read.
    """
    scales = _scales(model, config.layer_decay)
    groups: dict[tuple, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_matrix = parameter.ndim >= 2 and name.rpartition(".")[2] not in TOKENS_AND_POSITIONS

        # parameters with equal settings form a group
        settings: dict[str, Any] = {"weight_decay": config.weight_decay if is_matrix else 0.0}
        if config.layer_decay != 1:
            settings["lr_scale"] = scales[parameter]
        if config.name == "muon":
            in_block = ".blocks." in f".{name}"
            settings["use_fallback"] = not (is_matrix and in_block)
        key = tuple(settings.items())
        group = groups.setdefault(key, {"params": [], **settings})
        group["params"].append(parameter)
    # those that decay first
    return sorted(groups.values(), key=lambda group: -group["weight_decay"])


def _scales(model: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """Return the factor of each parameter's learning rate."""
    encoder: Any = model.encoder
    depth = len(encoder.blocks)

    # head, last norm and decoder
    scales = dict.fromkeys(model.parameters(), 1.0)

    # tokens and positions, which are the encoder's own, and the embedding
    for parameter in (*encoder.parameters(recurse=False), *encoder.patch_embed.parameters()):
        scales[parameter] = decay ** (depth + 1)

    for number, block in enumerate(encoder.blocks):
        for parameter in block.parameters():
            scales[parameter] = decay ** (depth - number)
    return scales


def make_optimizer(
    model: nn.Module,
    config: OptimConfig,
    products: torch.dtype,
    dist: Distributed,
) -> torch.optim.Optimizer:
    """Build AdamW or Muon over `parameter_groups`; `set_learning_rate` sets the rate at every step.

    Args:
        model: as in `parameter_groups`.
        config: all but the schedule is read.
        products: the type of Muon's matrix products.
        dist: the processes that share Muon's work.
    """
    groups = parameter_groups(model, config)
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=0.0, betas=config.betas, fused=True)
    return Muon(groups, config.betas, products, dist)


class AveragedWeights:
    """The exponential moving average of a model's weights, initial weights included.

    The decay is min(decay, step / (9 + step)), so that the initialisation is soon forgotten
    (averaging: Polyak & Juditsky 1992). Unlike torch's `AveragedModel`, it keeps no count on the
    device, which every step on a GPU would wait for. `module` is a copy of the model, with the
    average as its weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.module = deepcopy(model)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Add the model's weights after step `step` (from 1)."""
        decay = min(self.decay, step / (9 + step))
        averages: list[Tensor] = list(self.module.parameters())
        weights: list[Tensor] = list(model.parameters())
        torch._foreach_lerp_(averages, weights, 1 - decay)


class LossScale(torch.amp.GradScaler):
    """torch's scale of the loss, which stays on the device, and the test for an overflow.

    Without it, small gradients are 0 in float16 (Micikevicius et al. 2018). It halves where a
    gradient overflows, and doubles after 2,000 steps without. In other types it does nothing.
    """

    def __init__(self, compute: Compute):
        super().__init__(compute.device.type, enabled=compute.precision == "fp16")

    def has_overflowed(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Return whether the scale is too large for this step, which then makes no update.

        That is no error: the loss is finite, and a smaller scale will do. Where the scale is 1, the
        gradient itself is not finite. All are scalars on the device, the gradient unscaled.
        """
        can_shrink = self.scale(torch.ones_like(loss)) > 1
        return loss.isfinite() & ~grad_norm.isfinite() & can_shrink
