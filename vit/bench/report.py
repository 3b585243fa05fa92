"""`vit bench` from jobs to tables and plain values."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from vit.bench.compare import Result, Spread, compare
from vit.bench.contestants import flops_per_image
from vit.bench.job import Job
from vit.bench.scaling import AXES, scaling, variants
from vit.device import choose_compute, device_name, versions

# One choice changed, all else as it is: what the choice gives is what is lost so.
ABLATIONS: dict[str, dict[str, Any]] = {
    "freed memory given back to the system": {"allocator": False},
    "the batch in one part": {"run": {"grad_accum_steps": 1}},
    "attention math everywhere": {"run": {"attention": "math"}},
    "attention flash everywhere": {"run": {"attention": "flash"}},
    "AdamW in many kernels": {"fused_adamw": False},
    "products in fp32": {"precision": "fp32"},
    "products in bf16": {"precision": "bf16"},
}


def bench(
    jobs: Sequence[Job], rounds: int, peers: Sequence[str], ablation: bool, scaled: bool, plot: Path | None
) -> dict[str, Any]:
    """Measure, print it as it comes, and return it for JSON.

    Args:
        jobs: our step, each time.
        rounds: how often each contestant has its turn, a step each.
        peers: on the same jobs.
        ablation: also our step with each of ABLATIONS.
        scaled: how the cost of the first job grows along AXES.
        plot: a picture of that.

    Raises:
        BenchError: a contestant cannot be timed.
        ConfigError: a job cannot be done.
    """
    # What cannot be done is said before minutes are spent on what can. "auto" is settled here: each process might find
    # something else.
    settled = []
    for job in jobs:
        compute = choose_compute(job.config().run, job.precision)  # sets the threads too
        settled.append(replace(job, precision=compute.precision))
    if scaled:
        for axis in AXES:
            for _, changed in variants(settled[0], axis):
                changed.config()

    # The machine
    about = machine(compute.device)
    print(f"{about['device']}, {about['threads']} threads, {about['date']}")
    print(textwrap.fill(", ".join(f"{name} {version}" for name, version in about["versions"].items()), 120))

    # The steps
    steps = [bench_step(job, rounds, peers, ablation) for job in settled]
    report: dict[str, Any] = {"machine": about, "steps": steps, "rounds": rounds}
    if scaled:
        report["scaling"] = scaling(settled[0], rounds, plot)
    return report


def machine(device: torch.device) -> dict[str, Any]:
    """Return what the figures belong to: processor or GPU, cores, threads, versions, date."""
    known = {found.name: found.version for found in importlib.metadata.distributions()}
    others = {name: known.get(name, "not installed") for name in ("timm", "vit-pytorch", "transformers")}
    return {
        "device": device_name(device),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": versions() | others,
        "date": datetime.date.today().isoformat(),
    }


def bench_step(job: Job, rounds: int, peers: Sequence[str], ablation: bool) -> dict[str, Any]:
    """Time our step, with and without its data, beside the ceiling, the peers and the ablations."""
    # Who takes part
    flops = flops_per_image(job)
    print(f"\n{job}, {flops / 1e9:.3f} GFLOP per image")
    jobs = [job, replace(job, with_data=True), replace(job, contestant="ceiling")]
    jobs += [replace(job, contestant=name, compile="off") for name in peers]
    changes = {}
    for name, change in ABLATIONS.items() if ablation else ():
        if change.get("precision") != job.precision:
            changes[name] = replace(job, **change)

    # Their rounds. The ceiling has the products with weights alone, so it is compared FLOP for FLOP.
    results = compare([*jobs, *changes.values()], rounds, profiled=True)
    (ours, whole, ceiling, *others), rest = results[: len(jobs)], results[len(jobs) :]
    ablated = dict(zip(changes, rest, strict=True))
    products = ceiling.about["products"] / job.batch
    peak = Spread.of([rate * products for rate in ceiling.images_per_second])  # FLOP/s
    fraction, share = ours.ratio_to(ceiling, flops / products), whole.ratio_to(ours)
    profile = ours.profile or {}

    def print_line(name: str, result: Result, *ratio: Spread) -> None:
        rate = Spread.of(result.images_per_second)
        figures = f"{rate.median:,.1f} ({rate.low:,.1f} - {rate.high:,.1f})"
        memory = result.peak_mb if result.peak_gpu_mb is None else result.peak_gpu_mb
        print(f"  {name:41} {figures:>23} {memory:>8,.0f}  {''.join(map(str, ratio))}".rstrip())

    def values_of(result: Result) -> dict[str, Any]:
        return asdict(result) | {"ours_is_faster_by": ours.ratio_to(result).to_dict()}

    # The table
    print(f"  ceiling  {peak.median / 1e9:,.0f} GFLOP/s by our products = {peak.median / flops:,.1f} images/s")
    print(f"  ours     {ours.about['about']}, first step {ours.about['first_seconds']:.1f} s")
    print(f"           {fraction} of the ceiling")
    print(f"           {share} of the bare step when it begins with data, from uint8 images on")
    print("           " + ", ".join(f"{name} {part:.0%}" for name, part in profile.items()))
    print(f"\n  {'':41} {'images/s (quartiles)':>23} {'peak MB':>8}  ours is so many times as fast")
    print_line("ours", ours)
    print_line("ours, with data", whole)
    for result in others:
        print_line(result.job.contestant, result, ours.ratio_to(result))
    if ablated:
        print("  one choice changed:")
    for name, result in ablated.items():
        print_line(f"- {name}", result, ours.ratio_to(result))
    return {
        "job": asdict(job),
        "precision": job.precision,
        "gflop_per_image": flops / 1e9,
        "ceiling_gflops": Spread(*(value / 1e9 for value in (peak.median, peak.low, peak.high))).to_dict(),
        "share_of_ceiling": fraction.to_dict(),
        "end_to_end_share": share.to_dict(),
        "profile": profile,
        "contestants": [values_of(result) for result in (ours, whole, ceiling, *others)],
        "ablations": {name: values_of(result) for name, result in ablated.items()},
    }
