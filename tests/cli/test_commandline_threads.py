"""How torch's threads wait: the oracle is OpenMP itself, which prints the settings it has read."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from vit.commandline import WAITING

LOAD = """
import ctypes
from importlib.util import find_spec
from pathlib import Path
from vit.commandline import limit_spinning

limit_spinning()
# as torch does, in a twentieth of the time
for library in Path(find_spec("torch").origin).parent.glob("lib/libgomp*"):
    ctypes.CDLL(str(library))
"""


def read_by_openmp(**environment: str) -> dict[str, str]:
    """What OpenMP says that it goes by, when torch's loads after `limit_spinning`."""
    kept = {name: value for name, value in os.environ.items() if name not in WAITING}
    environment = kept | {"OMP_DISPLAY_ENV": "VERBOSE"} | environment
    done = subprocess.run(
        [sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=True
    )
    found = dict(re.findall(r"(\w+) = '(.*)'", done.stderr))
    if "GOMP_SPINCOUNT" not in found:
        pytest.skip("torch has another OpenMP than GNU's here")
    return found


def test_waiting_threads_sleep_soon_unless_the_user_has_said_otherwise():
    assert read_by_openmp()["GOMP_SPINCOUNT"] == "1000"
    assert read_by_openmp(GOMP_SPINCOUNT="77")["GOMP_SPINCOUNT"] == "77"
    active = read_by_openmp(OMP_WAIT_POLICY="active")
    assert active["OMP_WAIT_POLICY"] == "ACTIVE"
    assert active["GOMP_SPINCOUNT"] != "1000"
