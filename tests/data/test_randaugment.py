"""RandAugment: each operation against Pillow's, as timm calls it; a batch against its images."""

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment
from tiny import seeded
from torch import Tensor

from vit.data.draws import draw_operations
from vit.data.randaugment import OPERATIONS, rand_augment

# resampled, and rounded in another way
RESAMPLED = {"rotate", "shear x", "shear y", "translate x", "translate y"}


def pictures(count: int = 4) -> Tensor:
    """Smooth pictures, with a corner of noise; one has little contrast, one few values."""
    y, x = torch.meshgrid(torch.linspace(0, 1, 20), torch.linspace(0, 1, 32), indexing="ij")
    waves = torch.rand(count, 3, 3, 1, 1) * 6
    images = 127 + 110 * torch.sin(waves[:, :, 0] * x + waves[:, :, 1] * y + waves[:, :, 2])
    images[:, :, :6, :6] = 255 * torch.rand(count, 3, 6, 6)
    images[0] = 100 + 0.2 * images[0]
    images[1:2] = images[1:2] // 64 * 64
    return images.to(torch.uint8)


def theirs(name: str, image: Tensor, strength: float) -> Tensor:
    """timm's operation by Pillow, at the same strength and sign."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    size = abs(strength)
    resampled = dict(resample=Image.Resampling.BILINEAR, fillcolor=(128,) * 3)
    if name in ("color", "contrast", "brightness", "sharpness"):
        result = getattr(auto_augment, name)(picture, max(0.1, 1 + 0.9 * strength))
    elif name in ("shear x", "shear y"):
        # Pillow shears around a corner; ours around the middle, as a camera would
        slope = 0.3 * strength
        data = (1, slope, -slope * picture.height / 2, 0, 1, 0)
        if name == "shear y":
            data = (1, 0, 0, slope, 1, -slope * picture.width / 2)
        result = picture.transform(picture.size, Image.Transform.AFFINE, data, **resampled)
    elif name == "posterize":
        # Pillow cannot keep 0 bits
        bits = 4 - int(size * 4)
        result = picture.point(lambda _: 0)
        if bits:
            result = auto_augment.posterize(picture, bits)
    elif name == "rotate":
        result = auto_augment.rotate(picture, 30 * strength, **resampled)
    elif name in ("translate x", "translate y"):
        result = getattr(auto_augment, name.replace(" ", "_") + "_rel")(
            picture, 0.45 * strength, **resampled
        )
    else:
        level = {"solarize": [256 - int(size * 256)], "solarize add": [int(size * 110)]}.get(
            name, []
        )
        result = getattr(auto_augment, name.replace(" ", "_"))(picture, *level)
    return torch.from_numpy(np.array(result)).permute(2, 0, 1)


@pytest.mark.parametrize("strength", [0.9, -0.35, 0.0, 1.0, -1.0])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_pillows(name, strength):
    images = pictures()
    ours = OPERATIONS[name](images, torch.full((len(images), 1, 1, 1), strength))
    expected = torch.stack([theirs(name, image, strength) for image in images])
    difference = (ours.int() - expected.int()).abs()
    if name in ("equalize", "invert"):
        assert torch.equal(ours, expected)
    elif name in RESAMPLED:
        # Pillow treats the outermost half pixel in another way
        assert difference.float().mean() < 2
        assert (difference > 8).float().mean() < 0.06
    else:
        assert difference.max() <= 1
        assert (difference > 0).float().mean() < 0.02


def test_a_batch_is_what_its_images_drew():
    images = pictures(40)
    operations, strengths = draw_operations(40, 2, seeded(1))
    before = images.clone()
    varied = rand_augment(images, operations, strengths)
    assert torch.equal(images, before)
    names = list(OPERATIONS.values())
    for index in range(40):
        expected = images[index : index + 1]
        for operation, strength in zip(operations[index].tolist(), strengths[index], strict=True):
            if operation >= 0:
                expected = names[operation](expected, strength.view(1, 1, 1, 1))
        assert torch.equal(varied[index : index + 1], expected)
    assert torch.equal(rand_augment(images, torch.full((40, 2), -1), torch.ones(40, 2)), images)


def test_draws_follow_their_distributions():
    operations, strengths = draw_operations(20_000, 2, seeded())
    applied = operations >= 0
    assert applied.float().mean() == pytest.approx(0.5, abs=0.01)
    counts = torch.bincount(operations[applied], minlength=len(OPERATIONS))
    assert (counts / counts.sum() - 1 / len(OPERATIONS)).abs().max() < 0.008
    size = strengths.abs()
    assert size.mean() == pytest.approx(0.9, abs=0.01)
    assert size.std() == pytest.approx(0.05, abs=0.01)
    assert size.max() <= 1
    assert (strengths > 0).float().mean() == pytest.approx(0.5, abs=0.01)
