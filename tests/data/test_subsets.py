"""Subsets of the training images: their size, their classes, and that a seed fixes them."""

import pytest
import torch

from vit.data.images import spread_over_classes

LABELS = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)[torch.randperm(100, generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize("count", [0, 1, 10, 37, 99, 100])
def test_as_many_as_asked_and_of_each_class_its_share(count):
    chosen = spread_over_classes(LABELS, count, 0, "labels")
    assert int(chosen.sum()) == count
    for label in range(3):
        members = label == LABELS
        assert abs(int((chosen & members).sum()) - count * int(members.sum()) / 100) <= 1


def test_the_only_image_of_a_class_is_not_taken_by_a_few():
    labels = torch.tensor([0] * 500 + [1] + [2, 2])
    for seed in range(8):
        few = spread_over_classes(labels, 50, seed, "holdout")
        assert not few[500]
        assert not few[501:].all()


def test_a_seed_fixes_them_and_a_larger_one_holds_the_smaller():
    ten, forty = (spread_over_classes(LABELS, count, 3, "labels") for count in (10, 40))
    assert torch.equal(ten, spread_over_classes(LABELS, 10, 3, "labels"))
    assert not (ten & ~forty).any()
    assert not torch.equal(ten, spread_over_classes(LABELS, 10, 4, "labels"))
    assert not torch.equal(ten, spread_over_classes(LABELS, 10, 3, "holdout"))


@pytest.mark.parametrize("count", [-1, 101])
def test_no_more_than_there_are(count):
    with pytest.raises(ValueError, match="of 100 images cannot be taken"):
        spread_over_classes(LABELS, count, 0, "labels")
