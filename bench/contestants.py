"""The steps to time, on one job: ours, its matrix products alone, the peers'."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from bench.job import Job
from vit.config import OptimConfig
from vit.data import Dataset, ImageSet
from vit.data.draws import draw_step
from vit.device import Compute
from vit.errors import ConfigError
from vit.machine import choose_compute
from vit.training.loop import accumulate_gradient, train_steps
from vit.training.optimizer import parameter_groups
from vit.training.process import keep_freed_memory
from vit.training.run import setup

CLASSES = 10
STEPS_AT_ONCE = 20
"""Steps that a GPU makes between two readings of the clock."""


@dataclass(frozen=True)
class Contestant:
    """A step to be timed.

    Attributes:
        step: runs one.
        compute: device and precision.
        about: how it computes, in a few words.
        parameters: number of trainable parameters.
        products: FLOPs of the ceiling's step; 0 for the others.
    """

    step: Callable[[], object]
    compute: Compute
    about: str
    parameters: int = 0
    products: int = 0

    def seconds_of_step(self, steps: int = 0) -> float:
        """Time a step. (torch.utils.benchmark.Timer runs two more each time, to warm up.)

        Args:
            steps: to take the mean of; 0: one on a CPU, and on a GPU so many that it is kept busy,
                as in training. After a single one, the wait for its last kernel would count too.
        """
        on_cpu = self.compute.device.type == "cpu"
        if not steps:
            steps = 1 if on_cpu else STEPS_AT_ONCE
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        if not on_cpu:
            torch.accelerator.synchronize()
        return (time.perf_counter() - begin) / steps


def build(job: Job) -> Contestant:
    """Return the contestant of `job`, ready for its first step.

    Raises:
        ConfigError: a package is missing, or the job cannot be done.
    """
    torch.manual_seed(0)
    if job.contestant == "ours":
        return _ours(job)
    if job.contestant == "ceiling":
        return _ceiling(job)
    return _peer(job)


def random_images(count: int, image_size: int) -> Dataset:
    """Return `count` random images, the same in every call, for training and for tests."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, 3, image_size, image_size)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    labels = torch.arange(count) % CLASSES
    names = tuple(str(number) for number in range(CLASSES))
    split = ImageSet.in_memory(pixels, labels, names)
    return Dataset("random images", "scenes", split, split)


def flops_per_image(job: Job) -> float:
    """Return the FLOPs per image of all matrix products of our step; a multiply-add is two."""
    small = replace(job, contestant="ours", with_data=False, batch=2, images=2)
    plain = {"attention": "math", "grad_accum_steps": 1}
    ours = build(replace(small, device="cpu", precision="fp32", compile="off", run=plain))
    with FlopCounterMode(display=False) as counter:
        ours.step()
    return counter.get_total_flops() / 2


def _ours(job: Job) -> Contestant:
    """Return the step of the run that train.py would set up for this job, on random images."""
    if job.allocator:
        keep_freed_memory()

    # The run
    run = setup(job.config(), random_images(max(job.images, job.batch), job.image_size))
    if not job.fused_adamw:
        run.optimizer = torch.optim.AdamW(parameter_groups(run.model, OptimConfig()), lr=1e-4)
    parts = run.grad_accum_steps
    compute = run.compute
    about = f"{compute.precision}, attention {run.config.run.attention}, {parts} parts"
    if compute.compile:
        about += ", compiled"
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    if job.with_data:
        steps = train_steps(run)
        return Contestant(lambda: next(steps), compute, about, parameters)

    # The step alone: the same batch every time
    objective = run.objective.train()
    device = compute.device
    draws = draw_step(run.config, 0, len(run.data.train), objective.is_masked(0))
    images = torch.randn(job.batch, 3, job.image_size, job.image_size).to(device)
    targets = objective.targets(run.data.train.labels, draws)
    if targets is not None:
        targets = targets.to(device)
    draws = draws.to(device).for_model()
    forward = compute.compiled(objective, parts)
    for group in run.optimizer.param_groups:
        group["lr"] = 1e-4

    def step() -> None:
        accumulate_gradient(forward, images, targets, draws, parts, compute)
        nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=True)

    return Contestant(step, compute, about, parameters)


