"""Augmentation of whole batches against torchvision's, which works on one image at a time.

Laws: an image's augmentation depends on its own row of draws alone, and draws that change nothing
leave the image as it is.
"""

import math

import pytest
import torch
from small import close
from tiny import noise, seeded
from torchvision.transforms.v2 import functional as torchvision

from vit.config import AugmentConfig, Config, ModelConfig, TrainConfig
from vit.data.augment import (
    augment,
    color_jitter,
    pad_and_crop,
    sample_boxes,
    shuffle_patches,
)
from vit.data.draws import CROP_RATIO, Draws, crop_boxes, draw_step
from vit.data.randaugment import rand_augment
from vit.inputs import Normalization, Preparation, cut_to_shape, to_float
from vit.patches import patchify, unpatchify

SIZE = (12, 16)


def config(image_size: tuple[int, int] = (12, 16), **settings: object) -> Config:
    model = ModelConfig(image_size=image_size, patch_size=2)
    train = TrainConfig(batch_size=10_000)
    return Config(augment=AugmentConfig(**settings), model=model, train=train)


def draws_of(settings: Config, batch: int) -> Draws:
    return draw_step(settings, 0, batch, masked=False)


# top, left, height, width in whole pixels; size to give back
@pytest.mark.parametrize(
    ("box", "size"),
    [
        ((3, 2, 8, 9), (8, 9)),
        ((3, 2, 8, 9), (6, 4)),
        ((0, 0, 12, 16), (30, 17)),
        ((1, 1, 4, 12), (8, 6)),
    ],
)
def test_boxes_are_sampled_as_torchvision_crops_and_resizes(box, size):
    images = noise(4, size=SIZE)
    boxes = (torch.tensor(box) / torch.tensor([12, 16, 12, 16])).expand(4, -1)
    flip = torch.tensor([True, False, True, False])
    sampled = sample_boxes(images, boxes, flip, size)
    ours = torch.where(flip[:, None, None, None], sampled.flip(-1), sampled)
    theirs = torchvision.resized_crop(images.float() / 255, *box, list(size), antialias=False)

    # An enlarged crop has a rim beyond its outer pixels' centres: there torchvision sees no
    # neighbours. We do, where the image has some.
    inner = []
    for start, crop, output, length in zip(box[:2], box[2:], size, (12, 16), strict=True):
        first = 0
        last = output
        if output > crop:
            rim = math.ceil(output / crop / 2)
            first += rim * (start > 0)
            last -= rim * (start + crop < length)
        inner.append(slice(first, last))
    close(ours[..., *inner], theirs[..., *inner])


def test_crops_have_the_stated_area_and_aspect_and_are_anywhere_in_the_image():
    # too small to reach over a border, so that nothing is shortened
    scale = (0.2, 0.3)
    top, left, height, width = crop_boxes(2_000, scale, seeded()).double().unbind(1)
    # of which each is uniform between two values
    for values, low, high in (
        (height * width, *scale),
        ((width / height).log(), *map(math.log, CROP_RATIO)),
        (top / (1 - height), 0, 1),
        (left / (1 - width), 0, 1),
    ):
        places = (values - low) / (high - low)
        assert [places.min(), places.mean(), places.max()] == pytest.approx([0, 0.5, 1], abs=0.02)


def test_large_crops_are_shortened_to_the_image():
    boxes = crop_boxes(2_000, (0.2, 1.0), seeded())
    assert boxes.min() >= 0
    assert (boxes[:, :2] + boxes[:, 2:]).max() <= 1 + 1e-6


def test_padded_crop_is_a_window_of_the_padded_image():
    images = noise(200, size=(5, 6))
    windows = torch.nn.functional.pad(images, (3, 3, 3, 3)).unfold(2, 5, 1).unfold(3, 6, 1)
    top, left = torch.randint(0, 7, (2, 200), generator=seeded())
    expected = windows[torch.arange(200), :, top, left]
    assert torch.equal(pad_and_crop(images, 3, torch.stack([top, left], 1)), expected)


@pytest.mark.parametrize("image_size", [(12, 16), (24, 12), (6, 30)])
def test_a_crop_of_everything_is_what_a_measured_model_sees_of_an_image(image_size, monkeypatch):
    monkeypatch.setattr("vit.data.draws.CROP_RATIO", (1.0, 1.0))
    settings = config(image_size, crop_scale=(1.0, 1.0), flip=0)
    images = noise(4, size=SIZE)
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(4, -1)
    cut = cut_to_shape(images, image_size)
    expected = sample_boxes(cut, whole, torch.zeros(4, dtype=torch.bool), image_size)
    varied = augment(images, draws_of(settings, 4), settings)
    close(varied, expected)


