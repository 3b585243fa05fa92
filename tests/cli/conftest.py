"""Commands as a shell calls them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "torchvision", "matplotlib", "timm", "PIL")

Shell = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def shell() -> Shell:
    """`shell(*argv, cwd=ROOT)`: Python called with `argv`."""

    def shell(*argv: object, cwd: Path = ROOT) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *map(str, argv)], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
        )

    return shell


@pytest.fixture
def weighed(shell) -> Shell:
    """`weighed(code)`: the code run, with the names of the heavy modules that it imported as the last line of stdout."""

    def weighed(code: str) -> subprocess.CompletedProcess:
        imported = f"print('imported:', *[name for name in {HEAVY!r} if name in sys.modules])"
        return shell("-c", f"import sys\ntry:\n    {code}\nfinally:\n    {imported}")

    return weighed
