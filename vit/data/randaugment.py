"""RandAugment (Cubuk et al. 2020) for whole batches on any device, each image by its own draws.

The fifteen operations, their strengths and how they are drawn are those of timm's rand-m9-mstd0.5-inc1, which works image by
image with Pillow. Here each operation runs once over the images of the batch that drew it. Draws are made on the CPU and say
which images those are, so a GPU is never waited for.

What differs: shears are about the middle of the image, not its corner; moved images are sampled bilinearly, not by a kernel
that is drawn too; grey comes in from outside, not the data's mean; and all of it comes before the crop, not after.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.device import to_device

FILL = 128
"""The grey that comes in from outside, where an image is moved."""


def rand_augment(images: Tensor, operations: Tensor, strengths: Tensor) -> Tensor:
    """Apply one operation after another, to each image its own.

    Args:
        images: uint8 (B, 3, H, W), on any device.
        operations: int64 (B, n), on the CPU, an index into OPERATIONS; -1 for none.
        strengths: float32 (B, n), on the CPU, from -1 to 1.

    Returns:
        uint8 (B, 3, H, W); the input stays as it is.
    """
    images = images.clone()
    for chosen, strength in zip(operations.T, strengths.T, strict=True):
        for number, operation in enumerate(OPERATIONS.values()):
            members = (chosen == number).nonzero()[:, 0]  # on the CPU: nothing waits
            if len(members):
                there = to_device(members, images.device)
                level = to_device(strength[members], images.device)[:, None, None, None]  # (b, 1, 1, 1)
                images[there] = operation(images[there], level)
    return images


# --- the operations: uint8 (b, 3, H, W) and strengths (b, 1, 1, 1) from -1 to 1 -> uint8 (b, 3, H, W) ---------------------


def _whole(values: Tensor) -> Tensor:
    """Brightness as it is stored: what is too dark or too bright cut off, the fraction dropped as Pillow does."""
    return values.clamp(0, 255).to(torch.uint8)


def auto_contrast(images: Tensor, strength: Tensor) -> Tensor:
    """The darkest value of each channel to 0, the brightest to 255."""
    low, high = images.amin((-2, -1), keepdim=True).float(), images.amax((-2, -1), keepdim=True).float()
    stretched = _whole((images - low) * (255 / (high - low).clamp(min=1)))
    return torch.where(high > low, stretched, images)


def equalize(images: Tensor, strength: Tensor) -> Tensor:
    """Each channel's values spread so that all are about as frequent."""
    flat = images.flatten(2).long()  # (b, 3, H W)
    counts = torch.zeros(*flat.shape[:2], 256, device=flat.device).scatter_add_(
        2, flat, torch.ones_like(flat, dtype=torch.float32)
    )
    total = counts.sum(-1, keepdim=True)
    last = 255 - (counts.flip(-1) > 0).float().argmax(-1, keepdim=True)  # the brightest value there is
    step = torch.div(total - counts.gather(-1, last), 255, rounding_mode="floor")
    below = counts.cumsum(-1) - counts
    table = torch.div(torch.div(step, 2, rounding_mode="floor") + below, step.clamp(min=1), rounding_mode="floor")
    table = torch.where(step > 0, table.clamp(max=255), torch.arange(256.0, device=flat.device))
    return table.gather(-1, flat).to(torch.uint8).view_as(images)


def invert(images: Tensor, strength: Tensor) -> Tensor:
    """The negative."""
    return 255 - images


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    """Only the highest bits of each value: four of them, fewer the stronger."""
    kept = 4 - (strength.abs() * 4).floor()
    width = 2 ** (8 - kept)
    return ((images / width).floor() * width * (kept > 0)).to(torch.uint8)


def solarize(images: Tensor, strength: Tensor) -> Tensor:
    """The negative of all that is brighter than a limit, which is lower the stronger."""
    limit = 256 - (strength.abs() * 256).floor()
    return torch.where(images < limit, images, 255 - images)


def solarize_add(images: Tensor, strength: Tensor) -> Tensor:
    """Brighter, of what is darker than the middle."""
    more = _whole(images + (strength.abs() * 110).floor())
    return torch.where(images < 128, more, images)


def color(images: Tensor, strength: Tensor) -> Tensor:
    """Towards grey, or away from it."""
    return _blended(_grey(images).expand_as(images), images, strength)


