"""Several processes, on one machine or many, started by torchrun or by any launcher like it.

Every process draws the same batch, computes its own rows, and adds its gradient to the others'. The
main process (rank 0) writes.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# before there is a group: defaults of its functions keep the group of the time, and the compiler
# imports it
import torch.distributed.nn.functional
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from vit.config import Config
from vit.device import usable_cores
from vit.errors import ConfigError, TrainingError, shortened

T = TypeVar("T")

JOINED_BY = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables of torch's own `env://` by which processes find each other."""
COUNTS = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Those that hold the number of processes started. SLURM_NTASKS is also set for a single one."""
MEETING = timedelta(seconds=60)
"""How long the processes of a run wait for each other when they begin."""

# this process's place and where the processes meet, once they have met
_met: list[tuple[Distributed, dist.Store]] = []
# numbers of this process's groups, equal in all processes: a script may train several times
_groups = itertools.count()


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

    def all_reduce_max(self, value: int) -> int:
        """Return the largest of the processes' numbers; on the CPU, so that no GPU waits."""
        number = torch.tensor(value)
        if self.world_size > 1:
            dist.all_reduce(number, dist.ReduceOp.MAX)
        return int(number)

    def broadcast_from_main(self, make: Callable[[], T]) -> T:
        """Call `make` in the main process, and return its result in every process."""
        if self.world_size == 1:
            return make()
        # the values of the others are overwritten
        values: list[Any] = [make() if self.is_main else None]
        dist.broadcast_object_list(values, device=torch.device("cpu"))
        return values[0]

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let one process per machine run the block first; the others follow and find its cache."""
        if self.local_rank > 0:
            dist.barrier()
        yield
        if self.world_size > 1 and self.local_rank == 0:
            dist.barrier()

    @contextmanager
    def using_all_cores(self) -> Iterator[None]:
        """Compute within the block with the CPU threads of all processes; the others have ended."""
        threads = torch.get_num_threads()
        of_all = min(threads * self.local_world_size, usable_cores())
        torch.set_num_threads(max(threads, of_all))
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def share_weights(self, module: nn.Module) -> None:
        """Give every process the main process's weights and buffers, in place.

        Drawn from one seed, they may differ in their last bits between machines.
        """
        if self.world_size > 1:
            for value in module.state_dict().values():
                dist.broadcast(value, src=0)

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Sum the gradients over all processes, in place, in one exchange.

        DistributedDataParallel would begin while the backward pass runs. But it copies all inputs
        to the GPU, and a compiled backward pass hands over all gradients at its end.

        Args:
            parameters: the same ones in every process; those without a gradient are left out.
        """
        if self.world_size == 1:
            return
        gradients = [value.grad for value in parameters if value.grad is not None]
        flat = _flatten_dense_tensors(gradients)
        dist.all_reduce(flat)
        torch._foreach_copy_(gradients, _unflatten_dense_tensors(flat, gradients))

    def __str__(self) -> str:
        return f"{self.world_size} processes" if self.world_size > 1 else "1 process"


SINGLE = Distributed()


def gather_batch(values: Tensor, place: Tensor | None) -> Tensor:
    """Return the rows of the whole batch, in the order of one process: (B, D).

    A loss of the whole batch, times each process's share of it, has the gradient that it would have
    in one process, once `Distributed.sum_gradients` has summed.

    Args:
        values: one row per image of this process: (b, D).
        place: `Draws.place` of these rows, on the CPU; None in a single process, whose rows are the
            batch.
    """
    if place is None:
        return values
    return _gather(values, place)


# What depends on values is not compiled. torch.compiler.disable does this, but loads the compiler.
@_disable_dynamo
def _gather(values: Tensor, place: Tensor) -> Tensor:
    # this process's rows in their places, which follow each other, and zeros in all others: the sum
    # is the whole batch
    rows = place[:, 0]
    ours = int((rows >= 0).sum())
    before = max(int(rows[0]), 0)
    after = int(place[0, 1]) - before - ours
    batch = nn.functional.pad(values[:ours], (0, 0, before, after))  # (B, D)
    return _Sum.apply(batch)  # type: ignore[no-untyped-call]


class _Sum(torch.autograd.Function):
    """The sum over all processes, which all use: its gradient is the sum of theirs."""

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


