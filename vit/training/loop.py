"""The training loop: a generator of steps. Its caller owns logging, saving and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from vit.config import Config
from vit.data.augment import Normalization, augment
from vit.data.batches import batch_indices, steps_per_epoch, stream, to_device
from vit.encoder import DropPath
from vit.errors import UserError
from vit.mae import MaskedAutoencoder, masked_patch_loss
from vit.masking import Mask, make_mask
from vit.training.device import Compute, resident
from vit.training.optimizer import learning_rate
from vit.training.processes import ALONE, Processes


class NonFiniteError(UserError, ArithmeticError):
    """The loss or the gradient of a step is nan or infinite; the weights are still those before it."""

    exit_code = 1


@dataclass(frozen=True)
class Step:
    """What one step did. Reading `loss`, `grad_norm` or `metrics` waits for the device; nothing else does.

    Attributes:
        step: steps done so far, this one included.
        epoch: epochs done so far, with fractions.
        lr: learning rate.
        images: images in the batch, of all processes.
        measured: float32 (3,) on the device: the batch's mean loss before the update, the length of the gradient before
            clipping, and the first step of this session that was not finite, 0 when all were.
    """

    step: int
    epoch: float
    lr: float
    images: int
    measured: Tensor

    @cached_property
    def _read(self) -> list[float]:
        return self.measured.tolist()

    @property
    def loss(self) -> float:
        """Mean over the batch, before the update."""
        return self._read[0]

    @property
    def grad_norm(self) -> float:
        """Length of the gradient before clipping."""
        return self._read[1]

    def check(self) -> None:
        """Wait for the step, and see that all was finite so far.

        Raises:
            NonFiniteError: it names the first step that was not; the weights are those before it.
        """
        loss, grad_norm, first = self._read
        if first:
            found = f"step {first:.0f}: the loss or the gradient is not finite"
            if first == self.step:
                found = f"step {first:.0f}: the loss is {loss} and the gradient's norm {grad_norm}"
            ways = "a new run (--out) with a lower optim.blr or train.precision fp32 may help"
            raise NonFiniteError(f"{found}; the weights were not updated and the states saved before are kept; {ways}")

    @property
    def metrics(self) -> dict[str, float]:
        """What goes into metrics.jsonl."""
        return {"step": self.step, "epoch": self.epoch, "loss": self.loss, "lr": self.lr, "grad_norm": self.grad_norm}


class MaskedLoss(nn.Module):
    """Model and loss as one module, which is what is compiled and what DistributedDataParallel wraps.

    Args:
        model: its parameters are this module's.
    """

    def __init__(self, model: MaskedAutoencoder):
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, mask: Mask) -> Tensor:
        """Normalised images (B, C, H, W) and their mask -> the scalar loss, a mean over the images."""
        return masked_patch_loss(self.model(inputs, mask), self.model.targets(inputs), mask.mask)


def total_steps(config: Config, count: int) -> int:
    """Steps of a whole run over `count` training images."""
    return config.train.epochs * steps_per_epoch(count, config.train.batch_size)


# Tokens (in the decoder, where they are most) that one part of a batch may have on a CPU. Larger parts are no faster there,
# and their activations, some 0.2 MB a token of ViT-Tiny, are what fills the memory.
CPU_TOKENS = 8_448


def choose_parts(config: Config, images: int, device: torch.device) -> int:
    """In how many parts a process computes its `images`: `train.accumulate`, or as many as are good for the device."""
    if config.train.accumulate:
        return config.train.accumulate
    if device.type != "cpu":
        return 1
    rows, columns = config.model.grid_size
    tokens = images * (rows * columns + config.model.class_token + config.model.registers)
    return min(max(math.ceil(tokens / CPU_TOKENS), 1), images)


def train_steps(
    model: MaskedAutoencoder,
    optimizer: Optimizer,
    images: Tensor,
    normalize: Normalization,
    config: Config,
    compute: Compute,
    start: int = 0,
    processes: Processes = ALONE,
) -> Iterator[Step]:
    """Train `model` from step `start` to the end, yielding after every step.

    Every batch, its augmentation and its masks depend only on (seed, step): see `vit.data.batches`. Several processes make
    the same draws for the whole batch and each computes its part of it.

    A GPU is never waited for within a step. Whether all was finite is kept on the device, which makes no update from the
    first step on that was not; it is looked at every `train.log_every` steps (on a CPU, at each).

    Args:
        model: on `compute.device`.
        optimizer: from `make_optimizer`; its learning rate is set here.
        images: uint8 (N, C, H, W), all training images.
        normalize: the input's normalisation.
        config: all settings.
        compute: device, precision, and whether the model is compiled.
        start: steps already done.
        processes: which of how many this is.

    Raises:
        NonFiniteError: the update that would have spoilt the weights was not made.
    """
    seed, batch_size, device = config.train.seed, config.train.batch_size, compute.device
    per_epoch = steps_per_epoch(len(images), batch_size)
    total = total_steps(config, len(images))
    warmup = round(config.optim.warmup_epochs * per_epoch)
    peak = config.optim.blr * batch_size / 256
    learning = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parts = choose_parts(config, processes.largest_part(batch_size), device)
    images = resident(images, device)
    model.train()
    drop_paths = [module for module in model.modules() if isinstance(module, DropPath) and module.rate]
    forward = processes.parallel(compute.compiled(MaskedLoss(model)), device)
    first_bad = torch.zeros((), device=device)
    for step in range(start, total):
        indices = batch_indices(seed, step, len(images), batch_size)
        whole = len(indices)
        part = processes.part(whole)
        share = (part.stop - part.start) / whole
        if not share:  # fewer images than processes: this one computes an image too, which counts for nothing
            part = slice(0, 1)
        batch = to_device(images[to_device(indices[part], images.device)], device)
        augment_stream, mask_stream = stream(seed, "augment", step), stream(seed, "mask", step)
        batch = augment(batch, config.data, config.model.image_size_2d, augment_stream, whole, part)
        mask = make_mask(config.mask.kind, whole, config.model.grid_size, config.mask.ratio, mask_stream, part, device)
        chance = torch.rand(len(drop_paths), whole, 1, 1, generator=stream(seed, "drop path", step))[:, part]
        lr = learning_rate(step, total, warmup, peak, config.optim.min_lr)
        for group in optimizer.param_groups:
            group["lr"] = lr

        with compute.only_compiled_for(len(batch) == processes.largest_part(batch_size)):
            # DistributedDataParallel averages over the processes, of which each counts by its share of the images.
            loss = accumulate_gradient(
                forward, normalize(batch), mask, parts, compute, share * processes.count,
                drop_paths, to_device(chance, device),
            )  # fmt: skip
        loss = processes.sum(loss) / processes.count
        grad_norm = nn.utils.clip_grad_norm_(learning, config.optim.clip_grad or math.inf)
        finite = loss.isfinite() & grad_norm.isfinite()
        first_bad = torch.where(finite | (first_bad > 0), first_bad, step + 1)
        measured = torch.stack([loss, grad_norm, first_bad])
        done = Step(step + 1, (step + 1) / per_epoch, lr, whole, measured)
        if device.type == "cpu":
            done.check()
        optimizer.found_inf = (first_bad > 0).float()  # type: ignore[attr-defined]  # then AdamW's kernel does nothing
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step + 1 == total or (step + 1) % config.train.log_every == 0:
            done.check()
        yield done


def accumulate_gradient(
    forward: nn.Module,
    inputs: Tensor,
    mask: Mask,
    parts: int,
    compute: Compute,
    weight: float = 1.0,
    drop_paths: list[DropPath] | None = None,
    chance: Tensor | None = None,
) -> Tensor:
    """Add the gradient of a batch's loss to the weights' float32 gradients, computed in `parts` parts.

    Each part counts by its share of the images, so that the sum is the whole batch's mean.

    Args:
        forward: a `MaskedLoss`, compiled or wrapped for several processes, or as it is.
        inputs: normalised images (B, C, H, W).
        mask: for the B images.
        parts: at most this many; fewer where there are fewer images.
        compute: device and precision.
        weight: factor of loss and gradient.
        drop_paths: the model's, that drop anything.
        chance: (their number, B, 1, 1), what they draw for each image.

    Returns:
        The batch's loss times `weight`, float32, a scalar on the device.
    """
    losses = []
    bounds = [len(inputs) * i // parts for i in range(parts + 1)]
    slices = [slice(low, high) for low, high in pairwise(bounds) if high > low]
    for part in slices:
        part_mask = Mask(*(values[part] for values in mask))
        for index, module in enumerate(drop_paths or []):
            module.chance = None if chance is None else chance[index, part]
        last = part is slices[-1]
        distributed = isinstance(forward, DistributedDataParallel)
        with forward.no_sync() if distributed and not last else nullcontext():  # type: ignore[operator]
            with compute.autocast():
                loss = forward(inputs[part], part_mask)
            loss = loss * (weight * (part.stop - part.start) / len(inputs))
            loss.backward()
        losses.append(loss.detach())
    for module in drop_paths or []:
        module.chance = None
    return torch.stack(losses).sum()
