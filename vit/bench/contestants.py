"""Who is timed: our step, and the peers' exactly as they come, on the same job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.bench.ceiling import product_step
from vit.bench.job import CLASSES, Job
from vit.config import ConfigError
from vit.data import Dataset, ImageSet
from vit.data.draws import draw_step
from vit.device import Compute, choose_compute
from vit.training.loop import accumulate_gradient, train_steps
from vit.training.optimizer import parameter_groups
from vit.training.process import keep_freed_memory
from vit.training.run import Run, setup


@dataclass(frozen=True)
class Contestant:
    """A step to be timed.

    Attributes:
        step: makes one.
        model: what it trains.
        compute: device and precision.
        about: how it computes, in a few words.
    """

    step: Callable[[], object]
    model: nn.Module
    compute: Compute
    about: str


def build(job: Job) -> Contestant:
    """The contestant of `job`, ready for its first step.

    Raises:
        ConfigError: a package is missing, or the job cannot be done.
    """
    torch.manual_seed(0)
    if job.contestant == "ours":
        return _ours(job)
    if job.contestant == "ceiling":
        config = job.config()
        run = run_of(job)
        compute = run.compute
        step = product_step(config, job.batch, run.grad_accum_steps, compute.precision, compute.device)
        return Contestant(step, nn.Module(), compute, f"{compute.precision}, these layers' products")
    return _peer(job)


def run_of(job: Job) -> Run:
    """The run that train.py would set up for this job, on random images."""
    shape = (max(job.images, job.batch), 3, job.image_size, job.image_size)
    images, labels = torch.randint(0, 256, shape, dtype=torch.uint8), torch.arange(shape[0]) % CLASSES
    split = ImageSet(images, labels, tuple(map(str, range(CLASSES))), content_hash="")
    return setup(job.config(), Dataset("random images", "scenes", split, split))


def _ours(job: Job) -> Contestant:
    if job.allocator:
        keep_freed_memory()
    run = run_of(job)
    if not job.fused_adamw:
        run.optimizer = torch.optim.AdamW(parameter_groups(run.model, 0.05), lr=1e-4)
    accum_steps, compute = run.grad_accum_steps, run.compute
    compiled = ", compiled" if compute.compile else ""
    about = f"{compute.precision}, attention {run.config.run.attention}, {accum_steps} parts{compiled}"
    if job.with_data:
        steps = train_steps(run)
        return Contestant(lambda: next(steps), run.model, compute, about)

    # the step alone: the same batch again and again
    objective, device = run.objective.train(), compute.device
    draws = draw_step(run.config, 0, len(run.data.train), objective.mask_ratio(0) > 0)
    images = torch.randn(job.batch, 3, job.image_size, job.image_size).to(device)
    targets = objective.targets(run.data.train.labels, draws)
    targets, draws = None if targets is None else targets.to(device), draws.for_model(device)
    forward = compute.compiled(objective)
    for group in run.optimizer.param_groups:
        group["lr"] = 1e-4

    def step() -> Tensor:
        metrics = accumulate_gradient(forward, images, targets, draws, accum_steps, compute)
        nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=True)
        return metrics["loss"]

    return Contestant(step, run.model, compute, about)


def _peer(job: Job) -> Contestant:
    config = job.config()
    compute = choose_compute(config.run, config.train.precision)
    model, loss_of = (_vit_pytorch if job.contestant == "vit-pytorch" else _transformers)(job)
    model = model.to(compute.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(job.batch, 3, job.image_size, job.image_size).to(compute.device)

    def step() -> Tensor:
        with compute.autocast():
            loss = loss_of(inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Contestant(step, model, compute, f"{compute.precision}, as it comes")


def _vit_pytorch(job: Job) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    try:
        from vit_pytorch import MAE, ViT
    except ImportError as error:
        raise ConfigError(f"--peers: vit-pytorch cannot be imported ({error}); pip install -e '.[bench]'") from error
    size = job.config().model.dimensions
    vit = ViT(  # pool: with its default, "cls", MAE fails in 1.26 (its position table has lost a dimension)
        pool="mean",
        image_size=job.image_size, patch_size=job.patch, num_classes=10, dim=size["embed_dim"], depth=size["depth"],
        heads=size["num_heads"], mlp_dim=4 * size["embed_dim"], dim_head=size["embed_dim"] // size["num_heads"],
    )  # fmt: skip
    model = MAE(
        encoder=vit, masking_ratio=job.mask_ratio, decoder_dim=job.decoder_dim, decoder_depth=job.decoder_depth,
        decoder_heads=job.decoder_heads, decoder_dim_head=job.decoder_dim // job.decoder_heads,
    )  # fmt: skip
    return model, model


def _transformers(job: Job) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    try:
        from transformers import ViTMAEConfig, ViTMAEForPreTraining
    except ImportError as error:
        raise ConfigError(f"--peers: transformers cannot be imported ({error}); pip install -e '.[bench]'") from error
    size = job.config().model.dimensions
    config = ViTMAEConfig(  # type: ignore[call-arg]
        image_size=job.image_size, patch_size=job.patch, mask_ratio=job.mask_ratio, hidden_size=size["embed_dim"],
        num_hidden_layers=size["depth"], num_attention_heads=size["num_heads"], intermediate_size=4 * size["embed_dim"],
        decoder_hidden_size=job.decoder_dim, decoder_num_hidden_layers=job.decoder_depth,
        decoder_num_attention_heads=job.decoder_heads, decoder_intermediate_size=4 * job.decoder_dim, norm_pix_loss=True,
        attn_implementation="eager" if job.contestant.endswith("eager") else "sdpa",
    )  # fmt: skip
    model = ViTMAEForPreTraining(config)
    return model, lambda inputs: model(inputs).loss
