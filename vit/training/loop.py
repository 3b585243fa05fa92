"""The training loop: a generator of steps. Its caller owns logging, saving and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from vit.config import Config
from vit.data.augment import Normalization, augment
from vit.data.batches import batch_indices, steps_per_epoch, stream, to_device
from vit.errors import UserError
from vit.mae import Model
from vit.masking import num_keep
from vit.training.average import WeightAverage
from vit.training.device import Compute, resident
from vit.training.optimizer import learning_rate, set_learning_rate
from vit.training.processes import ALONE, Processes
from vit.training.tasks import Task


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
        names: of what the task measured, the loss first.
        measured: float32 on the device: the length of the gradient before clipping, the first step of this session that was
            not finite, 0 when all were, and what the task measured, means over the batch before the update.
    """

    step: int
    epoch: float
    lr: float
    images: int
    names: tuple[str, ...]
    measured: Tensor

    @cached_property
    def _read(self) -> list[float]:
        return self.measured.tolist()

    @property
    def loss(self) -> float:
        """Mean over the batch, before the update."""
        return self._read[2]

    @property
    def grad_norm(self) -> float:
        """Length of the gradient before clipping."""
        return self._read[0]

    def check(self) -> None:
        """Wait for the step, and see that all was finite so far.

        Raises:
            NonFiniteError: it names the first step that was not; the weights are those before it.
        """
        grad_norm, first, loss = self._read[:3]
        if first:
            found = f"step {first:.0f}: the loss or the gradient is not finite"
            if first == self.step:
                found = f"step {first:.0f}: the loss is {loss} and the gradient's norm {grad_norm}"
            ways = "a new run (--out) with a lower optim.blr or train.precision fp32 may help"
            raise NonFiniteError(f"{found}; the weights were not updated and the states saved before are kept; {ways}")

    @property
    def metrics(self) -> dict[str, float]:
        """What goes into metrics.jsonl."""
        found = dict(zip(self.names, self._read[2:], strict=True))
        return {"step": self.step, "epoch": self.epoch, **found, "lr": self.lr, "grad_norm": self.grad_norm}