@pytest.mark.parametrize("size", [(6, 8), (5, 7), (24, 20)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_images_are_cut_and_resized_as_by_torchvision(size, interpolation):
    images = noise(4, size=SIZE)
    # the largest part of that shape
    height, width = {(6, 8): (12, 16), (5, 7): (11, 16), (24, 20): (12, 10)}[size]
    cut = torchvision.center_crop(images, [height, width]).float() / 255
    theirs = torchvision.resize(
        cut, list(size), torchvision.InterpolationMode(interpolation), antialias=True
    )
    ours = to_float(images, size, Preparation(interpolation))
    close(ours, theirs.clamp(0, 1))


def test_normalised_images_have_mean_0_and_deviation_1_and_come_back():
    images = (noise(50, size=SIZE) * torch.tensor([0.2, 0.5, 1.0])[:, None, None]).to(torch.uint8)
    normalize = Normalization.measured_on(images)
    floats = images.double() / 255
    inputs = normalize(floats)
    close(inputs.mean((0, 2, 3)), torch.zeros(3).double(), 1e-9)
    close(inputs.std((0, 2, 3)), torch.ones(3).double(), 1e-9)
    close(normalize.invert(inputs), floats, 1e-6)
    # a constant image is not divided by nothing
    flat = torch.full((3, 3, 4, 4), 128, dtype=torch.uint8)
    assert Normalization.measured_on(flat)(flat).abs().max() < 1e-3
    with pytest.raises(ValueError, match="from 0 to 1"):
        normalize(images.float())


@pytest.mark.parametrize("crop", ["resized", "pad", "none"])
def test_parts_of_a_batch_are_varied_as_the_whole(crop):
    images = noise(24, size=SIZE)
    settings = config(crop=crop, rand_augment=2)
    draws = draws_of(settings, 24)
    expected = augment(images, draws, settings)
    # the second part as in mixing, with one image more, which is the batch's first
    for part in (torch.arange(0, 11), torch.arange(10, 25) % 24):
        assert torch.equal(augment(images[part], draws.rows(part), settings), expected[part])


def test_colours_are_jittered_as_torchvision_does():
    """Brightness, then contrast, then saturation; torchvision takes one factor for all images."""
    images = torch.rand(3, 3, *SIZE, generator=seeded())
    factors = torch.tensor([[1.4, 0.6, 1.3], [0.7, 1.4, 0.0], [1.0, 1.0, 1.0]])
    ours = color_jitter(images, factors)
    theirs = []
    for image, (brightness, contrast, saturation) in zip(images, factors.tolist(), strict=True):
        image = torchvision.adjust_brightness(image, brightness)
        image = torchvision.adjust_contrast(image, contrast)
        theirs.append(torchvision.adjust_saturation(image, saturation))
    # torchvision's weights of the colours have four digits
    close(ours, torch.stack(theirs), 1e-3)
    close(ours[2], images[2], 1e-6)


# --- shuffled patches -----------------------------------------------------------------------------


@pytest.mark.parametrize("across", [True, False])
def test_patches_stay_whole_and_keep_their_place_or_their_image(across):
    """All values of a patch are 100 x image + patch."""
    before = torch.arange(6.0)[:, None] * 100 + torch.arange(16)  # (6, 16)
    images = unpatchify(before[:, :, None].expand(-1, -1, 48), (4, 4), (4, 4))
    order = torch.rand(6, 16, generator=seeded())
    patches = patchify(shuffle_patches(images, order, (4, 4), across), (4, 4))
    values = patches[..., 0]  # (6, 16)
    assert (patches == patches[..., :1]).all()
    assert sorted(values.flatten().tolist()) == sorted(before.flatten().tolist())
    if across:
        assert torch.equal(values % 100, torch.arange(16.0).expand(6, -1))
        # out of several images
        assert all(len((row // 100).unique()) > 2 for row in values)
    else:
        assert torch.equal(values // 100, torch.arange(6.0)[:, None].expand(-1, 16))
        # each image in an order of its own
        assert len((values % 100).unique(dim=0)) == 6


def test_an_image_is_varied_step_by_step_in_a_fixed_order():
    images = noise(24, size=SIZE)
    settings = config(crop="none", rand_augment=2, color_jitter=0.4, shuffle="within")
    draws = draws_of(settings, 24)
    # RandAugment as drawn after the flips, flip, colours, shuffling
    expected = rand_augment(images, draws.operations, draws.strengths)
    assert not torch.equal(expected, images)
    expected = torch.where(draws.flip[:, None, None, None], expected.flip(-1), expected)
    expected = color_jitter(expected.float() / 255, draws.jitter)
    expected = shuffle_patches(expected, draws.shuffle, (2, 2), across=False)
    close(augment(images, draws, settings), expected, 1e-6)
