"""Correlations, against scipy's and their definitions, and where the answer is known."""

import numpy as np
import pytest
import torch
from scipy import stats
from tiny import seeded
from torch import Tensor

from studies.analysis.correlation import (
    association,
    correlation,
)


def test_correlation_is_torch_s_own():
    torch.manual_seed(0)
    a, b = torch.randn(3, 20), torch.randn(3, 20)
    expected = [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in zip(a, b, strict=True)]
    assert correlation(a, b).tolist() == pytest.approx(expected, abs=1e-6)
    assert correlation(a, 3 * a + 1000).tolist() == pytest.approx([1] * 3, abs=1e-4)
    assert correlation(a[:, None], b).shape == (3, 3)


# --- relations

UPPER = torch.triu_indices(12, 12, 1)


def relation(seed: int, count: int = 12) -> Tensor:
    values = torch.randn(count, count, generator=seeded(seed), dtype=torch.double)
    return values + values.T


def pairs(values: Tensor) -> Tensor:
    return values[UPPER[0], UPPER[1]]


@pytest.mark.parametrize("ties", [False, True])
def test_without_anything_held_constant_it_is_spearmans(ties):
    one, other = (relation(seed).round() if ties else relation(seed) for seed in (0, 1))
    expected = stats.spearmanr(pairs(one), pairs(other)).statistic
    assert association(one, other, permutations=9).correlation == pytest.approx(expected, abs=1e-9)


def test_held_constant_is_what_a_linear_fit_of_ranks_leaves():
    one, other, third = (relation(seed) for seed in (2, 3, 4))
    one, other = one + third, other + third
    r = {
        name: stats.spearmanr(pairs(a), pairs(b)).statistic
        for name, a, b in (("ab", one, other), ("ac", one, third), ("bc", other, third))
    }
    expected = (r["ab"] - r["ac"] * r["bc"]) / ((1 - r["ac"] ** 2) * (1 - r["bc"] ** 2)) ** 0.5
    assert association(one, other, [third], permutations=9).correlation == pytest.approx(
        expected, abs=1e-9
    )
    constant = torch.ones(12, 12)  # says nothing, and takes nothing away
    assert association(one, other, [third, third, constant], 9).correlation == pytest.approx(
        expected, abs=1e-9
    )


def test_a_planted_relation_is_found_and_its_absence_is_not():
    points = torch.randn(12, 3, generator=seeded(0), dtype=torch.double)
    near = -torch.cdist(points, points)
    found = association(near, near + 0.3 * relation(8), [relation(9)])
    assert found.correlation > 0.8
    assert found.p == pytest.approx(1 / 1000)
    of_nothing = [
        association(relation(seed), relation(seed + 50), permutations=199).p for seed in range(40)
    ]
    assert 2 <= sum(p <= 0.25 for p in of_nothing) <= 20  # of 40, 10 are expected


def test_the_gain_is_the_slope_of_a_linear_fit_times_a_standard_deviation():
    other, third = relation(10), relation(11)
    one = 0.7 * other - 2 * third + 5
    found = association(one, other, [third], permutations=9)
    assert found.gain == pytest.approx(0.7 * float(pairs(other).std(correction=0)))
    assert association(3 * one, other, [third], 9).gain == pytest.approx(3 * found.gain)
    assert association(one, 10 * other, [third], 9).gain == pytest.approx(found.gain)
    alone = association(one, other, permutations=9)
    slope, _ = torch.from_numpy(np.polyfit(pairs(other), pairs(one), 1))
    assert alone.gain == pytest.approx(float(slope * pairs(other).std(correction=0)))
