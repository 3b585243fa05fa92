"""Correlations, against scipy's and their definitions, and where the answer is known."""

import numpy as np
import pytest
import torch
from scipy import stats
from tiny import seeded
from torch import Tensor

from studies.analysis.correlation import association, correlation


def test_correlation_is_torch_s_own():
    a, b = torch.randn(3, 20), torch.randn(3, 20)
    expected = [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in zip(a, b, strict=True)]
    assert correlation(a, b).tolist() == pytest.approx(expected, abs=1e-6)
    assert correlation(a, 3 * a + 1000).tolist() == pytest.approx([1] * 3, abs=1e-4)


# --- relations

UPPER = torch.triu_indices(12, 12, 1)


def relation(seed: int) -> Tensor:
    values = torch.randn(12, 12, generator=seeded(seed), dtype=torch.double)
    return values + values.T


def pairs(values: Tensor) -> Tensor:
    return values[UPPER[0], UPPER[1]]


def test_held_constant_is_what_a_linear_fit_leaves():
    one, other, third = (relation(seed) for seed in (2, 3, 4))
    one, other = one + third, other + third
    r = {
        name: stats.pearsonr(pairs(a), pairs(b)).statistic
        for name, a, b in (("ab", one, other), ("ac", one, third), ("bc", other, third))
    }
    expected = (r["ab"] - r["ac"] * r["bc"]) / ((1 - r["ac"] ** 2) * (1 - r["bc"] ** 2)) ** 0.5
    constant = torch.ones(12, 12)  # says nothing, and takes nothing away
    for given in ([third], [third, third, constant]):
        found = association(one, [other], given)
        assert float(found.correlations) == pytest.approx(expected, abs=1e-9)
        left = float(pairs(one).std(correction=0)) * (1 - r["ac"] ** 2) ** 0.5
        assert float(found.spread) == pytest.approx(left)


def test_the_gain_is_the_slope_of_a_linear_fit_times_a_standard_deviation():
    first, second, third = (relation(seed) for seed in (10, 12, 11))
    one = 0.7 * first - 0.2 * second - 2 * third + 5
    found = association(one, [first, 10 * second, third], [third])
    deviations = [float(pairs(other).std(correction=0)) for other in (first, second)]
    joint = [0.7 * deviations[0], -0.2 * deviations[1], 0]  # the third is held constant
    assert found.joint.tolist() == pytest.approx(joint, abs=1e-9)
    # one by one, each carries a part of the other
    alone = association(one, [first]).gains
    slope, _ = np.polyfit(pairs(first), pairs(one), 1)
    assert float(alone) == pytest.approx(slope * deviations[0])
