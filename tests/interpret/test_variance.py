"""The split of variance, on data of which the shares are known."""

import pytest
import torch

from vit.interpret.variance import variance_shares

FACTORS = ("patch", "place", "context")


def centred(*shape: int, seed: int) -> torch.Tensor:
    """Random values whose mean over each axis but the last is 0: a term of one set of factors alone."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    for axis in range(len(shape) - 1):
        if shape[axis] > 1:
            values = values - values.mean(axis, keepdim=True)
    return values / values.square().mean().sqrt()


def test_known_terms_are_found_exactly():
    sizes = {"patch": 5, "place": 3, "context": 4}
    terms = {
        ("patch",): 3.0, ("place",): 1.0, ("context",): 2.0, ("patch", "place"): 0.5, ("place", "context"): 1.5,
        ("patch", "place", "context"): 2.0,
    }  # fmt: skip
    values = torch.full((5, 3, 4, 6), 7.0, dtype=torch.double)
    for number, (term, share) in enumerate(terms.items()):
        shape = [sizes[factor] if factor in term else 1 for factor in FACTORS]
        values = values + share**0.5 * centred(*shape, 6, seed=number)
    found = variance_shares(values, FACTORS)
    assert list(found) == [
        ("patch",), ("place",), ("context",), ("patch", "place"), ("patch", "context"), ("place", "context"), FACTORS,
    ]  # fmt: skip
    for term, share in found.items():
        assert share == pytest.approx(terms.get(term, 0) / 10, abs=1e-9)


def test_shares_sum_to_one():
    found = variance_shares(torch.randn(4, 3, 5, 2, generator=torch.Generator().manual_seed(0)), FACTORS)
    assert sum(found.values()) == pytest.approx(1)
    assert all(share >= 0 for share in found.values())


def test_a_single_factor_has_it_all_and_nothing_has_none():
    assert variance_shares(torch.randn(9, 2), ("patch",)) == {("patch",): pytest.approx(1)}
    assert sum(variance_shares(torch.ones(2, 3, 4), ("patch", "place")).values()) == 0


def test_a_shift_and_a_scale_change_nothing():
    values = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    expected = variance_shares(values, ("patch", "place"))
    assert variance_shares(3 * values + torch.tensor([5.0, -1.0]), ("patch", "place")) == pytest.approx(expected)
