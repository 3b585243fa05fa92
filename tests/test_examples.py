"""Each example does what its first lines say."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

from vit.runs import read_metrics

ROOT = Path(__file__).resolve().parents[1]


def run_example(name: str, *arguments: object, home: Path) -> subprocess.CompletedProcess[str]:
    """Run examples/NAME as a user does, with the cache in `home`."""
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(home)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_track_callback_sends_every_line_of_metrics(tmp_path):
    done = run_example("track_callback.py", tmp_path / "run", home=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "run" / "track.csv").open(newline="") as file:
        rows = [(int(step), key, float(value)) for step, key, value in csv.reader(file)]
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows == [(line["step"], key, value) for line in lines for key, value in line.items()]
