"""The training loop: a generator of steps. Its caller saves; everything else between steps is a callback's work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vit.data.augment import augment
from vit.data.draws import Draws, draw_step, shard, steps_per_epoch
from vit.device import Compute, to_device
from vit.inputs import Images
from vit.training.schedule import learning_rate, set_learning_rate
from vit.training.step import Callback, Step, log, states_of

if TYPE_CHECKING:
    from vit.training.run import Run


def train_and_save(
    run: Run,
    callbacks: Sequence[Callback],
    checkpoints: Path,
    stopping: Callable[[], object] = lambda: False,
) -> None:
    """Make all remaining steps; the main process saves the run's state every `run.save_every` steps and at the end.

    Args:
        run: from `vit.training.run.setup`.
        callbacks: of this process; they are closed at the end.
        checkpoints: folder for the states.
        stopping: called after each step, in every process; if true, the run ends there with its state saved.

    Raises:
        TrainingError: a step was not finite; the states saved before are kept.
        ConfigError: as in `vit.training.step.states_of`.
    """
    first = run.step + 1
    seconds = run.seconds
    every = run.config.run.save_every
    try:
        for callback in callbacks:
            log(run, callbacks, callback.on_start(run))
        for done in train_steps(run, callbacks):
            if done.step == first:
                if run.compute.compile and run.dist.is_main:
                    print(
                        f"compiled and ran the first step in {run.seconds - seconds:.0f} s",
                        flush=True,
                    )
                states_of(callbacks, None)  # refuses a wrong one before more steps are lost with it
            stop = stopping()
            if run.dist.is_main and (
                done.step % every == 0 or done.step == run.total_steps or stop
            ):
                done.check()
                save(run, callbacks, checkpoints)
            if stop:
                break
    finally:
        for callback in callbacks:
            callback.close()


def save(run: Run, callbacks: Sequence[Callback], checkpoints: Path) -> None:
    """Save the state of this step, that of the callbacks included; the last two are kept."""
    for callback in callbacks:
        callback.on_save()
    run.save(checkpoints, states_of(callbacks, run.callback_states))


def train_steps(run: Run, callbacks: Sequence[Callback] = ()) -> Iterator[Step]:
    """Train from where `run` is to its end, yielding after every step; `run.step` and `run.seconds` keep up.

    Every batch, its augmentation and its masks depend only on (seed, step): see `vit.data.draws`. Every process draws the
    whole batch, and computes its own rows.

    No step waits for a GPU. The device itself records the first step that was not finite, and makes no update from there on;
    the record is read every `RunConfig.steps_between_lines` steps (on a CPU, at each step).

    Raises:
        TrainingError: the loss or gradient of a step is not finite; its update was not made.
    """
    # 1. what is the same for all steps
    config, objective, optimizer, dist = run.config, run.objective, run.optimizer, run.dist
    compute, device, batch_size = run.compute, run.compute.device, config.train.batch_size
    labels, count = run.data.train.labels, len(run.data.train)
    per_epoch, total = steps_per_epoch(count, batch_size), run.total_steps
    usual = min(batch_size, count) * config.augment.views  # images in a batch
    schedule = config.schedule(per_epoch)
    peak = config.optim.blr * batch_size / 256
    learning = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    dataset = cache_on_device(run.data.train.images, device)
    forward = dist.wrap(compute.compiled(objective.train()), device)
    first_bad = torch.zeros((), device=device)
    since = time.perf_counter()
    for step in range(run.step, total):
        # 2. this process's images, augmented; after this, nothing is random
        batch = draw_step(config, step, count, masked=objective.mask_ratio(step) > 0)
        images_in_batch = len(batch.indices)  # type: ignore[arg-type]
        rows = shard(images_in_batch, dist.rank, dist.world_size)
        draws = batch.shard(dist.rank, dist.world_size)
        images = to_device(dataset[to_device(draws.indices, dataset.device)], device)  # type: ignore[arg-type]
        images = run.normalize(augment(images, draws, config))  # (B, C, H, W)
        draws = draws.rows(slice(len(images)))  # mixing needed one image more
        targets = objective.targets(labels, draws)

        # 3. the gradient, averaged over the processes by their shares of the images
        share = (rows.stop - rows.start) / images_in_batch
        with compute.only_compiled_for(images_in_batch == usual):
            metrics = accumulate_gradient(
                forward, images, None if targets is None else to_device(targets, device), draws.for_model(device),
                run.grad_accum_steps, compute, share * dist.world_size,
            )  # fmt: skip
        values = dist.all_reduce_sum(torch.stack(list(metrics.values()))) / dist.world_size
        for callback in callbacks:
            callback.on_gradient(step + 1)
        grad_norm = nn.utils.clip_grad_norm_(learning, config.optim.clip_grad or math.inf)
        finite = values[0].isfinite() & grad_norm.isfinite()
        first_bad = torch.where(finite | (first_bad > 0), first_bad, step + 1)
        lr = learning_rate(step, *schedule, peak)
        found = {
            "first_bad": first_bad,
            **dict(zip(metrics, values, strict=True)),
            "grad_norm": grad_norm,
        }
        done = Step(step + 1, (step + 1) / per_epoch, lr, images_in_batch, found)
        if device.type == "cpu":
            done.check()

        # 4. the update
        set_learning_rate(optimizer, lr)
        optimizer.found_inf = (first_bad > 0).float()  # type: ignore[attr-defined]  # 1 makes it skip the update
        optimizer.step()
        objective.after_step(step + 1)
        if run.ema is not None:
            run.ema.update_parameters(run.model)
        optimizer.zero_grad(set_to_none=True)
        if step + 1 == total or (step + 1) % config.run.steps_between_lines(total) == 0:
            done.check()

        # 5. callbacks and caller, whose time does not count
        run.step, run.seconds = step + 1, run.seconds + time.perf_counter() - since
        for callback in callbacks:
            log(run, callbacks, callback.on_step(run, done))
        yield done
        since = time.perf_counter()


def accumulate_gradient(
    forward: nn.Module,
    images: Tensor,
    targets: Tensor | None,
    draws: Draws,
    accum_steps: int,
    compute: Compute,
    weight: float = 1.0,
) -> dict[str, Tensor]:
    """Add the gradient of a batch's loss to the weights' float32 gradients, computed in micro-batches.

    Each counts by its share of the images, so that the sum is the whole batch's mean.

    Args:
        forward: an `Objective`, perhaps compiled or wrapped for several processes.
        images, targets, draws: its arguments, on the device.
        accum_steps: the number of micro-batches, or fewer if there are fewer images.
        compute: device and precision.
        weight: factor on loss and gradient.

    Returns:
        "loss" and the objective's metrics over the batch, times `weight`: float32 scalars on the device.
    """
    found = []
    bounds = [len(images) * i // accum_steps for i in range(accum_steps + 1)]
    parts = [slice(low, high) for low, high in pairwise(bounds) if high > low]
    for part in parts:
        waits = (
            isinstance(forward, DistributedDataParallel) and part is not parts[-1]
        )  # the last part averages the sum
        with forward.no_sync() if waits else nullcontext():  # type: ignore[operator]
            with compute.autocast():
                loss, metrics = forward(
                    images[part], None if targets is None else targets[part], draws.rows(part)
                )
            values = torch.stack([loss, *metrics.values()]) * (
                weight * (part.stop - part.start) / len(images)
            )
            values[0].backward()
        found.append(values.detach())
    return dict(zip(["loss", *metrics], torch.stack(found).sum(0), strict=True))


def cache_on_device(images: Images, device: torch.device) -> Images:
    """Move all images to a GPU if they take less than a quarter of its free memory; else return them as they are."""
    nbytes = math.prod(images.shape)
    if device.type == "cuda" and nbytes < torch.cuda.mem_get_info(device)[0] / 4:
        return images[:].to(device)
    return images
