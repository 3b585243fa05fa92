"""A library call computes in torch's own modes, and leaves the process as it was.

This holds for one call at a time, not for several threads that change the same modes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def isolated() -> Iterator[None]:
    """Run the block in torch's default modes, and undo at its end what it changed in the process.

    A caller may be within `torch.no_grad()`, `torch.inference_mode()` or `torch.autocast()`, or
    have chosen another default dtype or device: the block has gradients, float32 and the CPU.
    Afterwards torch's number of threads is as before.

    The global random generators are not put back, because only new weights draw from them here
    (`vit.data.draws.seeded_weights`): another thread that has drawn meanwhile would draw the same
    numbers again.
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
def held(owner: object, name: str, value: object) -> Iterator[None]:
    """Hold an attribute at a value within the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put `model` in evaluation mode within the block; restore every module's mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    # a module may do more than set its mode
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def outputs_of(parts: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Give the outputs of parts of a model, by their names, as they run within the block."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, _part: nn.Module, _inputs: object, output: Any) -> None:
        # layers of transformers may return several values, the tokens first
        outputs[name] = output[0] if isinstance(output, tuple) else output

    with ExitStack() as undo:
        for name, part in parts.items():
            undo.callback(part.register_forward_hook(partial(keep, name)).remove)
        yield outputs
