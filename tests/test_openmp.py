"""How torch's threads wait: as the environment says, else briefly; torch's own OpenMP is asked what it has read."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from vit.openmp import SETTINGS


def read_by_openmp(**environment: str) -> dict[str, str]:
    """What OpenMP says that it goes by, when torch loads after `limit_spinning`."""
    program = "from vit.openmp import limit_spinning; limit_spinning(); import torch"
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    environment = kept | {"OMP_DISPLAY_ENV": "VERBOSE"} | environment
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    found = dict(re.findall(r"(\w+) = '(.*)'", done.stderr))
    if "GOMP_SPINCOUNT" not in found:
        pytest.skip("torch has another OpenMP than GNU's here")
    return found


def test_waiting_threads_sleep_soon():
    assert read_by_openmp()["GOMP_SPINCOUNT"] == "1000"


def test_what_the_user_has_set_stays():
    assert read_by_openmp(GOMP_SPINCOUNT="77")["GOMP_SPINCOUNT"] == "77"
    active = read_by_openmp(OMP_WAIT_POLICY="active")
    assert active["OMP_WAIT_POLICY"] == "ACTIVE"
    assert active["GOMP_SPINCOUNT"] != "1000"
