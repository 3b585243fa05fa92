"""The average of the weights, against the sum that it is by definition."""

import copy

import pytest
import torch
from torch import nn

from vit.training.average import WeightAverage


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))


def walk(start: nn.Module, average: WeightAverage, steps: int) -> list[list[torch.Tensor]]:
    """Weights at the start and after each of some random steps, each of them taken in."""
    seen = [[value.detach().double() for value in start.parameters()]]
    for step in range(steps):
        with torch.no_grad():
            for value in start.parameters():
                value.add_(torch.randn_like(value))
        average.update(step)
        seen.append([value.detach().double() for value in start.parameters()])
    return seen


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.9999])
def test_every_step_counts_by_the_decays_after_it(decay):
    learning = model()
    average = WeightAverage(learning, decay)
    seen = walk(learning, average, 30)
    decays = [min(decay, (1 + step) / (10 + step)) for step in range(30)]
    weights = []
    for taken in range(31):  # the start counts too, by all decays
        weight = 1.0 if taken == 0 else 1 - decays[taken - 1]
        for later in decays[taken:]:
            weight *= later
        weights.append(weight)
    assert sum(weights) == pytest.approx(1)
    for index, found in enumerate(average.model.parameters()):
        expected = sum(weight * values[index] for weight, values in zip(weights, seen, strict=True))
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


def test_start_is_nearly_forgotten_early_however_slow_the_average():
    learning = model()
    average = WeightAverage(learning, 0.9999)
    with torch.no_grad():
        for value in learning.parameters():
            value.fill_(5.0)
    for step in range(100):
        average.update(step)
    assert all((value - 5).abs().max() < 1e-3 for value in average.model.parameters())


def test_weights_that_stay_are_their_own_average_to_the_bit():
    learning = model()
    average = WeightAverage(learning, 0.9)
    for step in range(50):
        average.update(step)
    assert all(torch.equal(a, b) for a, b in zip(average.model.parameters(), learning.parameters(), strict=True))


def test_average_is_a_model_of_its_own_that_does_not_learn():
    learning = model()
    average = WeightAverage(learning, 0.9)
    before = copy.deepcopy(average.model.state_dict())
    walk(learning, WeightAverage(learning, 0.9), 2)
    assert all(torch.equal(value, before[name]) for name, value in average.model.state_dict().items())
    assert not any(value.requires_grad for value in average.model.parameters())
    assert all(value.requires_grad for value in learning.parameters())
    kept = [value.detach().clone() for value in learning.parameters()]
    average.update(0)
    assert all(torch.equal(a, b) for a, b in zip(kept, learning.parameters(), strict=True))
