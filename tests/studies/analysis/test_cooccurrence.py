"""What occurs together, on label maps small enough to count by hand."""

import math

import pytest
import torch

from vit.studies.analysis.cooccurrence import information, patch_labels, side_by_side, together_in_images


def test_the_label_of_most_pixels():
    labels = torch.tensor([[[0, 0, 1, 1], [0, 2, 1, 1]]])  # patches of 2 x 2
    assert patch_labels(labels, (1, 2)).tolist() == [[0, 1]]
    assert patch_labels(labels, (1, 2), 0.75).tolist() == [[0, 1]]
    assert patch_labels(labels, (1, 2), 0.8).tolist() == [[-1, 1]]
    assert patch_labels(labels.to(torch.uint8), (2, 1)).tolist() == [[0, 1]]  # ties: the lowest


def test_information_is_the_logarithm_of_how_much_more_often():
    met, expected = torch.tensor([7.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 3.0])
    assert information(met, expected).tolist() == [2, 0, -2]


def test_labels_that_share_images():
    # 0 and 1 always together in half of the images, 2 and 3 in the other half; 4 is in none
    labels = torch.tensor([[0, 1, -1], [2, 3, 3]]).repeat(50, 1)
    found = together_in_images(labels, 5)
    assert torch.equal(found, found.T)
    assert found[0, 1].item() == pytest.approx(math.log2(51 / 26))
    assert found[0, 2].item() == pytest.approx(math.log2(1 / 26))
    assert found[4, 0].item() == 0


def test_labels_that_touch():
    # In columns 0 1 0 1 ...: 0 touches 1 to both sides and itself above and below; 2 touches nobody of the others.
    grid = torch.tensor([0, 1]).repeat(4, 2)  # (4, 4)
    labels = torch.stack([grid.flatten(), torch.full((16,), 2)])
    found = side_by_side(labels, (4, 4), 3)
    assert torch.equal(found, found.T)
    assert (found[2, :2] < -3).all()
    met, ends = 12, torch.tensor([24.0, 24.0, 48.0])  # 12 of 24 pairs are of 0 and 1
    assert found[0, 1].item() == pytest.approx(math.log2((met + 1) / (ends[0] * ends[1] / 96 + 1)), abs=1e-6)


def test_patches_without_a_label_meet_nobody():
    labels = torch.tensor([[0, -1, 1, 1]])
    assert side_by_side(labels, (1, 4), 2)[0, 1].item() == information(torch.tensor(0.0), torch.tensor(0.0)).item()
    assert side_by_side(torch.full((1, 4), -1), (2, 2), 2).tolist() == [[0, 0], [0, 0]]
