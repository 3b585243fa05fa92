"""A library call computes in torch's own modes, and leaves the process as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch


@contextmanager
def isolated() -> Iterator[None]:
    """Undo at the end of the block what it changes in the process, and begin it in torch's modes.

    A caller may be within `torch.no_grad()`, `torch.inference_mode()` or `torch.autocast()`, or
    have chosen another default dtype or device: the block has gradients, float32 and the CPU.
    Afterwards torch's number of threads and the global random generators of torch (that of the
    CPU), NumPy and Python are as before. The generators of other devices are never used.
    """
    dtype = torch.get_default_dtype()
    threads = torch.get_num_threads()
    numpys = np.random.get_state()
    pythons = random.getstate()

    with ExitStack() as modes:
        modes.enter_context(torch.random.fork_rng(devices=[]))
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        # a default device intercepts every call, so it is overridden only where there is one
        if torch.get_default_device().type != "cpu":
            modes.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
            np.random.set_state(numpys)
            random.setstate(pythons)
