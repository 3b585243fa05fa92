"""Mixup and CutMix against torchvision's images and timm's labels; each image by its own draws."""

import pytest
import torch
from small import close
from timm.data.mixup import mixup_target
from tiny import seeded
from torch import Tensor
from torchvision.transforms import v2

from vit.data.augment import mix, mixed_labels
from vit.data.draws import Draws, beta, draw_mixing

SIZE = (12, 16)
KINDS = {"mixup": (0.8, 0.0), "cutmix": (0.0, 1.0), "both": (0.8, 1.0)}


def drawn(kind: str, batch: int = 500) -> Draws:
    share, box = draw_mixing(batch, SIZE, *KINDS[kind], seeded())
    return Draws(share=share, box=box)


def images() -> Tensor:
    return torch.rand(6, 3, *SIZE, generator=seeded(1))


# --- the draws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_share_is_how_much_an_image_keeps_of_itself(kind):
    mixing = drawn(kind)
    black = torch.zeros(500, 1, *SIZE)
    lost = mix(black, black + 1, mixing.share, mixing.box).mean((1, 2, 3))
    close(1 - lost, mixing.share, 1e-6)
    assert 0 <= mixing.share.min() <= mixing.share.max() <= 1
    assert len(mixing.share.unique()) > 50  # each image by its own draws


def test_rectangle_has_the_images_shape_and_lies_within_it():
    for kind, least, most in (("mixup", 0, 0), ("cutmix", 480, 500), ("both", 200, 300)):
        assert least <= drawn(kind).box.any(1).sum() <= most
    top, left, bottom, right = drawn("cutmix", 5000).box.unbind(1)
    inside = (top > 0) & (left > 0) & (bottom < SIZE[0]) & (right < SIZE[1]) & (bottom > top)
    skew = (bottom - top) / SIZE[0] - (right - left) / SIZE[1]
    # but for the rounding of the edges
    assert skew[inside].abs().max() <= 1 / SIZE[0] + 1 / SIZE[1]
    assert (top.min(), left.min(), bottom.max(), right.max()) == (0, 0, *SIZE)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_have_the_moments_of_beta(alpha):
    draws = beta(alpha, 40_000, seeded()).double()
    assert draws.mean() == pytest.approx(0.5, abs=0.01)
    assert draws.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.03)
    extremes = torch.stack([beta(extreme, 10_000, seeded()) for extreme in (1e-3, 1e3)])
    assert ((extremes >= 0) & (extremes <= 1)).all()  # and none is no number


# --- the images and labels ------------------------------------------------------------------------


def assert_torchvisions(
    transform: object, share: float, edges: tuple[int, ...], tolerance: float, **params: object
) -> None:
    """torchvision mixes in the image before, we the one after: reverse the batch, and back."""
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    mirrored = labels.flip(0)
    params |= {"labels": mirrored, "batch_size": 6}
    shares = torch.full((6,), share)
    ours = mix(images(), images().roll(-1, 0), shares, torch.tensor(edges).expand(6, -1))
    theirs = transform.transform(images().flip(0), params).flip(0)
    close(ours, theirs, tolerance)
    ours = mixed_labels(labels, labels.roll(-1), shares, 5, smoothing=0.0)
    theirs = transform.transform(mirrored, params).flip(0)
    close(ours, theirs, 1e-6)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_blend_is_torchvisions(share):
    assert_torchvisions(v2.MixUp(num_classes=5), share, (0, 0, 0, 0), 1e-6, lam=share)


@pytest.mark.parametrize("box", [(0, 0, 12, 16), (3, 4, 9, 5), (0, 7, 1, 16), (5, 0, 5, 16)])
def test_cut_is_torchvisions(box):
    top, left, bottom, right = box
    share = 1 - (bottom - top) * (right - left) / 192
    theirs = {"box": (left, top, right, bottom), "lam_adjusted": share}
    assert_torchvisions(v2.CutMix(num_classes=5), share, box, 0, **theirs)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_labels_are_timms(share, smoothing):
    labels = torch.tensor([3, 0, 0, 1])
    ours = mixed_labels(labels, labels.flip(0), torch.full((4,), share), 5, smoothing)
    close(ours, mixup_target(labels, 5, share, smoothing), 1e-6)
