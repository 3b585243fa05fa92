"""A disk that is full at any place costs nothing that was there: the run goes on when there is room."""

import sys

import pytest
from test_train import assert_same_run, place, run, whole  # noqa: F401  # three fixtures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="RLIMIT_FSIZE stands for a full disk on Linux"
    ),
]


@pytest.mark.tries(3)
def test_a_full_disk_anywhere_is_one_line_and_the_run_goes_on_exactly(draw, whole, place, run):  # noqa: F811
    name = f"full-{draw.getrandbits(32)}"
    line, folder = f"--config mine.yaml --out {name}", place / name
    room = round(10 ** draw.uniform(2, 5.5))  # bytes that a file may have
    full = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))"
    done = run(place, line, before=full, page=True)
    if done.code == 0:
        return
    errors = [line for line in done.err.splitlines() if line.startswith("train.py: error: ")]
    assert len(errors) == 1, f"room for {room}: {done.err}"
    assert "Traceback" not in done.err
    assert not list(folder.rglob(".partial-*"))
    resume = "--resume" if (folder / "config.yaml").exists() else ""
    done = run(place, f"{line} {resume}")
    assert done.code == 0, f"room for {room}, then more: {done.err}"
    assert_same_run(folder, whole)
