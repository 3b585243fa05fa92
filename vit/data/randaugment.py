"""RandAugment (Cubuk et al. 2020) for whole batches on any device, each image by its own draws.

The fifteen operations, their strengths and their distribution are those of timm's
rand-m9-mstd0.5-inc1, which works image by image with Pillow. Here each operation runs once: on a
CPU over the images of the batch that drew it, on a GPU over all.

Differences: shears keep the middle of the image fixed, not its corner; moved images are sampled
bilinearly, not by a random kernel; uncovered areas are grey, not the data's mean; and all of it
comes before the crop, not after.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.inputs import constant

Entries = dict[tuple[int, int], Tensor]
"""Entries of a matrix, by row and column."""

FILL = 128
"""The grey of areas that a moved image uncovers."""


def rand_augment(images: Tensor, operations: Tensor, strengths: Tensor) -> Tensor:
    """Apply each image's own operations, one after another.

    Args:
        images: uint8 (B, 3, H, W).
        operations: int64 (B, n), an index into OPERATIONS; -1 for none.
        strengths: float32 (B, n), from -1 to 1.

    Returns:
        uint8 (B, 3, H, W); the input is unchanged.
    """
    images = images.clone()
    augment_all = _augment_members if images.device.type == "cpu" else _augment_all
    levels = strengths.T[..., None, None, None]  # (n, B, 1, 1, 1)
    for numbers, level in zip(operations.T, levels, strict=True):
        images = augment_all(images, numbers, level)
    return images


def _augment_members(images: Tensor, numbers: Tensor, level: Tensor) -> Tensor:
    """Apply one operation to each image: each to those that drew it."""
    for number, operation in enumerate(OPERATIONS.values()):
        members = (numbers == number).nonzero()[:, 0]  # (b,)
        if len(members):
            images[members] = operation(images[members], level[members])
    return images


def _augment_all(images: Tensor, numbers: Tensor, level: Tensor) -> Tensor:
    """Apply one operation to each image: each to all, and those that drew it keep the result.

    A GPU computes this faster than lists of images, for whose lengths the host would have to wait.
    The moves are one sampling, each image by its own matrix.
    """
    numbers = numbers[:, None, None, None]  # (B, 1, 1, 1)
    result = images
    entries: Entries = {}
    is_moved = torch.zeros_like(numbers, dtype=torch.bool)
    for number, (name, operation) in enumerate(OPERATIONS.items()):
        is_drawn = numbers == number
        if name not in MOVES:
            result = torch.where(is_drawn, operation(images, level), result)
            continue
        is_moved |= is_drawn
        # without strength a move is the identity, and adds nothing to the entries of another; those
        # of the diagonal are the rotation's alone
        drawn_level = torch.where(is_drawn, level, 0.0)
        for place, values in MOVES[name](drawn_level, *images.shape[-2:]).items():
            entries[place] = entries.get(place, 0.0) + values
    return torch.where(is_moved, _moved(images, entries), result)


# --- the operations ------------------------------------------------------------------------------
# Each takes uint8 (b, 3, H, W) and strengths (b, 1, 1, 1) from -1 to 1, and returns
# uint8 (b, 3, H, W).
#
# Equalize is torchvision's kernel, equal to Pillow's to the bit. The others are written here,
# because torchvision's autocontrast and rgb_to_grayscale round differently from Pillow's (a fifth
# and a half of the values are off by one), and its posterize, solarize, blends and moves take one
# strength per batch, not per image.


def _to_uint8(values: Tensor) -> Tensor:
    """Clamp values to 0 to 255 and drop the fraction, as Pillow does."""
    return values.clamp(0, 255).to(torch.uint8)


def auto_contrast(images: Tensor, strength: Tensor) -> Tensor:
    """Stretch each channel so that its darkest and brightest values become 0 and 255.

    Rounding may make it 254, as in Pillow.
    """
    low = images.amin((-2, -1), keepdim=True).float()
    high = images.amax((-2, -1), keepdim=True).float()
    stretched = _to_uint8((images - low) * (255 / (high - low).clamp(min=1)))
    return torch.where(high > low, stretched, images)


def equalize(images: Tensor, strength: Tensor) -> Tensor:
    """Spread the values of each channel so that all are about equally frequent."""
    # takes seconds to import, and few runs need it
    from torchvision.transforms.v2 import functional

    return functional.equalize(images)


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    """Keep only the highest four bits of each value, or fewer with more strength."""
    dropped = 4 + (strength.abs() * 4).to(torch.uint8)
    return images >> dropped << dropped


def solarize(images: Tensor, strength: Tensor) -> Tensor:
    """Invert all values from a limit upwards; the limit falls as the strength grows."""
    limit = 256 - (strength.abs() * 256).floor()
    return torch.where(images < limit, images, 255 - images)


def solarize_add(images: Tensor, strength: Tensor) -> Tensor:
    """Brighten values below 128."""
    brighter = _to_uint8(images + (strength.abs() * 110).floor())
    return torch.where(images < 128, brighter, images)


def contrast(images: Tensor, strength: Tensor) -> Tensor:
    """Move the image towards its mean brightness, or away from it."""
    mean = (_grey(images).float().mean((-2, -1), keepdim=True) + 0.5).floor()  # (b, 1, 1, 1)
    return _blended(mean, images, strength)


def sharpness(images: Tensor, strength: Tensor) -> Tensor:
    """Move the image towards its smoothed copy, or away from it; the border stays unchanged."""
    # Pillow's filter: the pixel counts 5, each of its eight neighbours 1
    weights = constant((1.0, 1.0, 1.0, 1.0, 5.0, 1.0, 1.0, 1.0, 1.0), images.device) / 13
    channels = images.shape[1]
    kernels = weights.view(3, 3).expand(channels, 1, 3, 3)
    smooth = F.conv2d(images.float(), kernels, groups=channels)
    blurred = images.clone()
    blurred[..., 1:-1, 1:-1] = _to_uint8(smooth + 0.5)
    return _blended(blurred, images, strength)


def _grey(images: Tensor) -> Tensor:
    """Return the luma of ITU-R 601: (b, 3, H, W) -> uint8 (b, 1, H, W)."""
    # Pillow's whole numbers, out of 65,536; the half of it makes the division round
    weights = constant((19595.0, 38470.0, 7471.0), images.device)[:, None, None]
    return (((images * weights).sum(1, keepdim=True) + 32768) / 65536).to(torch.uint8)


def _blended(target: Tensor, images: Tensor, strength: Tensor) -> Tensor:
    """Move images towards a target, or away from it, by up to nine tenths of the way."""
    factor = (1 + 0.9 * strength).clamp(min=0.1)
    return _to_uint8(target + factor * (images.float() - target))


def rotation(strength: Tensor, height: int, width: int) -> Entries:
    """Rotate by up to 30 degrees, counter-clockwise for positive strengths."""
    angle = torch.deg2rad(30 * strength)
    cos = angle.cos()
    sin = angle.sin()
    # coordinates run from -1 to 1 on both axes, whatever the shape: undo that before rotating
    return {
        (0, 0): cos,
        (0, 1): -sin * height / width,
        (1, 0): sin * width / height,
        (1, 1): cos,
    }


MOVES: dict[str, Callable[[Tensor, int, int], Entries]] = {
    "rotate": rotation,
    # each row, or column, is shifted by up to 0.3 of its distance from the middle one
    "shear x": lambda strength, height, width: {(0, 1): 0.3 * strength * height / width},
    "shear y": lambda strength, height, width: {(1, 0): 0.3 * strength * width / height},
    # up to 0.45 of the width, or height
    "translate x": lambda strength, height, width: {(0, 2): 0.9 * strength},
    "translate y": lambda strength, height, width: {(1, 2): 0.9 * strength},
}
"""Entries of the matrix of `_moved`, from strengths (b, 1, 1, 1) and the images' (H, W)."""


