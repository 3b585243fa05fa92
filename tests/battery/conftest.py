"""The battery: many random tries of what must always hold, and a table of how many failed.

    pytest -m slow tests/battery --battery-tries 10 --battery-seed 1

tries ten times as often as .ci/run does, with other random numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tries(n): how often a test of the battery tries")


@dataclass
class Battery:
    """The tries of one test, each with random numbers of its own, and what failed."""

    seed: int
    tries: int
    more: bool = False  # than .ci/run makes
    failures: list[str] = field(default_factory=list)
    found: str = ""  # what there was, for the table

    def run(self, attempt: Callable[[random.Random], str]) -> None:
        """Call `attempt` with the random numbers of each try; it returns what was wrong, "" if nothing was."""
        for number in range(self.tries):
            try:
                problem = attempt(random.Random(f"{self.seed} {number}"))
            except Exception as error:  # a traceback is a failure like others: the table counts it
                problem = f"{type(error).__name__}: {error}"
            if problem:
                self.failures.append(f"try {number}: {problem}")


@pytest.fixture
def battery(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Iterator[Battery]:
    """Made of the test's mark `tries`; the test fails if a try did."""
    option = request.config.getoption
    mark = request.node.get_closest_marker("tries")  # without it, the test knows how many there are
    tries = max(1, round(mark.args[0] * option("--battery-tries"))) if mark else 0
    battery = Battery(option("--battery-seed"), tries, option("--battery-tries") > 1)
    yield battery
    what = request.node.name[5:].replace("_", " ") + battery.found
    record_property("battery", f"| {what} | {battery.tries:,} | {len(battery.failures):,} |")
    if battery.failures:
        pytest.fail("\n".join(battery.failures), pytrace=False)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    rows = {
        row
        for report in reports
        for name, row in getattr(report, "user_properties", ())
        if name == "battery"
    }
    if rows:
        terminalreporter.section(f"battery, seed {config.getoption('--battery-seed')}")
        terminalreporter.write_line(
            "\n".join(["| what must hold | tries | failures |", "|---|---|---|", *sorted(rows)])
        )
