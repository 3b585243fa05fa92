"""A training step recorded as a CUDA graph, and replayed from then on with a single launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from vit.device import to_device
from vit.training.schedule import set_learning_rate
from vit.training.step import StepInputs

if TYPE_CHECKING:
    from vit.training.run import Run

EAGER_STEPS = 3
"""Steps before recording: they make what is made only once, e.g. the optimizer's state."""


class RecordedStep:
    """A function that takes a step, recorded as a CUDA graph.

    A graph repeats kernels with the addresses and numbers that they had when it was recorded. So
    the inputs of each step are copied to the same addresses; its number and learning rate become
    tensors. The function does not wait, and what it changes keeps its address; what else Python
    does in it, a replay does not. Inputs of other shapes are recorded anew.

    The tests compare it with launched steps on a simulated GPU, `python -m bench --gpu-check` on a
    real one. An H100 ran both alike.
    """

    def __init__(self, run: Run, take_step: Callable[[StepInputs], dict[str, Tensor]]):
        self.run = run
        self.take_step = take_step
        # not the default stream, which cannot be recorded
        self.stream = torch.cuda.Stream(run.compute.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager_steps = 0
        self.shapes: Any = None
        self.inputs: Any = None
        self.values: dict[str, Tensor] = {}

    def __call__(self, inputs: StepInputs) -> dict[str, Tensor]:
        """Take a step, and return its values in memory that no later step writes to."""
        # 1. The inputs, at the addresses that are recorded
        device = self.run.compute.device
        numbers = to_device(torch.tensor([inputs.number, inputs.lr]), device)
        new = inputs._replace(number=numbers[0], lr=numbers[1])
        shapes = tree_map_only(Tensor, lambda x: x.shape, new)
        if shapes != self.shapes:
            self.graph = None
            self.eager_steps = 0
            self.shapes = shapes
            self.inputs = tree_map_only(Tensor, torch.empty_like, new)
        for static, value in zip(tree_leaves(self.inputs), tree_leaves(new), strict=True):
            if isinstance(value, Tensor):
                static.copy_(value)

        # 2. The step; the first ones on the stream of the recording, whose memory libraries reuse
        if self.eager_steps < EAGER_STEPS:
            self.eager_steps += 1
            current = torch.cuda.current_stream(device)
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                values = self.take_step(self.inputs)
            current.wait_stream(self.stream)
        else:
            if self.graph is None:
                self.graph = self._record()
            self.graph.replay()
            values = dict(zip(self.values, torch.stack([*self.values.values()]), strict=True))

        # 3. What Python knows of the step; a state on disk holds numbers, not tensors
        self.run.is_updating = True
        set_learning_rate(self.run.optimizer, inputs.lr)
        return values

    def _record(self) -> torch.cuda.CUDAGraph:
        """Record a step, which computes nothing yet."""
        graph = torch.cuda.CUDAGraph()
        # torch's AdamW refuses to be recorded without this key, and warns of it elsewhere
        groups = [group for group in self.run.optimizer.param_groups if "capturable" in group]
        for group in groups:
            group["capturable"] = True
        with torch.cuda.graph(graph, stream=self.stream):
            self.values = self.take_step(self.inputs)
        for group in groups:
            group["capturable"] = False
        return graph
