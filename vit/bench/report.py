"""`vit bench` from settings to tables and JSON."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vit import __version__
from vit.atomic import write_json
from vit.bench.compare import Result, Spread, compare
from vit.bench.job import Job, flops_per_image, linears
from vit.bench.scaling import AXES, scaling, variants
from vit.config import OBJECTIVES
from vit.device import choose_compute, device_name

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


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures belong to: processor or GPU, cores, threads, versions, date."""
    versions = {"vit-patch-trainer": __version__, "python": sys.version.split()[0]}
    for package in ("torch", "timm", "vit-pytorch", "transformers"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name, today = device_name(device), datetime.date.today().isoformat()
    return {"device": name, "cores": cores, "threads": torch.get_num_threads(), "versions": versions, "date": today}


def bench(options: Namespace) -> dict[str, Any]:
    """Measure what `options` (of `vit bench`) ask for, print it as it comes, and return it for JSON.

    Raises:
        BenchError: a contestant cannot be timed.
        ConfigError: a job cannot be done.
    """
    base = Job(
        objective=options.objective, preset=options.preset, image_size=options.image_size, mask_ratio=options.mask_ratio,
        decoder_dim=options.decoder_dim, decoder_depth=options.decoder_depth, decoder_heads=options.decoder_heads,
        run={"threads": options.threads, "device": options.device, "compile": options.compile},
    )  # fmt: skip
    scaled = replace(base, patch=options.patch[0], precision=options.precision[0], batch=options.batch[0])
    compute = choose_compute(scaled.config().run, scaled.precision)  # sets the threads
    scaled = replace(scaled, precision=compute.precision)
    if options.scaling:  # what cannot be done is said before minutes are spent on what can
        for axis in AXES:
            variants(scaled, axis)
    about = machine(compute.device)
    print(f"{about['device']}, {about['threads']} threads, {about['date']}")
    print(", ".join(f"{name} {version}" for name, version in about["versions"].items()))
    report: dict[str, Any] = {"machine": about, "steps": [], "rounds": options.rounds}
    for patch in options.patch:
        for precision in options.precision:
            for batch in options.batch:
                job = replace(base, patch=patch, precision=precision, batch=batch)
                report["steps"].append(bench_step(job, options.rounds, options.peers, options.ablation))
    if options.scaling:
        report["scaling"] = scaling(scaled, options.rounds, Path(options.plot) if options.plot else None)
    if options.json:
        write_json(Path(options.json), report)
        print(f"\nwritten: {options.json}")
    return report


def bench_step(job: Job, rounds: int, peers: list[str], ablation: bool) -> dict[str, Any]:
    """One job: our step, with and without its data, beside the ceiling, the peers and the ablations."""
    config = job.config()
    compute = choose_compute(config.run, config.train.precision)
    job = replace(job, precision=compute.precision)  # "auto" is timed: each process might find something else
    flops = flops_per_image(config)
    size = config.model.dimensions
    what = f"decoder {job.decoder_dim} x {job.decoder_depth}, {job.mask_ratio:.0%} hidden"
    if OBJECTIVES[job.objective].labels:
        what = "classification of whole images, every augmentation"
    print(
        f"\npatch {job.patch}, {job.precision}, batch {job.batch}: {job.image_size} x {job.image_size} pixels, encoder "
        f"{size['embed_dim']} x {size['depth']} x {size['num_heads']}, {what}, {flops / 1e9:.3f} GFLOP an image"
    )
    jobs = [job, replace(job, with_data=True), replace(job, contestant="ceiling")]
    jobs += [replace(job, contestant=name, run={**job.run, "compile": "off"}) for name in peers]
    changes = {}
    if ablation:
        for name, change in ABLATIONS.items():
            changed = {**change, "run": {**job.run, **change.get("run", {})}}
            if change.get("precision") != compute.precision:
                changes[name] = replace(job, **changed)
    results = compare([*jobs, *changes.values()], rounds, profiled=True)
    ours, whole, ceiling = results[:3]
    share = whole.ratio_to(ours)
    linear_flops = sum(layer.flops for layer in linears(config))
    peak = Spread.of([rate * linear_flops for rate in ceiling.rates])  # FLOP/s
    # Both in FLOP/s: the step has attention's products too.
    fraction = Spread.of([a * flops / (b * linear_flops) for a, b in zip(ours.rates, ceiling.rates, strict=True)])
    print(
        f"  ceiling  {peak.median / 1e9:,.0f} GFLOP/s by these layers' products = {peak.median / flops:,.1f} images/s"
    )
    print(f"  ours     {ours.about['about']}, first step {ours.about['first_seconds']:.1f} s")
    print(f"           {fraction} of the ceiling")
    print(f"           {share} of the bare step when it begins with data, from uint8 images on")
    assert ours.profile is not None
    print("           " + ", ".join(f"{name} {part:.0%}" for name, part in ours.profile.items()))
    print(f"\n  {'':41} {'images/s (quartiles)':>23} {'peak MB':>8}  ours is so many times as fast")
    for result in results[: len(results) - len(changes)]:
        if result is ceiling:
            continue
        name = "ours, with data" if result.job.with_data else result.job.contestant
        _line(name, result, "" if result in (ours, whole) else str(ours.ratio_to(result)))
    if changes:
        print("  one choice changed:")
    for name, result in zip(changes, results[len(results) - len(changes) :], strict=True):
        _line(f"- {name}", result, str(ours.ratio_to(result)))
    return {
        "job": job.to_dict(),
        "precision": compute.precision,
        "gflop_per_image": flops / 1e9,
        "ceiling_gflops": peak.to_dict(),
        "share_of_ceiling": fraction.to_dict(),
        "end_to_end_share": share.to_dict(),
        "profile": ours.profile,
        "contestants": [_as_dict(result, ours) for result in results[: len(results) - len(changes)]],
        "ablations": {
            name: _as_dict(result, ours)
            for name, result in zip(changes, results[len(results) - len(changes) :], strict=True)
        },
    }


def _line(name: str, result: Result, ratio: str) -> None:
    rate = Spread.of(result.rates)
    figures = f"{rate.median:,.1f} ({rate.low:,.1f} - {rate.high:,.1f})"
    memory = result.peak_mb if result.peak_gpu_mb is None else result.peak_gpu_mb
    print(f"  {name:41} {figures:>23} {memory:>8,.0f}  {ratio}".rstrip())


def _as_dict(result: Result, ours: Result) -> dict[str, Any]:
    return {
        "job": result.job.to_dict(),
        "about": result.about,
        "images_per_second": result.rates,
        "peak_mb": result.peak_mb,
        "peak_gpu_mb": result.peak_gpu_mb,
        "ours_is_faster_by": ours.ratio_to(result).to_dict(),
    }
