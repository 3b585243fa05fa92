"""Streams that are full or unread: a command ends in its own words, and never in a traceback."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import cycle, islice

import pytest
from battery.test_damage import finished  # noqa: F401  # a fixture
from battery.test_interruptions import LINES, half_there
from forks import ROOT, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's"),
]
STREAMS = {
    "2>/dev/full": 0,
    ">/dev/full": 1,
    "| true": 141,
    "2>&1 | true": 141,
}
"""What becomes of the streams, and the exit code of a command that prints its result."""


@pytest.mark.parametrize("command", LINES)
@pytest.mark.tries(1)
def test_a_command_whose_streams_are_full_or_unread_does_its_work(
    battery,
    finished,  # noqa: F811
    tmp_path,
    command,
):
    # each command starts where the one before it ended: together they meet all
    streams_in_turn = cycle(STREAMS.items())
    first = battery.tries * list(LINES).index(command)
    cases = list(islice(streams_in_turn, first, first + battery.tries))

    def attempt(_: random.Random) -> str:
        streams, code = cases.pop()
        if command == "train":
            code = 0  # hours of work, which a reader that has gone does not end
        folder = tmp_path / f"{len(cases)}"
        folder.mkdir()
        line = f'"$0" -m vit {command} {LINES[command].format(place=finished.parent)} {streams}'
        line += "; exit ${PIPESTATUS[0]}"
        where = environment() | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-c", line, sys.executable],
            cwd=folder,
            env=where,
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        if done.returncode not in {code, 0}:
            return f"{streams}: {done.returncode}: {said[-500:]}"
        if "Traceback" in said or "Exception ignored" in said:
            return f"{streams}: {said[-500:]}"
        damaged = [path.name for path in folder.rglob("*") if path.is_file() and half_there(path)]
        return f"{streams}: half there: {damaged}" if damaged else ""

    battery.run(attempt)
