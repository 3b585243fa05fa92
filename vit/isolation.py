"""A library call computes in torch's own modes, and leaves the process as it was."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

_lock = threading.Lock()
# Attributes that blocks hold now: (id of the owner, name) -> (value before, number of blocks)
_held: dict[tuple[int, str], tuple[Any, int]] = {}
_filters = ExitStack()
_ignoring = 0
"""Blocks of `without_warnings` that are open, in all threads."""


@contextmanager
def isolated() -> Iterator[None]:
    """Undo at the end of the block what it changes in the process, and begin it in torch's modes.

    A caller may be within `torch.no_grad()`, `torch.inference_mode()` or `torch.autocast()`, or
    have chosen another default dtype or device: the block has gradients, float32 and the CPU.
    Afterwards torch's number of threads is as before.

    The global random generators are not put back, because nothing here draws from them but new
    weights (`vit.data.draws.seeded_weights`): another thread that has drawn meanwhile would draw
    the same numbers once more.
    """
    dtype = torch.get_default_dtype()
    threads = torch.get_num_threads()

    with ExitStack() as modes:
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


@contextmanager
def without_warnings() -> Iterator[None]:
    """Ignore warnings within the block; blocks of several threads may overlap.

    The filters are the process's: the first block sets them, and the last one that ends puts them
    back. `warnings.catch_warnings` alone would put back those that another block has set.
    """
    global _ignoring
    with _lock:
        if _ignoring == 0:
            _filters.enter_context(warnings.catch_warnings(action="ignore"))
        _ignoring += 1
    try:
        yield
    finally:
        with _lock:
            _ignoring -= 1
            if _ignoring == 0:
                _filters.close()


@contextmanager
def held(owner: Any, name: str, value: object) -> Iterator[Any]:
    """Hold an attribute at a value within the block; yields the value before.

    Blocks of several threads may overlap in any order: the last to end restores the attribute.
    """
    key = (id(owner), name)
    with _lock:
        before, blocks = _held.get(key, (getattr(owner, name), 0))
        _held[key] = (before, blocks + 1)
        setattr(owner, name, value)
    try:
        yield before
    finally:
        with _lock:
            before, blocks = _held.pop(key)
            if blocks > 1:
                _held[key] = (before, blocks - 1)
            else:
                setattr(owner, name, before)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put `model` in evaluation mode within the block; restore every module's mode afterwards."""
    with ExitStack() as undo:
        for module in model.modules():
            undo.enter_context(held(module, "training", False))
        # A module may do more than set its mode
        model.eval()
        yield
