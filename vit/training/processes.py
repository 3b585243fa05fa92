"""Several processes, on one machine or many, through torchrun and DistributedDataParallel.

Every process makes the same draws, takes its part of each batch, and averages its gradient with the others'. The first one
(rank 0) writes.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vit.config import ConfigError, TrainConfig
from vit.errors import UserError

T = TypeVar("T")


class PeerLostError(UserError):
    """Another process of the group has ended, and this one cannot go on alone."""

    exit_code = 75


# The first process may download, decode or evaluate while the others wait.
PATIENCE = timedelta(hours=2)


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this is.

    Attributes:
        rank: from 0, over all machines.
        count: of all machines.
        local_rank: from 0, on this machine; on GPUs also the GPU's number.
        local_count: on this machine.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def part(self, images: int) -> slice:
        """Which of a batch's images are this process's; the parts differ by one image at most, and may be empty."""
        return slice(images * self.rank // self.count, images * (self.rank + 1) // self.count)

    def largest_part(self, images: int) -> int:
        """Images of the process that has the most."""
        return -(-images // self.count)

    def sum(self, values: Tensor) -> Tensor:
        """`values`, replaced by their sum over all processes."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def largest(self, here: int) -> int:
        """The largest of the numbers that the processes give. All ask together; on the CPU, so that no GPU waits."""
        if self.count == 1:
            return here
        number = torch.tensor(here)
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return int(number)

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` returns in the first process, in all of them."""
        if self.count == 1:
            return make()
        values = [make() if self.first else None]
        dist.broadcast_object_list(values, device=torch.device("cpu"))
        return values[0]  # type: ignore[return-value]

    @contextmanager
    def one_first(self) -> Iterator[None]:
        """A block that the first process of each machine runs alone, and the others after it: they find its cache."""
        if self.count > 1 and self.local_rank:
            dist.barrier()
        yield
        if self.count > 1 and not self.local_rank:
            dist.barrier()

    def parallel(self, module: nn.Module, device: torch.device) -> nn.Module:
        """`module` with its gradients averaged over the processes; itself where there is one."""
        if self.count == 1:
            return module
        # Of a process with a single image the class token's gradient is a view with other strides: of no consequence.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        devices = [torch.cuda.current_device()] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)

    def __str__(self) -> str:
        return f"{self.count} processes" if self.count > 1 else "1 process"


ALONE = Processes()


@contextmanager
def joined(config: TrainConfig) -> Iterator[Processes]:
    """A block in which the processes that torchrun started are one group: gloo on the CPU, nccl between GPUs.

    Without torchrun it is `ALONE`.

    Raises:
        ConfigError: the device cannot be shared in this way.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield ALONE
        return
    rank, count, local_rank, local_count = (
        int(os.environ[key]) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    on_gpus = config.device in ("auto", "cuda") and torch.cuda.is_available()
    if config.device == "mps":
        raise ConfigError("train.device: 'mps' cannot be shared by several processes; use cpu, or one process")
    if count > config.batch_size:
        raise ConfigError(f"train.batch_size: {config.batch_size} images cannot be shared by {count} processes")
    if on_gpus:
        if local_rank >= torch.cuda.device_count():
            found = f"{torch.cuda.device_count()} GPUs, {local_count} processes on this machine"
            raise ConfigError(f"train.device: {found}; start one process a GPU, or use cpu")
        torch.cuda.set_device(local_rank)
    elif local_count > 1 and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= local_count:  # each process on cores of its own: threads that move lose their caches
            share = len(cores) // local_count
            os.sched_setaffinity(0, cores[local_rank * share : (local_rank + 1) * share])
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo", timeout=PATIENCE)
    try:
        yield Processes(rank, count, local_rank, local_count)
    except RuntimeError as error:  # gloo's; it has no type of its own
        if "onnection" not in str(error) or "peer" not in str(error):
            raise
        time.sleep(2)  # the other one, which knows why, should be seen to have ended first
        raise PeerLostError(
            f"process {rank} of {count} ends, because another one has ended; see what that one says"
        ) from error
    finally:
        dist.destroy_process_group()


def launch(processes: int, threads: int) -> int:
    """Run this program again as `processes` processes, by torch's own elastic launcher, and wait for them.

    Args:
        processes: on this machine.
        threads: of each; 0 shares the cores among them.

    Returns:
        The exit code of the first process that failed, 0 when all went well.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed"):  # the launcher: the processes speak for themselves
            logging.getLogger(name).setLevel(logging.CRITICAL)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ["OMP_NUM_THREADS"] = str(threads or max(cores // processes, 1))
    with tempfile.TemporaryDirectory() as logs:
        config = LaunchConfig(
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            run_id=uuid.uuid4().hex,
            max_restarts=0,
            monitor_interval=0.1,
        )
        try:
            elastic_launch(config, sys.executable)("-u", *sys.argv)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.exitcode > 0:  # it has said why itself
                return failure.exitcode
            raise PeerLostError(
                f"process {rank} of {processes} was ended by {signal.Signals(-failure.exitcode).name}"
            ) from error
        except SignalException as stopped:  # the processes have saved and said so
            return 128 + signal.Signals(stopped.sigval).value
        return 0
