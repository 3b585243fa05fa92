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
    return statistics.linear_regression([*map(log, x)], [*map(log, y)]).slope


def variants(job: Job, axis: str) -> list[tuple[float, Job]]:
    """Return the points along `axis`: its value, and the job."""
    key, values = AXES[axis]
    if (
        axis == "tokens"
    ):  # about as many in images larger than 32 pixels: memory grows with their square
        values = tuple(patch * max(job.image_size // 32, 1) for patch in values)
    to_x = {
        "tokens": lambda patch: (job.image_size / patch) ** 2,
        "visible share": lambda ratio: 1 - ratio,
    }
    jobs = [replace(job, with_data=axis == "images", **{key: value}) for value in values]
    return [
        (to_x.get(axis, float)(value), changed) for value, changed in zip(values, jobs, strict=True)
    ]


def images_timed(job: Job) -> int:
    """Return the number of images timed: those of a step, or of an epoch if the data set is part of the job."""
    return job.images if job.with_data else job.batch


def seconds_of(job: Job, rounds: int) -> Spread:
    """Return the seconds of a step, or of an epoch of such steps if the data set is part of the job."""
    contestant, steps = build(job), images_timed(job) / job.batch
    return Spread.of(
        [steps * contestant.seconds_of_step() for _ in range(rounds + 1)][1:]
    )  # the first warms up


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
        seconds, expected = [spread.median for spread in spreads], slope(x, flops)
        measured = slope(x, seconds) if all(spread.quotable for spread in spreads) else None
        quoted = "too noisy to quote" if measured is None else f"{measured:.2f}"
        columns = zip(x, seconds, flops, strict=True)
        rows = [
            f"  {axis:14} {at:>10g} {each:>10.3f} {work / each / 1e9:>9.0f}"
            for at, each, work in columns
        ]
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
