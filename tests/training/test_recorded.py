"""A step recorded as a CUDA graph, on the simulated GPU: tests/test_gpu.py trains with it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from simulated_gpu import simulated_gpu
from torch import Tensor

from vit.data.draws import Draws
from vit.device import Compute
from vit.training.recorded import EAGER_STEPS, RecordedStep
from vit.training.step import StepInputs

GPU = torch.device("cuda", 0)


def recorded(take_step: Callable[[StepInputs], dict[str, Tensor]]) -> RecordedStep:
    weight = torch.zeros(1).to(GPU).requires_grad_()
    optimizer = torch.optim.AdamW([weight], lr=0.0, fused=True)
    run = SimpleNamespace(compute=Compute(GPU), optimizer=optimizer, is_updating=False)
    return RecordedStep(run, take_step)


def inputs(number: int, size: int = 3, targets: bool = True) -> StepInputs:
    """Inputs that all hold `number`, and a tenth of it as learning rate."""
    values = torch.full((size,), float(number)).to(GPU)
    draws = Draws(flip=values, box=torch.full((size, 4), number).to(GPU))
    first_bad = torch.full((), float(number)).to(GPU)
    return StepInputs(
        values, values if targets else None, draws, 1.0, first_bad, number, number / 10
    )


def sums(given: StepInputs) -> dict[str, Tensor]:
    result = {
        "images": given.images.sum(),
        "box": given.draws.box.float().sum(),
        "first_bad": given.first_bad + 0,
        "number": given.number + torch.zeros((), device=GPU),
        "lr": given.lr + torch.zeros((), device=GPU),
    }
    if given.targets is not None:
        result["targets"] = given.targets.sum()
    return result


def test_each_step_has_its_own_inputs_and_keeps_its_values():
    with simulated_gpu():
        step = recorded(sums)
        results = [step(inputs(number)) for number in range(8)]
        for number, values in enumerate(results):
            expected = {"images": 3 * number, "targets": 3 * number, "box": 12 * number}
            expected |= {"first_bad": number, "number": number, "lr": pytest.approx(number / 10)}
            assert {name: float(value) for name, value in values.items()} == expected


def test_inputs_stay_where_they_were_recorded_until_their_shapes_change():
    with simulated_gpu():
        step = recorded(sums)
        for size, targets in [(3, True), (5, True), (5, False), (3, True)]:
            graphs = set()
            addresses = set()
            for number in range(EAGER_STEPS + 3):
                values = step(inputs(number, size, targets))
                assert float(values["images"]) == size * number
                graphs.add(step.graph)
                static = [step.inputs.images, step.inputs.draws.box, step.inputs.lr]
                addresses.add(tuple(x.values_on_cpu.data_ptr() for x in static))
            assert len(addresses) == 1
            assert len(graphs) == 2  # none, and one
            assert step.graph.replays == 3


def test_a_number_of_the_host_stays_that_of_the_recorded_step():
    """Why all that differs from step to step is a tensor."""
    numbers = iter(range(100))
    with simulated_gpu():
        step = recorded(lambda given: {"sum": given.first_bad + next(numbers)})
        results = [float(step(inputs(0))["sum"]) for _ in range(EAGER_STEPS + 3)]
    assert results == [0, 1, 2, 3, 3, 3]


def test_what_python_knows_of_a_step_is_the_same_after_a_replay():
    def take_step(given: StepInputs) -> dict[str, Tensor]:
        (group,) = step.run.optimizer.param_groups
        group["lr"] = given.lr
        assert group["capturable"] == torch.cuda.is_current_stream_capturing()
        return sums(given)

    with simulated_gpu():
        step = recorded(take_step)
        for number in range(EAGER_STEPS + 3):
            step.run.is_updating = False
            step(inputs(number))
            assert step.run.is_updating
            (group,) = step.run.optimizer.param_groups
            assert group["lr"] == number / 10
            assert type(group["lr"]) is float
            assert group["capturable"] is False


@pytest.mark.parametrize(
    "wait", [float, lambda x: x.to("cpu"), lambda x: x + torch.ones(3).to(GPU)]
)
def test_what_waits_or_reads_the_host_cannot_be_recorded(wait):
    with simulated_gpu():
        step = recorded(lambda given: {"x": torch.as_tensor(wait(given.first_bad))})
        for _ in range(EAGER_STEPS):
            step(inputs(1))
        with pytest.raises(RuntimeError, match="not in a CUDA graph"):
            step(inputs(1))
