"""One contestant in a process of its own: `python -m vit.bench.worker`, a JSON line in, a JSON line out.

In its own process a contestant has its own allocator and its own peak memory, and takes turns with the others.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import IO, Any


def peak_megabytes() -> float:
    """The most memory that this process has had so far, in MB (10^6 bytes); 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


# What the profiler calls it -> where the time goes. The first match counts.
GROUPS = {
    "attention": ("bmm", "softmax", "scaled_dot_product", "flash", "efficient_attention"),
    "products": ("mm", "linear"),
    "normalisation": ("layer_norm",),
    "activation": ("gelu",),
    "optimizer": ("adam", "_foreach", "norm"),
    "copies": ("copy_", "cat", "gather", "scatter", "fill_", "clone", "index"),
}


def shares(events: dict[str, float]) -> dict[str, float]:
    """Times by operator -> shares of the whole by group; what no group names is "other"."""
    total = sum(events.values())
    found = dict.fromkeys([*GROUPS, "other"], 0.0)
    for name, seconds in events.items():
        group = next((group for group, parts in GROUPS.items() if any(part in name for part in parts)), "other")
        found[group] += seconds / total
    return found


def main() -> None:
    """Serve until the input ends."""
    answers: IO[str] = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints goes to stderr, and cannot be taken for an answer
    job = json.loads(sys.stdin.readline())
    threads = job["run"].get("threads")

    import torch

    from vit.bench.contestants import build
    from vit.bench.job import Job
    from vit.errors import UserError

    if threads:
        torch.set_num_threads(threads)
    try:
        contestant = build(Job(**job))
    except UserError as error:
        answers.write(json.dumps({"error": str(error)}) + "\n")
        return
    device = contestant.compute.device

    def timed(steps: int) -> list[float]:
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            contestant.step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        return seconds

    def profile() -> dict[str, float]:
        activity = torch.profiler.ProfilerActivity
        on_gpu = device.type == "cuda"
        with torch.profiler.profile(activities=[activity.CPU, *([activity.CUDA] if on_gpu else [])]) as profiler:
            timed(2)
        averages = profiler.key_averages()
        if not on_gpu:
            return shares({e.key: e.self_cpu_time_total for e in averages})
        # A kernel's time stands twice: with the operator that started it, and with the kernel itself. The operators tell
        # more; of a recorded CUDA graph there are only kernels.
        on_host = torch.autograd.DeviceType.CPU
        operators = {e.key: e.self_device_time_total for e in averages if e.device_type == on_host}
        kernels = {e.key: e.self_device_time_total for e in averages if e.device_type != on_host}
        return shares(operators if sum(operators.values()) else kernels)

    answer: dict[str, Any] = {
        "about": contestant.about,
        "precision": contestant.compute.precision,
        "parameters": sum(parameter.numel() for parameter in contestant.model.parameters()),
        "threads": torch.get_num_threads(),
        "first_seconds": timed(1)[0],
    }
    answers.write(json.dumps(answer) + "\n")
    for line in sys.stdin:
        what, _, number = line.strip().partition(" ")
        if what == "steps":
            answer = {"seconds": timed(int(number)), "peak_mb": peak_megabytes()}
            if device.type == "cuda":
                answer["peak_gpu_mb"] = torch.cuda.max_memory_allocated() / 1e6
        elif what == "profile":
            answer = profile()
        else:
            raise ValueError(f"unknown request {line!r}")
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
