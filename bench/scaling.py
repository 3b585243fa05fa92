"""How the cost of a step grows: with tokens, depth, width, batch, number of images, and the mask ratio."""

from __future__ import annotations

import statistics
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

from bench.compare import Spread
from bench.contestants import build, flops_per_image
from bench.job import Job
from vit.figures import save_figure, scaling_figure
from vit.progress import track

AXES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "tokens": ("patch", (8, 4, 2, 1)),
    "depth": ("depth", (3, 6, 12, 24)),
    "width": ("embed_dim", (96, 192, 384, 768)),
    "batch": ("batch", (16, 32, 64, 128, 256)),
    "images": ("images", (1024, 4096, 16384, 65536)),
    "visible share": ("mask_ratio", (0.9, 0.75, 0.5, 0.25)),
}


def slope(x: list[float], y: list[float]) -> float:
    """Return the exponent p of the power law y ~ x^p that fits best: least squares on the logarithms."""
    log_x = [log(value) for value in x]
    log_y = [log(value) for value in y]
    return statistics.linear_regression(log_x, log_y).slope


def variants(job: Job, axis: str) -> list[tuple[float, Job]]:
    """Return the points along `axis`: its value, and the job."""
    key, values = AXES[axis]
    if axis == "tokens":
        # About as many in images larger than 32 pixels: memory grows with their square
        values = tuple(patch * max(job.image_size // 32, 1) for patch in values)
    to_x = {
        "tokens": lambda patch: (job.image_size / patch) ** 2,
        "visible share": lambda ratio: 1 - ratio,
    }
    points = []
    for value in values:
        changed = replace(job, with_data=axis == "images", **{key: value})
        points.append((to_x.get(axis, float)(value), changed))
    return points


def images_timed(job: Job) -> int:
    """Return the number of images timed: those of a step, or of an epoch if the data set is part of the job."""
    return job.images if job.with_data else job.batch


def seconds_of(job: Job, rounds: int) -> Spread:
    """Return the seconds of a step, or of an epoch of such steps if the data set is part of the job."""
    contestant = build(job)
    steps = images_timed(job) / job.batch
    # The first warms up
    seconds = [steps * contestant.seconds_of_step() for _ in range(rounds + 1)]
    return Spread.of(seconds[1:])


def scaling(job: Job, rounds: int, plot: Path | None) -> dict[str, Any]:
    """Measure along every axis, print a table, and draw it to `plot`, if given.

    The batch is at most 32, so that all of it takes minutes; a step's time is proportional to the batch. A slope is not quoted
    if the steps of any point differ too much.
    """
    job = replace(job, batch=min(job.batch, 32))
    report: dict[str, Any] = {}
    print(
        f"\nHow step time grows (batch {job.batch}; for `images`: of an epoch, from its median step)"
    )
    print(
        f"  {'':14} {'':>10} {'seconds':>10} {'GFLOP/s':>9}   slope measured / expected from FLOPs"
    )
    for axis in AXES:
        points = variants(job, axis)
        x = [value for value, _ in points]
        flops = [flops_per_image(changed) * images_timed(changed) for _, changed in points]
        spreads = [seconds_of(changed, rounds) for _, changed in track(points, axis)]
        seconds = [spread.median for spread in spreads]
        expected = slope(x, flops)
        measured = None
        quoted = "too noisy to quote"
        if all(spread.quotable for spread in spreads):
            measured = slope(x, seconds)
            quoted = f"{measured:.2f}"
        rows = []
        for value, median, work in zip(x, seconds, flops, strict=True):
            rate = work / median / 1e9
            rows.append(f"  {axis:14} {value:>10g} {median:>10.3f} {rate:>9.0f}")
        print("\n".join(rows) + f"   {quoted} / {expected:.2f}")
        report[axis] = {
            "x": x,
            "seconds": seconds,
            "flops": flops,
            "slope": measured,
            "expected_slope": expected,
        }
    if plot:
        about = (
            f"ViT-{job.preset.capitalize()}, patch {job.patch} where not varied, batch {job.batch}"
        )
        save_figure(scaling_figure(report, "How the time of a training step grows", about), plot)
        print(f"\nplot: {plot}")
    return report
