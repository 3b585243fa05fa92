"""A contestant in a process of its own: it has its own allocator and its own peak memory, and takes turns with others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from vit.bench.contestants import Contestant, build
from vit.bench.job import Job
from vit.errors import UserError

# Where the time goes, by what the profiler calls an operator. The first match counts.
GROUPS = {
    "attention": ("bmm", "softmax", "scaled_dot_product", "flash", "efficient_attention"),
    "products": ("mm", "linear"),
    "normalisation": ("layer_norm",),
    "activation": ("gelu",),
    "optimizer": ("adam", "_foreach", "norm"),
    "copies": ("copy_", "cat", "gather", "scatter", "fill_", "clone", "index"),
}


class BenchError(UserError):
    """A contestant that cannot be timed; the message is one line."""

    exit_code = 1


class Worker:
    """A contestant in its process, started at once; a context manager, at whose end the process ends.

    Attributes:
        job: the contestant's.
        about: what it says of itself: "about", "precision", "parameters", "products", "threads", "first_seconds".

    Raises:
        BenchError: it cannot be built, or its process ends by itself.
    """

    def __init__(self, job: Job):
        self.job = job
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(job, theirs), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.about = self._answer()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._pipe.close()  # which ends a process that waits for its turn
        self._process.join(timeout=2)
        self._process.kill()
        self._process.join()

    def step(self) -> dict[str, Any]:
        """Make a step: its "seconds", "peak_mb" of the process so far, and on a GPU "peak_gpu_mb"."""
        return self._answer("step")

    def profile(self) -> dict[str, float]:
        """Return the share of the time of each of GROUPS, and of "other"."""
        return self._answer("profile")

    def _answer(self, request: str = "") -> dict[str, Any]:
        try:
            if request:
                self._pipe.send(request)
            answer = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join()
            code = self._process.exitcode
            raise BenchError(f"{self.job.contestant}: its process ended: {code}") from error
        if isinstance(answer, str):
            raise BenchError(f"{self.job.contestant}: {answer}")
        return answer


def _serve(job: Job, pipe: Connection) -> None:
    """Build the contestant and answer requests; what goes wrong is an answer too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends this one
    silence = os.open(os.devnull, os.O_WRONLY)  # what a library prints does not get between the tables
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        contestant = build(job)
        first = seconds_of_step(contestant)
        pipe.send(
            {
                "about": contestant.about,
                "precision": contestant.compute.precision,
                "parameters": contestant.parameters,
                "products": contestant.products,
                "threads": torch.get_num_threads(),
                "first_seconds": first,
            }
        )
        while True:
            if pipe.recv() == "profile":
                pipe.send(_profile(contestant))
                continue
            answer: dict[str, Any] = {"seconds": seconds_of_step(contestant), "peak_mb": peak_megabytes()}
            if contestant.compute.device.type == "cuda":
                answer["peak_gpu_mb"] = torch.cuda.max_memory_allocated() / 1e6
            pipe.send(answer)
    except EOFError:  # nobody asks any more
        return
    except UserError as error:
        pipe.send(str(error))
    except Exception as error:  # out of memory, a library of another version
        pipe.send(f"{type(error).__name__}: {error}")


def seconds_of_step(contestant: Contestant) -> float:
    """Time a step. (torch.utils.benchmark.Timer makes two more each time, to warm up.)"""
    begin = time.perf_counter()
    contestant.step()
    if contestant.compute.device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - begin


def _profile(contestant: Contestant) -> dict[str, float]:
    on_gpu = contestant.compute.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        seconds_of_step(contestant)
        seconds_of_step(contestant)
    averages = profiler.key_averages()
    if not on_gpu:
        return shares({event.key: event.self_cpu_time_total for event in averages})
    # A kernel's time stands twice: with the operator that started it, and with the kernel itself. The operators tell
    # more; of a recorded CUDA graph there are only kernels.
    host = torch.autograd.DeviceType.CPU
    operators = {event.key: event.self_device_time_total for event in averages if event.device_type == host}
    kernels = {event.key: event.self_device_time_total for event in averages if event.device_type != host}
    return shares(operators if sum(operators.values()) else kernels)


def shares(events: dict[str, float]) -> dict[str, float]:
    """Return the share of each of GROUPS, and of "other", in times by operator."""
    total = sum(events.values())
    found = dict.fromkeys([*GROUPS, "other"], 0.0)
    for name, seconds in events.items():
        group = next((group for group, parts in GROUPS.items() if any(part in name for part in parts)), "other")
        found[group] += seconds / total
    return found


def peak_megabytes() -> float:
    """Return the most memory that this process has had so far, in MB (10^6 bytes); 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