def own_place() -> Distributed:
    """Return this process's place among those that were started together."""
    if _met:
        return _met[0][0]
    if all(map(os.environ.get, JOINED_BY)):
        # torchrun also gives its place in the machine, which a process alone in one does not need
        place = Distributed(
            _number("RANK", 0),
            _number("WORLD_SIZE", 1),
            _number("LOCAL_RANK", 0),
            _number("LOCAL_WORLD_SIZE", 1),
        )
        if place.world_size > 1:
            return place
    # each would train the whole run by itself
    for name in COUNTS:
        count = _number(name, 1)
        if count > 1:
            raise ConfigError(
                name,
                f"{count} processes were started, and {', '.join(JOINED_BY)} do not say where they "
                "meet: start them by torchrun, or unset it to train alone",
            )
    return SINGLE


def _number(name: str, usual: int) -> int:
    """Return a number that a launcher has left in the environment; `usual` if it is empty."""
    return int(os.environ.get(name) or usual)


def _meet(place: Distributed) -> dist.Store:
    """Wait for the other processes, and return the store through which all communicate.

    Processes that this one starts do not belong to them.
    """
    until = time.monotonic() + MEETING.seconds
    try:
        # torch's own client writes a page about each try to reach the first, which listens
        while place.rank > 0:
            try:
                address = (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
                socket.create_connection(address, timeout=1).close()
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        store, _, _ = next(dist.rendezvous("env://", timeout=MEETING))
        store.set(f"vit-{place.rank}", "here")
        store.wait([f"vit-{rank}" for rank in range(place.world_size)], MEETING)
    except (OSError, dist.DistError) as error:
        raise TrainingError(
            f"RANK {place.rank} of {place.world_size} has not met the others within "
            f"{MEETING.seconds} s; start them all, or unset {', '.join(JOINED_BY)} to train alone "
            f"({shortened(str(error))})"
        ) from error
    for name in (*JOINED_BY, *COUNTS, "TORCHELASTIC_USE_AGENT_STORE"):
        os.environ.pop(name, None)
    _met.append((place, store))
    return store


@contextmanager
def init_distributed(config: Config) -> Iterator[Distributed]:
    """Join the processes that were started together into one group for the block.

    They communicate by gloo on the CPU and nccl between GPUs. A single process yields `SINGLE`.
    """
    place = own_place()
    if place.world_size == 1:
        yield SINGLE
        return
    on_gpus = config.run.device in ("auto", "cuda") and torch.cuda.is_available()

    # each process has its own GPU or CPU cores
    store = _met[0][1] if _met else _meet(place)
    with ExitStack() as undo:
        if on_gpus:
            # a launcher may show each process only its own
            torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
        else:
            undo.enter_context(_own_cores(place))
        undo.enter_context(_group(place, on_gpus, store))
        yield place


@contextmanager
def _own_cores(place: Distributed) -> Iterator[None]:
    """Within the block, compute on this process's share of the machine's CPU cores.

    Threads that move from core to core lose their caches.
    """
    # only Linux shows which cores there are
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    all_cores = sorted(os.sched_getaffinity(0))
    count = len(all_cores) // place.local_world_size
    if count > 0:
        first = place.local_rank * count
        os.sched_setaffinity(0, all_cores[first : first + count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cores)


@contextmanager
def _group(place: Distributed, on_gpus: bool, store: dist.Store) -> Iterator[None]:
    """Form the group of all processes, which meet at `store`, and end it after the block."""
    # the long timeout lets the others wait while the first downloads, decodes or evaluates, and the
    # prefix keeps the addresses of an earlier group apart
    timeout = timedelta(hours=2)
    store.set_timeout(timeout)
    end = dist.destroy_process_group
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
            timeout=timeout,
            store=dist.PrefixStore(f"vit-{next(_groups)}", store),
            rank=place.rank,
            world_size=place.world_size,
        )
        yield
    except BaseException as error:
        # nccl would wait for unfinished exchanges, which a process that has ended never joins
        if on_gpus:
            end = dist.distributed_c10d._abort_process_group
        # if this error is about another process, torchrun is to see the end of that one first, and
        # then ends this one; on a busy machine it takes long. gloo raises no type of its own
        if isinstance(error, RuntimeError) and re.search("peer|remote worker", str(error)):
            time.sleep(60)
        raise
    finally:
        if dist.is_initialized():
            end()
        # cycles, such as an error's traceback, may keep the group, and its threads abort the
        # process if they outlive Python
        gc.collect()