def move(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return one of MOVES as an operation."""
    return lambda images, strength: _moved(images, MOVES[name](strength, *images.shape[-2:]))


def _moved(images: Tensor, entries: Entries) -> Tensor:
    """Sample the images where a 2 x 3 matrix maps the output pixels (x, y, 1).

    The matrix is the identity except for `entries`; coordinates run from -1 to 1 across the image.
    """
    theta = torch.eye(2, 3, device=images.device).repeat(len(images), 1, 1)  # (b, 2, 3)
    for (row, column), values in entries.items():
        theta[:, row, column] = values.flatten()
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)  # (b, H, W, 2)

    # outside of the image, samples are 0, which becomes FILL
    shifted = images.float() - FILL
    sampled = F.grid_sample(
        shifted, grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )
    return _to_uint8(sampled + FILL + 0.5)


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "auto contrast": auto_contrast,
    "equalize": equalize,
    "invert": lambda images, strength: 255 - images,
    "rotate": move("rotate"),
    "posterize": posterize,
    "solarize": solarize,
    "solarize add": solarize_add,
    "color": lambda images, strength: _blended(_grey(images), images, strength),
    "contrast": contrast,
    "brightness": lambda images, strength: _blended(torch.zeros_like(images), images, strength),
    "sharpness": sharpness,
    "shear x": move("shear x"),
    "shear y": move("shear y"),
    "translate x": move("translate x"),
    "translate y": move("translate y"),
}
"""By name, in timm's order; `Draws.operations` holds positions in it."""
