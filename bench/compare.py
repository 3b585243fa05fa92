"""Time contestants in turn, each in its own process, and decide which medians may be quoted."""

from __future__ import annotations

import os
import re
import signal
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import RLock, Thread
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from bench.contestants import Contestant, build
from bench.job import Job
from vit.errors import TrainingError, UserError
from vit.progress import track

WIDEST = 0.15
"""A median is quoted if the quartiles differ by at most this fraction of it."""

# Where the time goes, by the profiler's names of operators. The first match counts.
GROUPS = {
    "attention": ("bmm", "softmax", "scaled_dot_product", "flash", "efficient_attention"),
    "products": ("mm", "linear"),
    "normalisation": ("layer_norm",),
    "activation": ("gelu",),
    "optimizer": ("adam", "_foreach", "norm"),
    "copies": ("copy_", "cat", "gather", "scatter", "fill_", "clone", "index"),
}


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of_values(cls, values: Sequence[float]) -> Spread:
        """Return the spread of one value or more."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    @property
    def quotable(self) -> bool:
        """Whether the values lie close enough together for their median to mean something."""
        return self.high - self.low <= WIDEST * self.median

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the median is null if it may not be quoted."""
        return {
            "median": self.median if self.quotable else None,
            "quartiles": [self.low, self.high],
        }

    def __str__(self) -> str:
        if not self.quotable:
            return f"too noisy to quote ({self.low:.2f} - {self.high:.2f})"
        return f"{self.median:.2f} ({self.low:.2f} - {self.high:.2f})"


@dataclass
class Result:
    """The measurements of one contestant.

    Attributes:
        job: what it did.
        about: how it computes: "about", "precision", "parameters", "products", "threads",
            "first_seconds".
        images_per_second: one per round.
        peak_mb: of its process, in 10^6 bytes; on a GPU, of the GPU's memory.
        profile: share of the time of each of GROUPS, if asked for.
    """

    job: Job
    about: dict[str, Any]
    images_per_second: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    profile: dict[str, float] = field(default_factory=dict)

    def ratio_to(self, other: Result, factor: float = 1.0) -> Spread:
        """Return this one's rate / the other's, round by round: a slow round slows both."""
        pairs = zip(self.images_per_second, other.images_per_second, strict=True)
        return Spread.of_values([factor * a / b for a, b in pairs])

    def beats(self, other: Result) -> bool:
        """Whether it is faster in every round."""
        return all(
            a > b for a, b in zip(self.images_per_second, other.images_per_second, strict=True)
        )


def compare(jobs: Sequence[Job], rounds: int, profiled: bool = False) -> list[Result]:
    """Time all `jobs` in turn, round after round (A B C A B C ...), one computing at a time.

    Args:
        rounds: the steps of each.
        profiled: profile the first one afterwards.

    Raises:
        TrainingError: one of them cannot be timed.
    """
    with ExitStack() as stack:
        # A process each
        workers = [stack.enter_context(Worker(job)) for job in jobs]
        results = []
        for worker in track(workers, "contestants"):
            results.append(Result(worker.job, worker.ask(_start, worker.job)))

        # In turn; the first round warms up
        for number in track(range(rounds + 1), "rounds"):
            for worker, result in zip(workers, results, strict=True):
                seconds, result.peak_mb = worker.ask(_step)
                if number:
                    result.images_per_second.append(worker.job.batch / seconds)
        if profiled:
            results[0].profile = workers[0].ask(_profile)
    return results


class Worker:
    """A contestant's process, with its own allocator and its own peak memory; a context manager."""

    def __init__(self, job: Job):
        self.job = job
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        # An abandoned step may take minutes
        if kind is not None:
            for process in self._pool._processes.values():
                process.kill()
        self._pool.shutdown()

    def ask(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of `function` in the process."""
        # The first call starts the process
        with without_interrupts():
            answer = self._pool.submit(function, *args)
        try:
            return answer.result()
        except BrokenProcessPool as error:
            raise TrainingError(
                f"{self.job.contestant}: its process was killed, perhaps out of memory"
            ) from error
        except Exception as error:  # settings, memory, a library of another version
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            raise TrainingError(f"{self.job.contestant}: {kind}{error}") from error


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the block ends, and keep it from the processes that begin within it.

    Their parent ends them. Ctrl-C goes to all of them, and each would print a traceback of its
    imports.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- within the process ---

_contestant: Contestant


def _begin() -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    silence = os.open(os.devnull, os.O_WRONLY)  # keeps what libraries print out of the tables
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    tqdm.set_lock(
        RLock()
    )  # the compiler's own bars would make a semaphore, which a killed process leaves behind


def _end_with_parent() -> None:
    """End this process when its parent has ended: a killed parent cannot end it."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _start(job: Job) -> dict[str, Any]:
    global _contestant
    _contestant = build(job)
    return {
        "about": _contestant.about,
        "precision": _contestant.compute.precision,
        "parameters": _contestant.parameters,
        "products": _contestant.products,
        "threads": torch.get_num_threads(),
        "first_seconds": _contestant.seconds_of_step(steps=1),
    }


def _step() -> tuple[float, float]:
    seconds = _contestant.seconds_of_step()
    if _contestant.compute.device.type == "cuda":
        return seconds, torch.cuda.max_memory_allocated() / 1e6
    return seconds, peak_megabytes()


def _profile() -> dict[str, float]:
    on_gpu = _contestant.compute.device.type == "cuda"
    activities = [ProfilerActivity.CPU]
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)
    else:
        # The profiler's records come to lie between the step's blocks, which then need fresh
        # memory; without a reserve of touched pages, their page faults would count as the time of
        # whatever writes large tensors.
        torch.ones(min(int(peak_megabytes() * 1e6), 2**30), dtype=torch.uint8)
    with profile(activities=activities) as profiler:
        _contestant.seconds_of_step(steps=2)
    averages = profiler.key_averages()
    if not on_gpu:
        return shares({event.key: event.self_cpu_time_total for event in averages})
    # A kernel's time counts twice: for the operator that started it, and for the kernel itself. The
    # operators show more; a recorded CUDA graph has only kernels.
    host = torch.autograd.DeviceType.CPU
    operators: dict[str, float] = {}
    kernels: dict[str, float] = {}
    for event in averages:
        times = operators if event.device_type == host else kernels
        times[event.key] = event.self_device_time_total
    if sum(operators.values()):
        return shares(operators)
    return shares(kernels)


def shares(events: dict[str, float]) -> dict[str, float]:
    """Return the share of the time of each of GROUPS, and of "other", from times by operator."""
    total = sum(events.values())
    share_of_group = dict.fromkeys([*GROUPS, "other"], 0.0)
    for name, seconds in events.items():
        share_of_group[group_of(name)] += seconds / total
    return share_of_group


def group_of(operator: str) -> str:
    """Return the first of GROUPS that an operator belongs to; "other" if none."""
    for group, parts in GROUPS.items():
        if any(part in operator for part in parts):
            return group
    return "other"


def peak_megabytes() -> float:
    """Return this process's peak memory so far, in 10^6 bytes; 0 if the system does not say."""
    status = Path("/proc/self/status")
    # Linux, where getrusage begins with the parent's peak
    if status.exists():
        peak = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
        return int(peak[1]) * 1024 / 1e6 if peak else 0.0
    try:
        import resource
    except ImportError:
        # Windows
        return 0.0
    # In bytes on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
