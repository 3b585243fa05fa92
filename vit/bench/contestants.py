"""Who is timed: our step, and the peers' exactly as they come, on the same job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.attention import set_kernel
from vit.bench.ceiling import product_step
from vit.bench.job import CLASSES, Job
from vit.config import ConfigError, OptimConfig
from vit.data.augment import Normalization
from vit.device import Compute, choose_compute
from vit.mae import MaskedAutoencoder
from vit.training.allocator import keep_freed_memory
from vit.training.loop import accumulate_gradient, choose_parts, train_steps
from vit.training.model import build_model
from vit.training.optimizer import make_optimizer, parameter_groups
from vit.training.tasks import Classification, Reconstruction, Task


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
        compute = choose_compute(config.train)
        parts = choose_parts(config, job.batch, compute.device)
        step = product_step(config, job.batch, parts, compute.precision, compute.device)
        return Contestant(step, nn.Module(), compute, f"{compute.precision}, these layers' products")
    return _peer(job)


def _ours(job: Job) -> Contestant:
    if job.allocator:
        keep_freed_memory()
    config = job.config()
    compute = choose_compute(config.train)
    device = compute.device
    heads = {"num_classes": CLASSES} if job.task == "classify" else {}
    model = build_model(config, config.model.vit_config(**heads)).to(device)
    set_kernel(model, config.run.attention)
    task: Task
    if model.decoder is not None:
        task = Reconstruction(model, config)
    else:
        task = Classification(model, config, torch.randint(0, CLASSES, (max(job.images, job.batch),)), CLASSES)
    optimizer: torch.optim.Optimizer = make_optimizer(model, OptimConfig())
    if not job.fused_adamw:
        optimizer = torch.optim.AdamW(parameter_groups(model, 0.05), lr=1e-4)
    parts = choose_parts(config, job.batch, device)
    about = f"{compute.precision}, attention {config.run.attention}, {parts} parts{', compiled' if compute.compile else ''}"
    if job.with_data:
        images = torch.randint(0, 256, (job.images, 3, job.image_size, job.image_size), dtype=torch.uint8)
        steps = train_steps(task, optimizer, images, Normalization([0.5] * 3, [0.25] * 3), compute)
        return Contestant(lambda: next(steps), model, compute, about)
    model.train()
    forward = compute.compiled(task)
    rows = task.rows(job.batch, slice(0, job.batch))
    pictures = torch.randn(len(rows), 3, job.image_size, job.image_size).to(device)
    inputs, others = task.pose(pictures, rows, 0, job.batch, slice(0, job.batch))
    for group in optimizer.param_groups:
        group["lr"] = 1e-4

    def step() -> Tensor:
        measures = accumulate_gradient(forward, inputs, others, parts, compute)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return measures[0]

    return Contestant(step, model, compute, about)


def _peer(job: Job) -> Contestant:
    config = job.config()
    compute = choose_compute(config.train)
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
