"""How torch's threads on a CPU wait for each other; set before torch loads, which reads it once."""

from __future__ import annotations

import os
import sys

SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""The environment's words for it, of which the user's own come first."""


def limit_spinning() -> None:
    """Let a waiting thread sleep after 1,000 turns of its loop, unless the environment or a loaded torch has settled it.

    GNU's OpenMP lets it turn 300,000 times, for some milliseconds, and only 1,000 times where it knows of more threads than
    cores. It does not know of other processes: beside one, each thread uses up its time on a core waiting for the thread that
    gets none, and a run of two threads falls to a few percent of its speed (docs/results/threads.md).
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in SETTINGS):
        os.environ["GOMP_SPINCOUNT"] = "1000"


def setting() -> str:
    """Return what the environment says, as NAME=VALUE."""
    return " ".join(f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ) or "OpenMP's own rules"
