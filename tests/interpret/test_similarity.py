"""Clusters."""

import torch

from vit.interpret.similarity import clusters


def test_clumps_are_found():
    torch.manual_seed(0)
    middles = torch.tensor([[0.0, 0], [10, 0], [0, 10], [10, 10]])
    members = torch.arange(4).repeat_interleave(50)
    centres, nearest = clusters(middles[members] + 0.1 * torch.randn(200, 2), 4)
    assert torch.cdist(middles, centres).amin(1).max() < 0.2
    assert all(len(nearest[members == clump].unique()) == 1 for clump in range(4))


def test_every_point_goes_to_its_nearest_centre_which_is_the_mean_of_its_points():
    torch.manual_seed(0)
    points = torch.randn(500, 3)
    centres, nearest = clusters(points, 8, rounds=200)
    assert torch.equal(nearest, torch.cdist(points, centres).argmin(1))
    for number in nearest.unique():
        torch.testing.assert_close(points[nearest == number].mean(0), centres[number], atol=1e-5, rtol=0)


def test_no_more_centres_than_points_that_differ_and_a_seed_decides():
    points = torch.tensor([[0.0], [0.0], [1.0], [2.0]])
    centres, _ = clusters(points, 10)
    assert sorted(centres.flatten().tolist()) == [0.0, 1.0, 2.0]
    many = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(clusters(many, 20, seed=1)[0], clusters(many, 20, seed=1)[0])
    assert not torch.equal(clusters(many, 20, seed=1)[0], clusters(many, 20, seed=2)[0])
