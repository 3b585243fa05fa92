"""The CPU cores of this process, and how torch's threads wait for each other.

OpenMP reads the second from the environment once, when torch loads.
"""

from __future__ import annotations

import os
import sys

SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""The environment variables for it; the user's own settings win."""


def limit_spinning() -> None:
    """Let a waiting thread sleep after spinning 1,000 times, unless the environment says otherwise.

    GNU's OpenMP spins 300,000 times, for some milliseconds, and 1,000 times only if it has more
    threads than cores. It does not see other processes: next to one, each thread spends its time on
    a core waiting for a thread that has none, and a run with two threads drops to a few percent of
    its speed (docs/speed.md).
    """
    # a loaded torch has read the environment already
    if "torch" in sys.modules:
        return
    if not any(name in os.environ for name in SETTINGS):
        os.environ["GOMP_SPINCOUNT"] = "1000"


def usable_cores() -> int:
    """Return the number of cores on which this process may run."""
    # a container or taskset may allow fewer than there are; only Linux tells which
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
