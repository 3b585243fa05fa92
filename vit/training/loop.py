"""The training loop: a generator of steps. Its caller owns logging, saving and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from vit.config import Config
from vit.data.augment import Normalization, augment
from vit.data.batches import batch_indices, steps_per_epoch, stream, stream_seed
from vit.errors import UserError
from vit.mae import MaskedAutoencoder, masked_patch_loss
from vit.masking import Mask, make_mask
from vit.training.device import Compute
from vit.training.optimizer import learning_rate


class NonFiniteError(UserError, ArithmeticError):
    """The loss or the gradient of a step is nan or infinite; the weights are still those before it."""

    exit_code = 1


@dataclass(frozen=True)
class Step:
    """What one step did.

    Attributes:
        step: steps done so far, this one included.
        epoch: epochs done so far, with fractions.
        loss: mean over the batch, before the update.
        lr: learning rate.
        grad_norm: length of the gradient before clipping.
        images: images in the batch.
    """

    step: int
    epoch: float
    loss: float
    lr: float
    grad_norm: float
    images: int

    @property
    def metrics(self) -> dict[str, float]:
        """What goes into metrics.jsonl."""
        return {"step": self.step, "epoch": self.epoch, "loss": self.loss, "lr": self.lr, "grad_norm": self.grad_norm}


def total_steps(config: Config, count: int) -> int:
    """Steps of a whole run over `count` training images."""
    return config.train.epochs * steps_per_epoch(count, config.train.batch_size)


def train_steps(
    model: MaskedAutoencoder,
    optimizer: Optimizer,
    images: Tensor,
    normalize: Normalization,
    config: Config,
    compute: Compute,
    start: int = 0,
) -> Iterator[Step]:
    """Train `model` from step `start` to the end, yielding after every step.

    Every batch, its augmentation and its masks depend only on (seed, step): see `vit.data.batches`.

    Args:
        model: on `compute.device`.
        optimizer: from `make_optimizer`; its learning rate is set here.
        images: uint8 (N, C, H, W), all training images.
        normalize: the input's normalisation.
        config: all settings.
        compute: device and precision.
        start: steps already done.

    Raises:
        NonFiniteError: before the update that would have spoilt the weights.
    """
    seed, batch_size = config.train.seed, config.train.batch_size
    per_epoch = steps_per_epoch(len(images), batch_size)
    total = total_steps(config, len(images))
    warmup = round(config.optim.warmup_epochs * per_epoch)
    peak = config.optim.blr * batch_size / 256
    learning = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    model.train()
    for step in range(start, total):
        indices = batch_indices(seed, step, len(images), batch_size)
        batch = images[indices].to(compute.device)
        batch = augment(batch, config.data, config.model.image_size_2d, stream(seed, "augment", step))
        mask_stream = stream(seed, "mask", step)
        mask = make_mask(config.mask.kind, len(batch), config.model.grid_size, config.mask.ratio, mask_stream)
        torch.manual_seed(stream_seed(seed, "drop path", step))
        lr = learning_rate(step, total, warmup, peak, config.optim.min_lr)
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss = accumulate_gradient(model, normalize(batch), mask.to(compute.device), config.train.accumulate, compute)
        limit = config.optim.clip_grad or math.inf
        grad_norm = torch.nn.utils.clip_grad_norm_(learning, limit).item()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            found = f"step {step + 1}: the loss is {loss} and the gradient's norm {grad_norm}"
            ways = "a new run (--out) with a lower optim.blr or train.precision fp32 may help"
            raise NonFiniteError(f"{found}; the weights were not updated and the states saved before are kept; {ways}")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield Step(step + 1, (step + 1) / per_epoch, loss, lr, grad_norm, len(batch))


def accumulate_gradient(model: MaskedAutoencoder, inputs: Tensor, mask: Mask, parts: int, compute: Compute) -> float:
    """Add the gradient of a batch's loss to the weights' float32 gradients, computed in `parts` parts.

    Each part counts by its share of the images, so that the sum is the whole batch's mean.

    Args:
        model: gets the gradient.
        inputs: normalised images (B, C, H, W).
        mask: for the B images.
        parts: at most this many; fewer where there are fewer images.
        compute: device and precision.

    Returns:
        The batch's loss.
    """
    loss_sum = torch.zeros((), device=inputs.device)
    part_masks = map(Mask, *(values.chunk(parts) for values in mask))
    for part, part_mask in zip(inputs.chunk(parts), part_masks, strict=True):
        with compute.autocast():
            prediction = model(part, part_mask)
        loss = masked_patch_loss(prediction, model.targets(part), part_mask.mask) * (len(part) / len(inputs))
        loss.backward()
        loss_sum += loss.detach()
    return loss_sum.item()
