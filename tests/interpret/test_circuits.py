"""Angles between spaces, and how much of a map lies in one."""

import math

import pytest
import torch

from vit.interpret.circuits import chance_angles, principal_angles, share_within


def test_known_angles():
    plane = torch.eye(4)[:2]
    turned = torch.tensor([[math.cos(0.3), 0, math.sin(0.3), 0], [0, 0, 0, 1.0]])
    assert principal_angles(plane, turned).tolist() == pytest.approx([math.degrees(0.3), 90])


def test_angles_do_not_depend_on_the_vectors_that_span_a_space():
    torch.manual_seed(0)
    a, b = torch.randn(3, 10), torch.randn(5, 10)
    mixed = torch.randn(3, 3) @ a
    torch.testing.assert_close(principal_angles(mixed, b), principal_angles(a, b), atol=1e-3, rtol=0)
    torch.testing.assert_close(principal_angles(b, a), principal_angles(a, b))
    assert len(principal_angles(torch.cat([a, a]), b)) == 3  # a row that says nothing new


def test_a_space_within_another_is_at_no_angle():
    torch.manual_seed(0)
    b = torch.randn(5, 10)
    assert principal_angles(torch.randn(3, 5) @ b, b).max() < 1e-3


def test_chance_is_what_random_spaces_have():
    torch.manual_seed(1)
    found = principal_angles(torch.randn(16, 64), torch.randn(24, 64)).mean()
    assert float(chance_angles(16, 24, 64).mean()) == pytest.approx(float(found), abs=1.5)


def test_shares_of_a_space_and_of_what_is_left_sum_to_one():
    torch.manual_seed(0)
    matrix, basis = torch.randn(8, 12), torch.linalg.qr(torch.randn(12, 12)).Q
    parts = [share_within(matrix, basis[:5]), share_within(matrix, basis[5:])]
    assert sum(parts) == pytest.approx(1)
    assert share_within(torch.randn(4, 5) @ basis[:5], basis[:5]) == pytest.approx(1)
