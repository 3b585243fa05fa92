"""Law: where the score is a sum over patches, the curves of deletion and insertion are known."""

import pytest
import torch
from torch import Tensor

from vit.errors import AttentionError
from vit.interpret import faithfulness

# What each patch of a 2 x 3 grid adds to the score
VALUES = torch.tensor([[0.30, 0.05, 0.10], [0.25, 0.20, 0.10]])


def sum_of_patches(images: Tensor) -> Tensor:
    patches = images.unflatten(2, (2, 4)).unflatten(4, (3, 2)).mean((1, 3, 5))  # (B, 2, 3)
    return (patches * VALUES).sum((1, 2))


def test_curves_and_areas_of_a_sum():
    images = torch.ones(2, 3, 8, 6)
    maps = torch.stack([VALUES, -VALUES])
    curves = faithfulness(lambda x: x, images, maps, sum_of_patches)
    torch.testing.assert_close(curves.shares, torch.arange(7) / 6)
    best = torch.tensor([0, 0.30, 0.55, 0.75, 0.85, 0.95, 1.0])
    worst = torch.tensor([0, 0.05, 0.15, 0.25, 0.45, 0.70, 1.0])
    torch.testing.assert_close(curves.insertion, torch.stack([best, worst]))
    torch.testing.assert_close(curves.deletion, 1 - torch.stack([best, worst]))
    area = (best.sum() - 0.5) / 6
    torch.testing.assert_close(curves.insertion_area[0], area)
    torch.testing.assert_close(curves.deletion_area[0], 1 - area)

    # No order is better than the patches' own
    for _ in range(20):
        other = faithfulness(lambda x: x, images[:1], torch.rand(1, 2, 3), sum_of_patches)
        assert other.insertion_area[0] <= area + 1e-6
        assert other.deletion_area[0] >= 1 - area - 1e-6


def test_steps_baselines_and_the_probability_of_a_class():
    images = torch.randn(1, 3, 8, 6)

    def logits(images: Tensor) -> Tensor:
        scores = sum_of_patches(images)
        return torch.stack([scores, -scores], dim=1)

    curves = faithfulness(logits, images, VALUES[None], 0, steps=3, baseline=2 * images)
    assert curves.shares.tolist() == pytest.approx([0, 2 / 6, 4 / 6, 1])
    whole = logits(images).softmax(1)[:, 0]
    replaced = logits(2 * images).softmax(1)[:, 0]
    torch.testing.assert_close(curves.deletion[:, 0], whole)
    torch.testing.assert_close(curves.deletion[:, -1], replaced)
    torch.testing.assert_close(curves.insertion[:, 0], replaced)
    torch.testing.assert_close(curves.insertion[:, -1], whole)

    # Only the order of a map counts; equal patches come in reading order
    scaled = faithfulness(logits, images, VALUES[None] * 3 - 1, 0, steps=3, baseline=2 * images)
    assert torch.equal(scaled.deletion, curves.deletion)
    flat = faithfulness(logits, images, torch.zeros(1, 2, 3), 0)
    reading = faithfulness(logits, images, -torch.arange(6.0).view(1, 2, 3), 0)
    assert torch.equal(flat.insertion, reading.insertion)


def test_what_has_no_curve():
    images, maps = torch.ones(2, 3, 8, 6), torch.ones(2, 2, 3)
    for bad_maps, message in (
        (maps[:1], "one per image"),
        (maps[:, None], "one per image"),
        (torch.ones(2, 3, 3), "does not divide"),
        (maps * torch.nan, "nan in places"),
    ):
        with pytest.raises(AttentionError, match=message):
            faithfulness(lambda x: x, images, bad_maps, sum_of_patches)
    with pytest.raises(AttentionError, match="steps are at least 1"):
        faithfulness(lambda x: x, images, maps, sum_of_patches, steps=0)
    with pytest.raises(AttentionError, match="one number per image"):
        faithfulness(lambda x: x, images, maps, lambda x: x)
    with pytest.raises(AttentionError, match="there is no class 7"):
        faithfulness(lambda x: x.mean((2, 3)), images, maps, 7)
