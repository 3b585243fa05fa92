"""Clusters; means of groups of tokens, by their definition, and the cosines between them."""

import torch
import torch.nn.functional as F

from vit.interpret.similarity import clusters, group_cosines, group_means


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_group_means_by_their_definition():
    tokens = draws(2, 8, 6, 4)  # two stages of eight images of six patches
    labels = torch.randint(-1, 3, (8, 6), generator=torch.Generator().manual_seed(1))
    found = group_means(iter(tokens.split(3, dim=1)), labels, 3)
    assert found.shape == (2, 2, 3, 4)
    beyond = tokens - tokens.mean(1, keepdim=True)
    for half in (0, 1):
        for group in range(3):
            expected = beyond[:, half::2][:, labels[half::2] == group].mean(1)
            torch.testing.assert_close(found[:, half, group].float(), expected, rtol=1e-4, atol=1e-5)


def test_what_belongs_to_a_place_is_no_likeness():
    tokens, labels = draws(1, 40, 6, 4), torch.randint(3, (40, 6), generator=torch.Generator().manual_seed(1))
    moved = tokens + 100 * draws(6, 4, seed=2)
    assert torch.allclose(group_means([tokens], labels, 3), group_means([moved], labels, 3), atol=1e-3)


def test_a_group_that_a_half_has_not_is_not_a_number():
    labels = torch.tensor([[0, 1], [0, 0]])
    found = group_means([draws(1, 2, 2, 4)], labels, 2)
    assert found[0, 1, 1].isnan().all()
    assert not found[0, 0].isnan().any()


def test_cosines_are_across_halves_and_about_the_mean_of_all():
    one = torch.tensor([[1.0, 0], [0, 1], [-1, -1]])
    found = group_cosines(torch.stack([one, one])[None] + 5)[0]  # 5 is common to all, and goes away
    torch.testing.assert_close(found, F.normalize(one, dim=1) @ F.normalize(one, dim=1).T)
    halves = draws(3, 2, 5, 8)
    found = group_cosines(halves)
    torch.testing.assert_close(found, found.transpose(1, 2))
    torch.testing.assert_close(found, group_cosines(halves.flip(1)))
    assert found.diagonal(dim1=1, dim2=2).max() < 1  # the halves of a group differ


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
    twice = draws(128, 48).repeat(2, 1)
    assert len(clusters(twice, 1000)[0]) == 128
    many = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(clusters(many, 20, seed=1)[0], clusters(many, 20, seed=1)[0])
    assert not torch.equal(clusters(many, 20, seed=1)[0], clusters(many, 20, seed=2)[0])
