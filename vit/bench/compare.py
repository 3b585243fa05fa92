"""Contestants in alternating rounds, each in a process of its own, and what may be said of the result."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from vit.bench.job import Job
from vit.errors import UserError

# A ratio is quoted when half of the pairs lie within this share of their median.
WIDEST = 0.15


class BenchError(UserError):
    """A contestant that cannot be timed; the message is one line."""

    exit_code = 1


class Worker:
    """A contestant in its process, started at once.

    Use as a context manager: the process ends with the block.

    Raises:
        BenchError: it could not be built, or ended by itself.
    """

    def __init__(self, job: Job):
        self.job = job
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # a pipe that nobody reads would fill up and stop it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vit.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        try:
            self.about = self._ask(json.dumps(job.to_dict()))
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def steps(self, number: int) -> dict[str, Any]:
        """Make so many steps: their `seconds`, and `peak_mb` of the process so far."""
        return self._ask(f"steps {number}")

    def profile(self) -> dict[str, float]:
        """The share of the time in products, attention, normalisation, activation, optimizer, copies, and other."""
        return self._ask("profile")

    def _ask(self, line: str) -> dict[str, Any]:
        process = self._process
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = process.wait()
            self._said.seek(0)
            said = self._said.read().strip().splitlines()
            raise BenchError(f"{self.job.contestant}: its process ended: {said[-1] if said else code}")
        values = json.loads(answer)
        if "error" in values:
            raise BenchError(f"{self.job.contestant}: {values['error']}")
        return values


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it.

    Attributes:
        median, low, high: the middle, a quarter, and three quarters of the values.
    """

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
        """For JSON; the median is null, with a reason, where it may not be quoted."""
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
        about: what it said of itself: precision, parameters, threads.
        rates: images/s, one a round.
        peak_mb: of its process.
        peak_gpu_mb: on a GPU.
        profile: shares of the time, where asked for.
    """

    job: Job
    about: dict[str, Any]
    rates: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    peak_gpu_mb: float | None = None
    profile: dict[str, float] | None = None

    def ratio_to(self, other: Result) -> Spread:
        """This one's rate / the other's, round by round: what the machine does to a round, it does to both."""
        return Spread.of([a / b for a, b in zip(self.rates, other.rates, strict=True)])


def compare(jobs: Sequence[Job], rounds: int, steps: int = 1, profiled: bool = False) -> list[Result]:
    """Time all of `jobs` in turn, round after round (A B C A B C ...), only one computing at any time.

    Args:
        jobs: contestants.
        rounds: how often each has its turn.
        steps: in a turn.
        profiled: profile the first one afterwards.

    Raises:
        BenchError: one of them cannot be timed.
    """
    workers: list[Worker] = []
    try:
        for job in jobs:
            workers.append(Worker(job))
        results = [Result(worker.job, worker.about) for worker in workers]
        for number in range(rounds + 1):  # the first round warms up
            for worker, result in zip(workers, results, strict=True):
                answer = worker.steps(steps)
                result.peak_mb, result.peak_gpu_mb = answer["peak_mb"], answer.get("peak_gpu_mb")
                if number:
                    result.rates.append(worker.job.batch * steps / sum(answer["seconds"]))
        if profiled:
            results[0].profile = workers[0].profile()
        return results
    finally:
        for worker in workers:
            worker.__exit__(None, None, None)
