"""Contestants in alternating rounds, and what may be quoted of the result."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from vit.bench.job import Job
from vit.bench.worker import Worker
from vit.progress import track

WIDEST = 0.15
"""A median is quoted when half of the values lie within this share of it."""


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value or more."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    @property
    def quotable(self) -> bool:
        """Whether the values lie close enough together for their median to mean something."""
        return self.high - self.low <= WIDEST * self.median

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the median is null, with a reason, where it may not be quoted."""
        if self.quotable:
            return {"median": self.median, "quartiles": [self.low, self.high]}
        return {"median": None, "quartiles": [self.low, self.high], "reason": "the pairs differ too much"}

    def __str__(self) -> str:
        if not self.quotable:
            return f"too noisy to quote ({self.low:.2f} - {self.high:.2f})"
        return f"{self.median:.2f} ({self.low:.2f} - {self.high:.2f})"


@dataclass
class Result:
    """What was measured of one contestant.

    Attributes:
        job: what it did.
        about: what it says of itself, see `Worker`.
        images_per_second: one per round.
        peak_mb: of its process.
        peak_gpu_mb: on a GPU.
        profile: shares of the time, where asked for.
    """

    job: Job
    about: dict[str, Any]
    images_per_second: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    peak_gpu_mb: float | None = None
    profile: dict[str, float] | None = None

    def ratio_to(self, other: Result, factor: float = 1.0) -> Spread:
        """This one's rate / the other's, round by round: what the machine does to a round, it does to both."""
        pairs = zip(self.images_per_second, other.images_per_second, strict=True)
        return Spread.of([factor * a / b for a, b in pairs])


def compare(jobs: Sequence[Job], rounds: int, profiled: bool = False) -> list[Result]:
    """Time all of `jobs` in turn, round after round (A B C A B C ...), only one computing at any time.

    Args:
        jobs: contestants.
        rounds: how often each has its turn, a step.
        profiled: profile the first one afterwards.

    Raises:
        BenchError: one of them cannot be timed.
    """
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(job)) for job in track(jobs, "contestants")]
        results = [Result(worker.job, worker.about) for worker in workers]
        for number in track(range(rounds + 1), "rounds"):  # the first warms up
            for worker, result in zip(workers, results, strict=True):
                answer = worker.step()
                result.peak_mb, result.peak_gpu_mb = answer["peak_mb"], answer.get("peak_gpu_mb")
                if number:
                    result.images_per_second.append(worker.job.batch / answer["seconds"])
        if profiled:
            results[0].profile = workers[0].profile()
    return results
