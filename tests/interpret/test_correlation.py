"""Correlations, against their definitions and where the answer is known."""

import math

import pytest
import torch

from vit.interpret.correlation import correlation, partial_correlation, ranks, top_overlap


def test_correlation_is_torch_s_own():
    torch.manual_seed(0)
    a, b = torch.randn(3, 20), torch.randn(3, 20)
    expected = [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in zip(a, b, strict=True)]
    assert correlation(a, b).tolist() == pytest.approx(expected, abs=1e-6)
    assert correlation(a, 3 * a + 1000).tolist() == pytest.approx([1] * 3, abs=1e-4)
    assert correlation(a[:, None], b).shape == (3, 3)


def test_what_does_not_vary_goes_with_nothing():
    assert float(correlation(torch.full((6,), 0.1), torch.arange(6.0))) == 0
    assert float(correlation(torch.full((65,), 1e3) / 3, torch.arange(65.0))) == 0  # but for rounding


def test_a_shared_cause_is_all_that_two_measures_have_in_common():
    torch.manual_seed(0)
    cause = torch.randn(20_000)
    a, b = cause + torch.randn(20_000), cause + torch.randn(20_000)
    assert float(correlation(a, b)) == pytest.approx(0.5, abs=0.02)
    assert float(partial_correlation(a, b, cause)) == pytest.approx(0, abs=0.02)
    assert float(partial_correlation(a, a, cause)) == pytest.approx(1, abs=1e-5)


def test_partial_correlation_by_its_formula():
    torch.manual_seed(0)
    a, b, c = torch.randn(3, 30).double()
    ab, ac, bc = (float(correlation(*pair)) for pair in ((a, b), (a, c), (b, c)))
    expected = (ab - ac * bc) / math.sqrt((1 - ac**2) * (1 - bc**2))
    assert float(partial_correlation(a, b, c)) == pytest.approx(expected)
    assert float(partial_correlation(a, b, a)) == 0  # nothing is left


def test_ranks_share_ties_and_know_no_scale():
    assert ranks(torch.tensor([3.0, 1.0, 2.0, 1.0])).tolist() == [3, 0.5, 2, 0.5]
    assert ranks(torch.zeros(2, 3)).tolist() == [[1, 1, 1]] * 2
    values = torch.randn(4, 9)
    assert torch.equal(ranks(values), ranks(values.exp()))


def test_the_highest_that_are_shared():
    a = torch.tensor([[5.0, 4, 3, 2, 1, 0]])
    assert float(top_overlap(a, a, 3)) == 1
    assert float(top_overlap(a, -a, 3)) == 0
    assert float(top_overlap(a, torch.tensor([[5.0, 0, 1, 4, 3, 2]]), 3)) == pytest.approx(1 / 3)
    torch.manual_seed(0)
    assert float(top_overlap(torch.rand(4000, 16), torch.rand(4000, 16), 3).mean()) == pytest.approx(3 / 16, abs=0.01)