class Watch(Protocol):
    """Looks on while a run trains and changes nothing, as `vit.interpret.DynamicsRecorder` does.

    Steps are counted from 1. Nothing of it may wait for the device but `state_dict` and `write`.
    """

    def before(self, step: int) -> None:
        """Called when the gradient of step `step` is whole, and neither clipped nor used yet."""

    def after(self, step: int) -> None:
        """Called when step `step` has changed the weights."""

    def state_dict(self) -> dict[str, Any]:
        """What it needs to go on in another process: tensors on the CPU and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""

    def write(self, path: Path) -> None:
        """What it has seen so far, as a file."""


def total_steps(config: Config, count: int) -> int:
    """Steps of a whole run over `count` training images."""
    return config.train.epochs * steps_per_epoch(count, config.train.batch_size)


# Tokens (of a reconstruction, in the decoder, where they are most) that one part of a batch may have on a CPU. Larger parts
# are no faster there, and their activations, some 0.2 MB a token of ViT-Tiny, are what fills the memory.
CPU_TOKENS = 8_448


def choose_parts(config: Config, images: int, device: torch.device) -> int:
    """In how many parts a process computes its `images`: `train.accumulate`, or as many as are good for the device."""
    if config.train.accumulate:
        return config.train.accumulate
    if device.type != "cpu" or config.mask.uniformity:  # which compares all images of a batch
        return 1
    rows, columns = config.model.grid_size
    patches = rows * columns
    if config.classify.drop_patches and not config.classify.whole_epochs:
        patches = num_keep(patches, config.classify.drop_patches)
    tokens = images * (patches + config.model.class_token + config.model.registers)
    return min(max(math.ceil(tokens / CPU_TOKENS), 1), images)


def train_steps(
    task: Task,
    optimizer: Optimizer,
    images: Tensor,
    normalize: Normalization,
    compute: Compute,
    start: int = 0,
    processes: Processes = ALONE,
    average: WeightAverage | None = None,
    watch: Watch | None = None,
) -> Iterator[Step]:
    """Train the model of `task` from step `start` to the end, yielding after every step.

    Every batch, its augmentation, its masks and all else that is drawn depend only on (seed, step): see `vit.data.batches`.
    Several processes make the same draws for the whole batch and each computes its part of it.

    A GPU is never waited for within a step. Whether all was finite is kept on the device, which makes no update from the
    first step on that was not; it is looked at every `train.log_every` steps (on a CPU, at each).

    Args:
        task: with all settings, and its model on `compute.device`.
        optimizer: from `make_optimizer`; its learning rate is set here.
        images: uint8 (N, C, H, W), all training images.
        normalize: the input's normalisation.
        compute: device, precision, and whether the model is compiled.
        start: steps already done.
        processes: which of how many this is.
        average: takes in the weights after each step.
        watch: looks on.

    Raises:
        NonFiniteError: the update that would have spoilt the weights was not made.
    """
    config, device = task.config, compute.device
    seed, batch_size = config.train.seed, config.train.batch_size
    per_epoch = steps_per_epoch(len(images), batch_size)
    total = total_steps(config, len(images))
    warmup = round(config.optim.warmup_epochs * per_epoch)
    peak = config.optim.blr * batch_size / 256
    learning = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parts = choose_parts(config, processes.largest_part(batch_size), device)
    images = resident(images, device)
    task.train()
    encoder = cast(Model, task.model).encoder.config
    dropping = encoder.depth - 1 if encoder.drop_path else 0  # blocks that drop: the first never does
    forward = processes.parallel(compute.compiled(task), device)
    first_bad = torch.zeros((), device=device)
    for step in range(start, total):
        indices = batch_indices(seed, step, len(images), batch_size)
        whole = len(indices)
        part = processes.part(whole)
        share = (part.stop - part.start) / whole
        if not share:  # fewer images than processes: this one computes an image too, which counts for nothing
            part = slice(0, 1)
        rows = task.rows(whole, part)
        batch = to_device(images[to_device(indices[rows], images.device)], device)
        batch = augment(batch, config.data, config.model.image_size_2d, stream(seed, "augment", step), whole, rows)
        batch, others = task.pose(batch, indices[rows], step, whole, part)
        chance = torch.rand(2 * dropping, whole, generator=stream(seed, "drop path", step))[:, part]
        drop_path = to_device(chance.T.reshape(-1, dropping, 2), device) if dropping else None
        lr = learning_rate(step, total, warmup, peak, config.optim.min_lr)
        set_learning_rate(optimizer, lr)

        with compute.only_compiled_for(len(batch) == processes.largest_part(batch_size)):
            # DistributedDataParallel averages over the processes, of which each counts by its share of the images.
            measures = accumulate_gradient(
                forward, normalize(batch), others, parts, compute, share * processes.count, drop_path
            )
        measures = processes.sum(measures) / processes.count
        if watch is not None:
            watch.before(step + 1)
        grad_norm = nn.utils.clip_grad_norm_(learning, config.optim.clip_grad or math.inf)
        finite = measures[0].isfinite() & grad_norm.isfinite()
        first_bad = torch.where(finite | (first_bad > 0), first_bad, step + 1)
        measured = torch.cat([torch.stack([grad_norm, first_bad]), measures])
        done = Step(step + 1, (step + 1) / per_epoch, lr, whole, task.measures, measured)
        if device.type == "cpu":
            done.check()
        optimizer.found_inf = (first_bad > 0).float()  # type: ignore[attr-defined]  # then nothing is updated
        optimizer.step()
        if average is not None:
            average.update(step)
        if watch is not None:
            watch.after(step + 1)
        optimizer.zero_grad(set_to_none=True)
        if step + 1 == total or (step + 1) % config.train.log_every == 0:
            done.check()
        yield done


def accumulate_gradient(
    forward: nn.Module,
    inputs: Tensor,
    others: Sequence[Tensor],
    parts: int,
    compute: Compute,
    weight: float = 1.0,
    drop_path: Tensor | None = None,
) -> Tensor:
    """Add the gradient of a batch's loss to the weights' float32 gradients, computed in `parts` parts.

    Each part counts by its share of the images, so that the sum is the whole batch's mean.

    Args:
        forward: a `Task`, compiled or wrapped for several processes, or as it is.
        inputs: normalised images (B, C, H, W).
        others: what else it takes, each with B in front: the mask, say.
        parts: at most this many; fewer where there are fewer images.
        compute: device and precision.
        weight: factor of loss and gradient.
        drop_path: (B, depth - 1, 2), the encoder's draws, where it drops anything.

    Returns:
        What the task measures of the batch, the loss first, times `weight`: float32 (measures,) on the device.
    """
    found = []
    bounds = [len(inputs) * i // parts for i in range(parts + 1)]
    slices = [slice(low, high) for low, high in pairwise(bounds) if high > low]
    for part in slices:
        draws = None if drop_path is None else drop_path[part]
        last = part is slices[-1]
        distributed = isinstance(forward, DistributedDataParallel)
        with forward.no_sync() if distributed and not last else nullcontext():  # type: ignore[operator]
            with compute.autocast():
                measures = forward(inputs[part], *(values[part] for values in others), drop_path=draws)
            measures = measures * (weight * (part.stop - part.start) / len(inputs))
            measures[0].backward()
        found.append(measures.detach())
    return torch.stack(found).sum(0)
