"""Several processes, on one machine or many, started by torchrun, with DistributedDataParallel.

Every process draws the same batch, computes its own rows, and averages its gradient with the others'. The main process
(rank 0) writes.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

# before there is a group: its functions' defaults keep the one that they find, and DDP imports it too
import torch.distributed.nn.functional
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from vit.config import Config
from vit.errors import ConfigError, UserError
from vit.openmp import usable_cores

T = TypeVar("T")
_groups = itertools.count()  # of this process, as of the others: a script may train several times


class PeerLostError(UserError):
    """Another process of the group has ended, and this one cannot continue alone."""

    exit_code = 75


@dataclass(frozen=True)
class Distributed:
    """The place of this process among all.

    Attributes:
        rank: from 0, over all machines.
        world_size: number of processes on all machines.
        local_rank: from 0, on this machine; also the GPU's number.
        local_world_size: number of processes on this machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def largest_shard(self, images: int) -> int:
        """Return the most images of a batch that any process gets."""
        return -(-images // self.world_size)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Sum `values` over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def all_reduce_max(self, here: int) -> int:
        """Return the largest of the processes' numbers; computed on the CPU, so that no GPU waits."""
        number = torch.tensor(here)
        if self.world_size > 1:
            dist.all_reduce(number, dist.ReduceOp.MAX)
        return int(number)

    def broadcast_from_main(self, make: Callable[[], T]) -> T:
        """Call `make` in the main process, and return its result in every process."""
        if self.world_size == 1:
            return make()
        values = [make() if self.is_main else None]
        dist.broadcast_object_list(values, device=torch.device("cpu"))
        return values[0]  # type: ignore[return-value]

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let one process per machine run the block first; the others follow, and find its cache."""
        if self.world_size > 1 and self.local_rank:
            dist.barrier()
        yield
        if self.world_size > 1 and not self.local_rank:
            dist.barrier()

    @contextmanager
    def others_ended(self) -> Iterator[None]:
        """Within the block, compute on the CPU with the threads of all processes that were on this machine."""
        own = torch.get_num_threads()
        torch.set_num_threads(max(own, min(own * self.local_world_size, usable_cores())))
        try:
            yield
        finally:
            torch.set_num_threads(own)

    def wrap(self, module: nn.Module, device: torch.device) -> nn.Module:
        """Wrap `module` to average its gradients over the processes; a single process gets it back as it is."""
        if self.world_size == 1:
            return module
        # with a single image in a process, the class token's gradient is a view with other strides, which is harmless
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        devices = [torch.cuda.current_device()] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(
            module, device_ids=devices, gradient_as_bucket_view=True
        )

    def __str__(self) -> str:
        return f"{self.world_size} processes" if self.world_size > 1 else "1 process"


SINGLE = Distributed()


def gather_batch(values: Tensor, place: Tensor | None) -> Tensor:
    """Return the rows of the whole batch, in the order of one process: (B, D), from every process's `values` (b, D).

    A loss of the whole batch has the gradient that it would have in one process, once `Distributed.wrap` has averaged.

    Args:
        values: one row per image of this process.
        place: `Draws.place` of these rows; None in a single process, whose rows are the batch.
    """
    return values if place is None else _gather(values, place)


@_disable_dynamo  # what depends on values is not compiled; torch.compiler.disable is this, but loads the compiler at once
def _gather(values: Tensor, place: Tensor) -> Tensor:
    row, own = place[:, 0], place[:, 0] >= 0
    whole = values.new_zeros(int(place[0, 1]), values.shape[1])
    return _Sum.apply(whole.index_put((row[own],), values[own]))  # type: ignore[no-untyped-call]


class _Sum(torch.autograd.Function):
    """The sum over all processes. All of them compute with it, so its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        values = values.clone()
        dist.all_reduce(values)
        return values

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient


@contextmanager
def init_distributed(config: Config) -> Iterator[Distributed]:
    """Join the processes started by torchrun into one group for the block: gloo on the CPU, nccl between GPUs.

    Without torchrun, yield `SINGLE`.

    Raises:
        ConfigError: this many processes cannot share the device or the batch.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield SINGLE
        return
    keys = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, count, local_rank, local_count = (int(os.environ[key]) for key in keys)
    device, batch_size = config.run.device, config.train.batch_size
    on_gpus = device in ("auto", "cuda") and torch.cuda.is_available()
    if device == "mps":
        raise ConfigError(
            "run.device: 'mps' cannot be shared by several processes; use cpu, or one process"
        )
    if count > batch_size:
        raise ConfigError(
            f"train.batch_size: {batch_size} images cannot be shared by {count} processes"
        )

    # give each process its own GPU or CPU cores: threads that move lose their caches
    cores: list[int] = []
    if on_gpus:
        if local_rank >= torch.cuda.device_count():
            found = f"{torch.cuda.device_count()} GPUs, {local_count} processes on this machine"
            raise ConfigError(f"run.device: {found}; start one process per GPU, or use cpu")
        torch.cuda.set_device(local_rank)
    elif local_count > 1 and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if share := len(cores) // local_count:
            os.sched_setaffinity(0, cores[local_rank * share : (local_rank + 1) * share])

    # form the group; the long timeout lets the others wait while the first downloads, decodes or evaluates
    backend, timeout = "cpu:gloo,cuda:nccl" if on_gpus else "gloo", timedelta(hours=2)
    store, _, _ = next(dist.rendezvous("env://", timeout=timeout))
    store = dist.PrefixStore(
        f"vit-{next(_groups)}", store
    )  # torchrun's still has the addresses of the group before
    dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=count)
    try:
        yield Distributed(rank, count, local_rank, local_count)
    except RuntimeError as error:  # gloo raises no type of its own
        if "onnection" not in str(error) or "peer" not in str(error):
            raise
        time.sleep(
            10
        )  # so that torchrun first sees the end of the other one, which knows the cause
        ends = f"process {rank} of {count} stops because another has ended"
        raise PeerLostError(f"{ends}; see its message") from error
    finally:
        dist.destroy_process_group()
        # `wrap` made cycles, which keep the group, and its threads abort the process if they outlive Python
        gc.collect()
        if cores:
            os.sched_setaffinity(0, cores)
