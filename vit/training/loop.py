"""The training loop: a generator of steps. The caller decides what happens between two steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vit.data.augment import augment
from vit.data.draws import Draws, draw_step, shard
from vit.device import Compute, to_device
from vit.training.step import Callback, Step, log, states_of

if TYPE_CHECKING:
    from vit.inputs import Images
    from vit.training.optimizer import LossScale
    from vit.training.run import Run


def train_and_save(
    run: Run,
    callbacks: Sequence[Callback],
    checkpoints: Path,
    stopping: Callable[[], object] = lambda: False,
) -> None:
    """Make all remaining steps; the main process saves checkpoints.

    It does so every `run.save_every` steps, before the learning rate decays, at the end, and when
    the run is stopped.

    Args:
        callbacks: of this process; they are closed at the end.
        stopping: called after a step, in every process; if true, the run ends there. Several
            processes on GPUs call it at steps of which a line is written, because they exchange
            their answers.
    """
    first_step = run.step + 1
    seconds_before = run.seconds
    with ExitStack() as closing:
        for callback in callbacks:
            closing.callback(callback.close)
        for callback in callbacks:
            log(run, callbacks, callback.on_start(run))

        for done in train_steps(run, callbacks):
            if done.step == first_step and run.compute.compile and run.dist.is_main:
                seconds = run.seconds - seconds_before
                print(f"compiled and ran the first step in {seconds:.0f} s", flush=True)

            # all processes ask whether to stop, the main one saves
            is_due = done.step % run.config.run.save_every == 0
            is_due |= done.step in (run.held_steps, run.total_steps)
            stop = (is_due or asks_to_stop(run)) and stopping()
            if run.dist.is_main and (is_due or stop):
                # no checkpoint holds a step that was not finite
                done.check()
                save(run, callbacks, checkpoints)
            if stop:
                break


def asks_to_stop(run: Run) -> bool:
    """Return whether the processes agree after this step on whether to stop; equal in all."""
    # on GPUs an exchange in every step would let all hosts wait for the slowest
    if run.dist.world_size == 1 or run.compute.device.type == "cpu":
        return True
    return run.has_line(run.step)


def save(run: Run, callbacks: Sequence[Callback], checkpoints: Path) -> None:
    for callback in callbacks:
        callback.on_save()
    run.save(checkpoints, states_of(callbacks))


def train_steps(run: Run, callbacks: Sequence[Callback] = ()) -> Iterator[Step]:
    """Train `run` from its present step to its end; after every step, update it and yield.

    Every batch, its augmentation and its masks depend only on (seed, step): see `vit.data.draws`.
    Every process draws the whole batch, and computes its own rows.

    No step waits for a GPU. The device itself records the first step that was not finite, and makes
    no update from there on; the record is read at the steps that have a line (`Run.has_line`; at
    each step where `Compute.checks_each_step`), and ends the run.
    """
    # 1. The same for all steps
    config = run.config
    objective = run.objective
    dist = run.dist
    compute = run.compute
    device = compute.device

    labels = run.data.train.labels
    count = len(run.data.train)
    dataset = cache_on_device(run.data.train.images, device)
    batch_size = config.train.batch_size
    # images in every batch but an epoch's last
    full_batch = min(batch_size, count) * config.augment.views

    per_epoch = config.steps_per_epoch(count)
    schedule = config.schedule(per_epoch)
    # the base rate is for 256 images (Goyal et al. 2017)
    peak = config.optim.blr * batch_size / 256

    forward = compute.compiled(objective.train(), run.grad_accum_steps)
    # the first step of this session that was not finite (0: none)
    first_bad = torch.zeros((), device=device)

    # `step` counts from 0, as the draws do; whatever a user sees counts from 1
    since = time.perf_counter()
    for step in range(run.step, run.total_steps):
        # 2. This process's images, targets and draws; after this, nothing is random
        batch = draw_step(config, step, count, objective.is_masked(step))
        assert batch.indices is not None
        batch_images = len(batch.indices)
        draws = batch.shard(dist.rank, dist.world_size)
        targets = objective.targets(labels, draws)
        if targets is not None:
            targets = to_device(targets, device)
        indices = draws.indices
        draws = draws.to(device)
        # where the images are
        if dataset.device.type == device.type:
            indices = draws.indices
        assert indices is not None
        images = to_device(dataset[indices], device)  # uint8 (B, C, h, w)

        # 3. The gradient and the update; the results stay on the device until they are read
        part = shard(batch_images, dist.rank, dist.world_size)
        process_share = (part.stop - part.start) / batch_images
        lr = learning_rate(step, *schedule, peak)
        # whose shapes are usual
        with compute.only_compiled_for(batch_images == full_batch):
            values = take_step(
                run, forward, callbacks, images, targets, draws, process_share, first_bad, lr
            )
        first_bad = values["first_bad"]
        epoch = (step + 1) / per_epoch
        done = Step(step=step + 1, epoch=epoch, lr=lr, images=batch_images, values=values)
        if compute.checks_each_step or run.has_line(done.step):
            done.check()

        # 4. Everything that follows the weights
        objective.after_step(step + 1)
        if run.ema is not None:
            run.ema.update(run.model, step + 1)

        # 5. Callbacks and caller, whose time does not count
        run.step = step + 1
        run.seconds += time.perf_counter() - since
        for callback in callbacks:
            log(run, callbacks, callback.on_step(run, done))
        yield done
        since = time.perf_counter()


def take_step(
    run: Run,
    forward: nn.Module,
    callbacks: Sequence[Callback],
    images: Tensor,
    targets: Tensor | None,
    draws: Draws,
    share: float,
    first_bad: Tensor,
    lr: float,
) -> dict[str, Tensor]:
    """Compute a step's gradient, update the weights, and return `Step.values`.

    On a GPU of CUDA the host decides nothing in here.

    Args:
        forward: the run's objective, perhaps compiled.
        callbacks: called when the gradient is complete.
        images, targets, draws: this process's, on the device; images uint8 (B, C, h, w).
        share: this process's fraction of the batch's images.
        first_bad: as in `Step.values`, of the steps before.
        lr: learning rate.
    """
    config = run.config
    optimizer = run.optimizer
    loss_scale = run.loss_scale

    # 1. Augmented images
    images = run.normalize(augment(images, draws, config))  # (B, C, H, W)
    # mixing has used up one image more, the partner of the last one
    draws = draws.rows(slice(len(images)))
    if targets is not None:
        targets = targets[: len(images)]

    # 2. The gradient, summed over the processes
    metrics = accumulate_gradient(
        forward,
        images,
        targets,
        draws.for_model(),
        run.grad_accum_steps,
        run.compute,
        weight=share,
        loss_scale=loss_scale,
    )
    learning = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    run.dist.sum_gradients(learning)
    loss_scale.unscale_(optimizer)
    sums = run.dist.all_reduce_sum(torch.stack(list(metrics.values())))
    for callback in callbacks:
        callback.on_gradient(run.step + 1)
    # without a limit it is only measured
    grad_norm = nn.utils.clip_grad_norm_(learning, config.optim.clip_grad or math.inf)

    # 3. The results; the first bad step stays the first
    is_finite = sums[0].isfinite() & grad_norm.isfinite()
    is_fine = is_finite
    if loss_scale.is_enabled():
        is_fine = is_finite | loss_scale.has_overflowed(sums[0], grad_norm)
    first_bad = torch.where(is_fine | (first_bad > 0), first_bad, run.step + 1)
    values = {"first_bad": first_bad}
    values.update(zip(metrics, sums, strict=True))
    values["grad_norm"] = grad_norm

    # 4. The update, unless the optimizer skips it
    if run.compute.checks_each_step and first_bad > 0:
        return values
    set_learning_rate(optimizer, lr)
    # read by torch's AdamW and by Muon
    optimizer.found_inf = ((first_bad > 0) | ~is_finite).float()  # type: ignore[attr-defined]
    optimizer.step()
    loss_scale.update()
    optimizer.zero_grad(set_to_none=True)
    return values


def accumulate_gradient(
    forward: nn.Module,
    images: Tensor,
    targets: Tensor | None,
    draws: Draws,
    accum_steps: int,
    compute: Compute,
    weight: float = 1.0,
    loss_scale: LossScale | None = None,
) -> dict[str, Tensor]:
    """Add the gradient of a batch's loss to the weights' gradients, in float32.

    It is computed in micro-batches. Each is weighted by its fraction of the images, so that the sum
    is the whole batch's mean.

    Args:
        forward: an `Objective`, perhaps compiled.
        images, targets, draws: its arguments, on the device.
        accum_steps: the number of micro-batches, or fewer if there are fewer images.
        compute: device and precision.
        weight: factor on loss and gradient.
        loss_scale: factor on the gradient alone; None for 1.

    Returns:
        "loss" and the objective's metrics over the batch, times `weight`: float32 scalars on the
        device.
    """
    bounds = [len(images) * i // accum_steps for i in range(accum_steps + 1)]
    parts = [slice(low, high) for low, high in pairwise(bounds) if high > low]
    sums = []
    for part in parts:
        with compute.autocast():
            part_targets = None if targets is None else targets[part]
            loss, metrics = forward(images[part], part_targets, draws.rows(part))
        part_weight = weight * (part.stop - part.start) / len(images)
        values = torch.stack([loss, *metrics.values()]) * part_weight
        loss = values[0]
        if loss_scale is not None:
            loss = loss_scale.scale(loss)
        loss.backward()
        sums.append(values.detach())
    return dict(zip(["loss", *metrics], torch.stack(sums).sum(0), strict=True))


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set every group's learning rate to `lr`, times its "lr_scale" if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


def learning_rate(step: int, warmup_end: int, falls_from: int, total: int, peak: float) -> float:
    """Return the learning rate of step `step` (from 0).

    It rises linearly to `peak`, and decays along half a cosine to 0. If the decay begins at a later
    step, a run's length may be chosen until then (Hägele et al. 2024). The rates of the first step
    (peak / warmup_end) and of the last are above 0.
    """
    # the steps before `falls_from` have progress 0 and the peak's rate
    if step < warmup_end:
        return peak * (step + 1) / warmup_end
    progress = max(step - falls_from, 0) / max(total - falls_from, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))


def cache_on_device(images: Images, device: torch.device) -> Images:
    """Move all images to a GPU, if they take less than a quarter of its free memory."""
    nbytes = math.prod(images.shape)
    if device.type == "cuda" and nbytes < torch.cuda.mem_get_info(device)[0] / 4:
        return images[:].to(device)
    return images