def contrast(images: Tensor, strength: Tensor) -> Tensor:
    """Towards the mean brightness, or away from it."""
    mean = (_grey(images).float().mean((-2, -1), keepdim=True) + 0.5).floor()
    return _blended(mean, images, strength)


def brightness(images: Tensor, strength: Tensor) -> Tensor:
    """Towards black, or away from it."""
    return _blended(torch.zeros_like(images), images, strength)


def sharpness(images: Tensor, strength: Tensor) -> Tensor:
    """Towards a smoothed image, or away from it; the border stays."""
    kernel = torch.ones(3, 3, device=images.device)
    kernel[1, 1] = 5
    channels = images.shape[1]
    smooth = F.conv2d(images.float(), (kernel / 13).expand(channels, 1, 3, 3), groups=channels)
    blurred = images.clone()
    blurred[..., 1:-1, 1:-1] = (smooth + 0.5).floor().clamp(0, 255).to(torch.uint8)
    return _blended(blurred, images, strength)


def _grey(images: Tensor) -> Tensor:
    """Luma as ITU-R 601 has it: (b, 3, H, W) -> uint8 (b, 1, H, W)."""
    weights = torch.tensor([19595.0, 38470.0, 7471.0], device=images.device)[:, None, None]
    return ((images * weights).sum(1, keepdim=True) + 32768).div(65536).floor().to(torch.uint8)


def _blended(other: Tensor, images: Tensor, strength: Tensor) -> Tensor:
    """The image moved towards another one, or as far away from it: by up to nine tenths."""
    factor = (1 + 0.9 * strength).clamp(min=0.1)
    return _whole(other + factor * (images.float() - other))


def rotate(images: Tensor, strength: Tensor) -> Tensor:
    """By up to 30 degrees, against the clock where it is positive."""
    angle = torch.deg2rad(30 * strength.flatten())
    cos, sin = angle.cos(), angle.sin()
    height, width = images.shape[-2:]
    zero = torch.zeros_like(cos)
    return _moved(images, cos, -sin * height / width, zero, sin * width / height, cos, zero)


def shear_x(images: Tensor, strength: Tensor) -> Tensor:
    """Rows shifted by up to 0.3 of how far they lie from the middle row."""
    one, zero = torch.ones_like(strength.flatten()), torch.zeros_like(strength.flatten())
    return _moved(images, one, 0.3 * strength.flatten() * images.shape[-2] / images.shape[-1], zero, zero, one, zero)


def shear_y(images: Tensor, strength: Tensor) -> Tensor:
    """Columns, likewise."""
    one, zero = torch.ones_like(strength.flatten()), torch.zeros_like(strength.flatten())
    return _moved(images, one, zero, zero, 0.3 * strength.flatten() * images.shape[-1] / images.shape[-2], one, zero)


def translate_x(images: Tensor, strength: Tensor) -> Tensor:
    """By up to 0.45 of the width either way."""
    one, zero = torch.ones_like(strength.flatten()), torch.zeros_like(strength.flatten())
    return _moved(images, one, zero, 0.9 * strength.flatten(), zero, one, zero)


def translate_y(images: Tensor, strength: Tensor) -> Tensor:
    """By up to 0.45 of the height either way."""
    one, zero = torch.ones_like(strength.flatten()), torch.zeros_like(strength.flatten())
    return _moved(images, one, zero, zero, zero, one, 0.9 * strength.flatten())


def _moved(images: Tensor, *theta: Tensor) -> Tensor:
    """Where each output pixel comes from, in coordinates from -1 to 1 across the image: (a b c; d e f), (b,) each."""
    grid = F.affine_grid(torch.stack(theta, dim=1).view(-1, 2, 3), list(images.shape), align_corners=False)
    shifted = images.float() - FILL  # what comes in from outside is 0, so FILL
    sampled = F.grid_sample(shifted, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (sampled + FILL + 0.5).floor().clamp(0, 255).to(torch.uint8)


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "auto contrast": auto_contrast,
    "equalize": equalize,
    "invert": invert,
    "rotate": rotate,
    "posterize": posterize,
    "solarize": solarize,
    "solarize add": solarize_add,
    "color": color,
    "contrast": contrast,
    "brightness": brightness,
    "sharpness": sharpness,
    "shear x": shear_x,
    "shear y": shear_y,
    "translate x": translate_x,
    "translate y": translate_y,
}
