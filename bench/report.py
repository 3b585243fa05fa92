"""`python -m bench`, from jobs to tables and plain values."""

from __future__ import annotations

import datetime
import importlib.metadata
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from bench.compare import Spread, compare
from bench.contestants import flops_per_image
from bench.job import Job
from vit.device import device_name
from vit.machine import choose_compute, missing_for_compile, versions

# One choice changed, all else equal: the speed lost is the gain from the choice.
ABLATIONS: dict[str, dict[str, Any]] = {
    "freed memory given back to the system": {"allocator": False},
    "the batch in one part": {"run": {"grad_accum_steps": 1}},
    "attention math everywhere": {"run": {"attention": "math"}},
    "attention flash everywhere": {"run": {"attention": "flash"}},
    "AdamW in many kernels": {"fused_adamw": False},
    "products in fp32": {"precision": "fp32"},
    "products in bf16": {"precision": "bf16"},
    "torch.compile": {"compile": "on"},
}


def bench(jobs: Sequence[Job], rounds: int, peers: Sequence[str], ablation: bool) -> dict[str, Any]:
    """Measure, print the results as they come, and return them for JSON.

    Args:
        jobs: our step, in each setting.
        rounds: with one step of each contestant.
        peers: on the same jobs.
        ablation: also our step with each of ABLATIONS.

    Raises:
        TrainingError: a contestant cannot be timed.
        ConfigError: a job cannot be done.
    """
    # Refuse impossible jobs before spending minutes on the others. "auto" is settled here:
    # processes might choose differently.
    settled = []
    for job in jobs:
        compute = choose_compute(job.config().run, job.precision)  # sets the threads too
        compiles = job.compile
        if compiles == "auto":
            can = compute.device.type == "cuda" and not missing_for_compile(compute.device)
            compiles = "on" if can else "off"
        settled.append(replace(job, precision=compute.precision, compile=compiles))

    # The machine
    installed = {package.name: package.version for package in importlib.metadata.distributions()}
    peer_versions = {}
    for name in ("timm", "vit-pytorch", "transformers"):
        peer_versions[name] = installed.get(name, "not installed")
    machine: dict[str, Any] = {
        "device": device_name(compute.device),
        "threads": torch.get_num_threads(),
        "versions": versions() | peer_versions,
        "date": datetime.date.today().isoformat(),
    }
    print(f"{machine['device']}, {machine['threads']} threads, {machine['date']}")
    packages = [f"{name} {version}" for name, version in machine["versions"].items()]
    print(textwrap.fill(", ".join(packages), 120))

    # The steps
    steps = [bench_step(job, rounds, peers, ablation) for job in settled]
    return {"machine": machine, "steps": steps, "rounds": rounds}


def bench_step(job: Job, rounds: int, peers: Sequence[str], ablation: bool) -> dict[str, Any]:
    """Time our step, with and without its data, beside the ceiling, the peers and the ablations."""
    # The contestants
    device = choose_compute(job.config().run, job.precision).device
    flops = flops_per_image(job)
    print(f"\n{job}, {flops / 1e9:.3f} GFLOP per image")
    jobs = {
        "ours": job,
        "ours, with data": replace(job, with_data=True),
        "ceiling": replace(job, contestant="ceiling"),
        **{name: replace(job, contestant=name, compile="off") for name in peers},
    }
    changed = {}
    for name, change in ABLATIONS.items():
        # Some are the job itself, and not every machine can compile
        possible = not ("compile" in change and missing_for_compile(device))
        changed_job = replace(job, **change)
        if ablation and changed_job != job and possible:
            changed[f"- {name}"] = changed_job

    # Their rounds. The ceiling has only the products with weights, so it is compared FLOP for FLOP.
    every_job = jobs | changed
    timed = compare([*every_job.values()], rounds, profiled=True)
    results = dict(zip(every_job, timed, strict=True))
    ours = results["ours"]
    ceiling = results["ceiling"]
    products = ceiling.about["products"] / job.batch
    peak = Spread.of_values(
        [rate * products / 1e9 for rate in ceiling.images_per_second]
    )  # GFLOP/s
    fraction = ours.ratio_to(ceiling, flops / products)
    share = results["ours, with data"].ratio_to(ours)

    # The table
    at_the_peak = peak.median * 1e9 / flops
    print(f"  ceiling  {peak.median:,.0f} GFLOP/s in our products = {at_the_peak:,.1f} images/s")
    print(f"  ours     {ours.about['about']}, first step {ours.about['first_seconds']:.1f} s")
    print(f"           {fraction} of the ceiling")
    print(f"           {share} of the bare step's speed with data, from uint8 images on")
    print("           " + ", ".join(f"{name} {part:.0%}" for name, part in ours.profile.items()))
    print(f"\n  {'':41} {'images/s (quartiles)':>23} {'peak MB':>8}  speed-up of ours")
    for name, result in results.items():
        if name == next(iter(changed), None):
            print("  one choice changed:")
        rate = Spread.of_values(result.images_per_second)
        ratio = ours.ratio_to(result)
        rates = f"{rate.median:,.1f} ({rate.low:,.1f} - {rate.high:,.1f})"
        row = f"  {name:41} {rates:>23} {result.peak_mb:>8,.0f}"
        if name != "ceiling":
            print(row if name.startswith("ours") else f"{row}  {ratio}")
    faster = [name.removeprefix("- ") for name in changed if results[name].beats(ours)]
    if changed:
        print(f"  faster than ours in every round: {', '.join(faster) or 'none of these'}")
    return {
        "job": asdict(job),
        "gflop_per_image": flops / 1e9,
        "ceiling_gflops": peak.to_dict(),
        "share_of_ceiling": fraction.to_dict(),
        "end_to_end_share": share.to_dict(),
        "contestants": {
            name: asdict(result) | {"ours_is_faster_by": ours.ratio_to(result).to_dict()}
            for name, result in results.items()
        },
    }
