"""Where a run computes, and in which number format; `vit.machine` chooses both."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

GROUPS = "/proc/self/cgroup"
"""The groups of this process: their number, the controllers that they are for, and where."""
CONTROLS = "/sys/fs/cgroup"
PRODUCTS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The type of matrix products, by `TrainConfig.precision`."""


@dataclass(frozen=True)
class Compute:
    """A device and the number format of its matrix products; all else stays float32.

    Attributes:
        device: of weights, images and all results.
        precision: "fp32", "bf16" or "fp16", for matrix products; weights, sums and optimizer are
            float32.
        compile: whether training steps are compiled.
        note: a line that the user should see; may be empty.
    """

    device: torch.device
    precision: str = "fp32"
    compile: bool = False
    note: str = ""

    @property
    def products(self) -> torch.dtype:
        """The type of matrix products."""
        return PRODUCTS[self.precision]

    @property
    def checks_each_step(self) -> bool:
        """Whether each step's result is read before its update.

        On a CPU it is there. On Apple's GPUs the optimizer's fused kernel updates the weights even
        if it is told that the gradient is not finite (torch 2.10 and later, pytorch pull request
        186360), so the host must not call it.
        """
        return self.device.type != "cuda"

    def autocast(self) -> AbstractContextManager:
        """Compute matrix products in `precision` within the block."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, self.products)

    def compiled(self, module: nn.Module, accum_steps: int) -> nn.Module:
        """Return `module` for training steps, compiled if `compile` is set, with its parameters.

        Args:
            module: computes the loss.
            accum_steps: backward passes per step.
        """
        if not self.compile:
            return module
        # On a GPU also record the kernels as CUDA graphs, because launching a small model otherwise
        # takes longer than computing it. Not for several backward passes, because each replay
        # overwrites the gradients of the one before. Nor on AMD's GPUs, which are "cuda" too: with
        # graphs, models are reported to learn worse there, in silence (pytorch issue 187715).
        mode = None
        if self.device.type == "cuda" and accum_steps == 1 and not torch.version.hip:
            mode = "reduce-overhead"
        return torch.compile(module, dynamic=False, mode=mode)  # type: ignore[return-value]

    def only_compiled_for(self, usual: bool) -> AbstractContextManager:
        """Within the block, run a batch of unusual size, as an epoch's last may be, uncompiled."""
        if usual or not self.compile:
            return nullcontext()
        # compiling again, for one batch an epoch, would take a minute
        return torch.compiler.set_stance("force_eager")

    def __str__(self) -> str:
        parts = [device_name(self.device), self.precision]
        if self.device.type == "cpu":
            threads = torch.get_num_threads()
            parts.append(f"{threads} threads" if threads > 1 else "1 thread")
        if self.compile:
            parts.append("compiled")
        return ", ".join(parts)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Move `values` to `device` without waiting for its current work."""
    # a GPU copies in the background only from pinned memory
    if device.type == "cuda" and not values.is_cuda:
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def all_to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Move tensors of the CPU to `device`; to a GPU in one copy: small ones take as long."""
    if device.type != "cuda":
        return [values.to(device) for values in tensors]

    # side by side as bytes, each from a multiple of 16, where a GPU reads any type
    parts = []
    for values in tensors:
        part = values.flatten().view(torch.uint8)
        parts.append(nn.functional.pad(part, (0, -len(part) % 16)))
    pieces = to_device(torch.cat(parts), device).split([len(part) for part in parts])
    return [
        piece[: values.nbytes].view(values.dtype).view(values.shape)
        for values, piece in zip(tensors, pieces, strict=True)
    ]


def device_name(device: torch.device) -> str:
    """Return a readable name: that of the GPU or the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type

    # Linux lists every core of the CPU with its name; other systems have no such file
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "CPU"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if not names:
        return "CPU"
    return f"{names[0]} ({len(names)} cores)"


def usable_cores() -> int:
    """Return the number of cores that this process may use; a part of a core is one."""
    # taskset and queues allow some of the cores; only Linux tells which
    cores: float = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))

    # a container allows a fraction of their time to its group, which may be one within others;
    # seen from inside, it may be the root
    with suppress(OSError):
        for line in Path(GROUPS).read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            # version 2 has a line without a name; those of version 1 may have several
            place = Path(f"{CONTROLS}/{controllers.partition(',')[0]}{group}")
            for folder in (place, *place.parents):
                cores = min(cores, _time_share(folder))
    return math.ceil(cores)


def _time_share(group: Path) -> float:
    """Return how many cores' time a group of processes has, by Linux' control groups."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError):
            quota, period = " ".join((group / name).read_text() for name in names).split()
            # else it is "max" or -1
            if quota.isdecimal():
                return int(quota) / int(period)
    return math.inf