# --- the ceiling ---


class RecordedProducts(TorchDispatchMode):
    """Counts the matrix products in a block, except attention's, by operands' size and type.

    Attributes:
        counts: how often each occurs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[tuple[Any, ...], ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            operands = []
            for operand in args[-2:]:
                operands.append((tuple(operand.shape), operand.stride(), operand.dtype))
            self.counts[tuple(operands)] += 1
        return func(*args, **(kwargs or {}))


def _ceiling(job: Job) -> Contestant:
    """Return only our step's own products with weights, forward and backward.

    No model can be faster unless it computes less.
    """
    ours = _ours(replace(job, compile="off"))
    with RecordedProducts() as products:
        ours.step()

    # The same products on random numbers
    device = ours.compute.device
    work = []
    flops = 0
    for operands, count in products.counts.items():
        tensors = []
        for size, stride, dtype in operands:
            tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
            tensors.append(tensor.normal_())
        a, b = tensors
        work += [(a, b)] * count
        flops += 2 * a.shape[0] * a.shape[1] * b.shape[1] * count

    def step() -> None:
        for a, b in work:
            torch.mm(a, b)

    if device.type == "cuda":
        step = _recorded(step)
    return Contestant(
        step, ours.compute, f"{ours.compute.precision}, our step's products", products=flops
    )


def _recorded(step: Callable[[], None]) -> Callable[[], None]:
    """Return the step as a CUDA graph: launching small products takes longer than computing."""
    # The first one, on a stream of its own, lets the libraries allocate what they need
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


# --- the peers ---


def _peer(job: Job) -> Contestant:
    """Return another library's step: its model and loss, AdamW, our precision."""
    config = job.config()
    compute = choose_compute(config.run, config.train.precision)
    try:
        model = _vit_pytorch(job) if job.contestant == "vit-pytorch" else _transformers(job)
    except ImportError as error:
        raise ConfigError(f"cannot be imported ({error}); pip install -e '.[bench]'") from error
    model = model.to(compute.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(job.batch, 3, job.image_size, job.image_size).to(compute.device)

    def step() -> None:
        with compute.autocast():
            output = model(inputs)
            loss = output if isinstance(output, Tensor) else output.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Contestant(step, compute, f"{compute.precision}, as it comes", parameters)


def _vit_pytorch(job: Job) -> nn.Module:
    import vit_pytorch

    size = job.config().model.filled
    vit = vit_pytorch.ViT(
        # with "cls", the default, MAE fails in 1.26: its position table has lost a dimension
        pool="mean",
        image_size=job.image_size,
        patch_size=job.patch,
        num_classes=CLASSES,
        dim=size["embed_dim"],
        depth=size["depth"],
        heads=size["num_heads"],
        mlp_dim=4 * size["embed_dim"],
        dim_head=size["embed_dim"] // size["num_heads"],
    )
    return vit_pytorch.MAE(
        encoder=vit,
        masking_ratio=job.mask_ratio,
        decoder_dim=job.decoder_dim,
        decoder_depth=job.decoder_depth,
        decoder_heads=job.decoder_heads,
        decoder_dim_head=job.decoder_dim // job.decoder_heads,
    )


def _transformers(job: Job) -> nn.Module:
    import transformers

    size = job.config().model.filled
    config = transformers.ViTMAEConfig(  # type: ignore[call-arg]
        image_size=job.image_size,
        patch_size=job.patch,
        mask_ratio=job.mask_ratio,
        hidden_size=size["embed_dim"],
        num_hidden_layers=size["depth"],
        num_attention_heads=size["num_heads"],
        intermediate_size=4 * size["embed_dim"],
        decoder_hidden_size=job.decoder_dim,
        decoder_num_hidden_layers=job.decoder_depth,
        decoder_num_attention_heads=job.decoder_heads,
        decoder_intermediate_size=4 * job.decoder_dim,
        norm_pix_loss=True,
        attn_implementation="eager" if job.contestant.endswith("eager") else "sdpa",
    )
    return transformers.ViTMAEForPreTraining(config)
