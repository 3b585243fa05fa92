"""How the cost of a step grows: with tokens, depth, width, batch, number of images, and the mask ratio."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vit.bench.compare import Spread
from vit.bench.contestants import build
from vit.bench.job import Job, flops_per_image
from vit.figures import save_figure, scaling_figure

AXES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "tokens": ("patch", (8, 4, 2, 1)),
    "depth": ("depth", (3, 6, 12, 24)),
    "width": ("embed_dim", (96, 192, 384, 768)),
    "batch": ("batch", (16, 32, 64, 128, 256)),
    "images": ("images", (1024, 4096, 16384, 65536)),
    "visible share": ("mask_ratio", (0.9, 0.75, 0.5, 0.25)),
}


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent p of the power law y ~ x^p that fits best: least squares on the logarithms."""
    xs, ys = [math.log(value) for value in x], [math.log(value) for value in y]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(xs, ys, strict=True))
    return above / sum((a - mean_x) ** 2 for a in xs)


def variants(job: Job, axis: str) -> list[tuple[float, Job, float]]:
    """Along `axis`: what it is there, the job, and the FLOPs of what is timed, which the expected slope follows from."""
    key, values = AXES[axis]
    found: list[tuple[float, Job, float]] = []
    for value in values:
        change: dict[str, Any] = {key: value}
        changed = replace(job, **change, with_data=axis == "images")
        flops = flops_per_image(changed.config()) * (changed.images if axis == "images" else changed.batch)
        x = {"tokens": (job.image_size / value) ** 2, "visible share": 1 - value}.get(axis, value)
        found.append((x, changed, flops))
    return found


def seconds_of(job: Job, rounds: int) -> Spread:
    """Seconds of a step; of an epoch, by such steps, where the data set is part of the job."""
    contestant = build(job)
    times = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        contestant.step()
        if contestant.compute.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    steps = job.images / job.batch if job.with_data else 1
    return Spread.of([seconds * steps for seconds in times[1:]])


def scaling(job: Job, rounds: int, plot: Path | None) -> dict[str, Any]:
    """Measure along every axis, print a table, and draw it where `plot` is given.

    The batch is smaller along the axes that cost most, so that all of it takes minutes; a step's time is proportional to it.
    A slope through a point whose steps differ too much is not quoted.
    """
    job = replace(job, batch=min(job.batch, 32))
    report: dict[str, Any] = {}
    print(f"\nHow the time of a step grows (batch {job.batch}; along `images`, of an epoch, by its median step)")
    print(f"  {'':14} {'':>10} {'seconds':>10} {'GFLOP/s':>9}   slope measured / expected by arithmetic")
    for axis in AXES:
        points = variants(job, axis)
        spreads = [seconds_of(changed, rounds) for _, changed, _ in points]
        seconds = [spread.median for spread in spreads]
        x, flops = [point[0] for point in points], [point[2] for point in points]
        expected = slope(x, flops)
        measured = slope(x, seconds) if all(spread.quotable for spread in spreads) else None
        said = "too noisy to quote" if measured is None else f"{measured:.2f}"
        for index, (value, _, work) in enumerate(points):
            end = f"   {said} / {expected:.2f}" if index == len(points) - 1 else ""
            print(f"  {axis:14} {value:>10g} {seconds[index]:>10.3f} {work / seconds[index] / 1e9:>9.0f}{end}")
        report[axis] = {"x": x, "seconds": seconds, "flops": flops, "slope": measured, "expected_slope": expected}
        if measured is None:
            report[axis]["reason"] = "the steps at a point differ too much"
    if plot:
        title = "How the time of a training step grows"
        about = f"ViT-{job.preset.capitalize()}, patch {job.patch} where not varied, batch {job.batch}"
        save_figure(scaling_figure(report, title, about), plot)
        print(f"\nplot: {plot}")
    return report
