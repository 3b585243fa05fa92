"""Images on their way into the model: uint8 to float, augmented in whole batches, each image by its own draws.

All of it runs on the device that the images are on. Draws come from a generator on the CPU: the same on every device.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torchvision.transforms.v2.functional import center_crop

from vit.config import DataConfig
from vit.data import randaugment
from vit.data.batches import to_device

ERASED_AREA, ERASED_RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)
"""Of random erasing, as in timm: share of the area, and width / height."""


def augment(
    images: Tensor,
    config: DataConfig,
    image_size: tuple[int, int],
    generator: Generator,
    batch: int | None = None,
    part: slice | Tensor = slice(None),
) -> Tensor:
    """Vary a batch: RandAugment on whole images where it is on, then crop and flip, then erasing, as `config` says.

    Args:
        images: uint8 (B, C, h, w).
        config: `crop`, `crop_scale`, `crop_ratio`, `crop_padding`, `flip`, `rand_augment`, `rand_magnitude` and `erasing`
            are read.
        image_size: (H, W) to give back.
        generator: a CPU generator, the only source of chance.
        batch, part: the images are this part (a slice, or int64 (B,)) of a batch of so many, and are varied as they would be
            within it.

    Returns:
        float32 (B, C, H, W) from 0 to 1.
    """
    batch = len(images) if batch is None else batch
    images = cut_to_shape(images, image_size)
    flip = (torch.rand(batch, generator=generator) < config.flip)[part]
    if config.rand_augment:
        draws = randaugment.draw(batch, generator, config.rand_augment, config.rand_magnitude)
        images = randaugment.rand_augment(images, draws.of(part))
    if config.crop == "resized":
        boxes = crop_boxes(batch, (1, 1), config.crop_scale, config.crop_ratio, generator)  # of the image's own shape
        varied = sample_boxes(images, boxes[part], flip, image_size)
    else:
        if config.crop == "pad":
            shifts = torch.randint(0, 2 * config.crop_padding + 1, (2, batch), generator=generator)
            images = pad_and_crop(images, config.crop_padding, shifts[:, part])
        images = torch.where(to_device(flip, images.device)[:, None, None, None], images.flip(-1), images)
        varied = to_float(images, image_size)
    if config.erasing:
        erased = torch.rand(batch, generator=generator) < config.erasing
        boxes = crop_boxes(batch, image_size, ERASED_AREA, ERASED_RATIO, generator) * erased[:, None]
        varied = erase(varied, boxes[part], torch.rand(batch, varied.shape[1], generator=generator)[part])
    return varied


def crop_boxes(
    batch: int,
    size: tuple[int, int] | torch.Size,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: Generator,
) -> Tensor:
    """Random boxes inside an image, as in Inception's crop: area uniform in `scale`, aspect log-uniform in `ratio`.

    Returns:
        float32 (B, 4): top, left, height, width as fractions of the image. A side that would be longer than the image is
        shortened to it (instead of drawing again, which cannot be done for a whole batch at once).
    """
    draws = torch.rand(batch, 4, generator=generator)
    area = scale[0] + (scale[1] - scale[0]) * draws[:, 0]
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * draws[:, 1]).exp() * size[0] / size[1]  # width / height in fractions
    height = (area / aspect).sqrt().clamp(max=1)
    width = (area * aspect).sqrt().clamp(max=1)
    return torch.stack([draws[:, 2] * (1 - height), draws[:, 3] * (1 - width), height, width], dim=1)


def erase(images: Tensor, boxes: Tensor, colours: Tensor) -> Tensor:
    """Cover a box of each image with one colour (random erasing, Zhong et al. 2020; much as timm's mode "rand").

    Args:
        images: float32 (B, C, H, W).
        boxes: (B, 4) as from `crop_boxes`; of height and width 0 where nothing is covered.
        colours: (B, C).

    Returns:
        float32 (B, C, H, W).
    """
    device, sides = images.device, torch.tensor(images.shape[-2:])
    low = (boxes[:, :2] * sides).round()  # (B, 2), in pixels
    high = ((boxes[:, :2] + boxes[:, 2:]) * sides).round()
    inside = []
    for axis, length in enumerate(images.shape[-2:]):
        places = torch.arange(length, device=device)
        inside.append(
            (places >= to_device(low[:, axis, None], device)) & (places < to_device(high[:, axis, None], device))
        )
    box = inside[0][:, None, :, None] & inside[1][:, None, None, :]  # (B, 1, H, W)
    return torch.where(box, to_device(colours, device)[:, :, None, None], images)


def sample_boxes(images: Tensor, boxes: Tensor, flip: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Cut a box out of each image and resize it, bilinearly; mirrored where `flip`.

    Args:
        images: uint8 (B, C, h, w).
        boxes: (B, 4) as from `crop_boxes`.
        flip: bool (B,).
        image_size: (H, W).

    Returns:
        float32 (B, C, H, W) from 0 to 1.
    """
    top, left, height, width = boxes.unbind(1)
    mirror = 1 - 2 * flip.float()
    theta = torch.zeros(len(images), 2, 3)  # output position in [-1, 1] -> input position in [-1, 1]
    theta[:, 0, 0], theta[:, 0, 2] = width * mirror, 2 * left + width - 1
    theta[:, 1, 1], theta[:, 1, 2] = height, 2 * top + height - 1
    size = [len(images), images.shape[1], *image_size]
    grid = F.affine_grid(to_device(theta, images.device), size, align_corners=False)  # (B, H, W, 2)
    padding = "border"
    if images.device.type == "mps":  # has no border padding before torch 2.11: what lies outside is moved to the border
        border = 1 - 1 / torch.tensor([images.shape[-1], images.shape[-2]], device=images.device)
        grid, padding = grid.clamp(-border, border), "zeros"
    return F.grid_sample(images.float() / 255, grid, mode="bilinear", padding_mode=padding, align_corners=False)


def pad_and_crop(images: Tensor, padding: int, shifts: Tensor) -> Tensor:
    """Shift each image by up to `padding` pixels either way, black coming in: uint8 (B, C, H, W) -> the same.

    Args:
        images: uint8 (B, C, H, W).
        padding: width of the black border.
        shifts: int64 (2, B), the top and the left of what is kept of the bordered image, from 0 to 2 padding.
    """
    channels, height, width = images.shape[1:]
    padded = F.pad(images, (padding,) * 4)
    top, left = to_device(shifts, images.device)[:, :, None]  # (B, 1) each
    rows = top + torch.arange(height, device=images.device)  # (B, H)
    columns = left + torch.arange(width, device=images.device)  # (B, W)
    pixels = rows[:, :, None] * padded.shape[-1] + columns[:, None, :]  # (B, H, W), places in a padded plane
    pixels = pixels.flatten(1)[:, None].expand(-1, channels, -1)
    return padded.flatten(2).gather(2, pixels).view(images.shape)


def to_float(images: Tensor, image_size: tuple[int, int], interpolation: str = "bicubic") -> Tensor:
    """uint8 (B, C, h, w) -> float32 (B, C, H, W) from 0 to 1, cut to that shape and resized where the size differs.

    So every image of a data set is prepared, in training and wherever a model is measured.

    Args:
        images: uint8 (B, C, h, w).
        image_size: (H, W).
        interpolation: "bicubic" or "bilinear", with antialiasing.
    """
    images = cut_to_shape(images, image_size).float() / 255
    if images.shape[-2:] != image_size:
        images = F.interpolate(images, image_size, mode=interpolation, antialias=True, align_corners=False).clamp(0, 1)
    return images


def cut_to_shape(images: Tensor, image_size: tuple[int, int]) -> Tensor:
    """The largest centred part of images (..., h, w) that has the shape of `image_size`."""
    (height, width), (h, w) = image_size, images.shape[-2:]
    part = min(h / height, w / width)
    cut = max(1, round(height * part)), max(1, round(width * part))
    return images if cut == (h, w) else center_crop(images, list(cut))


class Normalization:
    """The input's mean and deviation a channel: what the model is fed is (image - mean) / std.

    Args:
        mean: one number a channel, images from 0 to 1.
        std: likewise, positive.
    """

    def __init__(self, mean: list[float], std: list[float]):
        self.mean = mean
        self.std = std
        self._columns: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    @classmethod
    def of(cls, images: Tensor, most: int = 10_000) -> Normalization:
        """Measured on images uint8 (N, C, H, W), on at most `most` of them, spread evenly."""
        counts = torch.zeros(images.shape[1], 256, dtype=torch.float64)  # how often each channel has each value
        for part in evenly_spaced(len(images), most).split(256):
            for channel, values in enumerate(images[part].unbind(1)):
                counts[channel] += torch.bincount(values.flatten(), minlength=256)
        values = torch.arange(256, dtype=torch.float64) / 255
        total = counts.sum(1, keepdim=True)
        mean = (counts * values).sum(1, keepdim=True) / total
        variance = (counts * (values - mean).square()).sum(1, keepdim=True) / (total - 1)
        # A channel without any contrast would otherwise be divided by nothing.
        return cls(mean.flatten().tolist(), variance.sqrt().clamp(min=1e-3).flatten().tolist())

    def __call__(self, images: Tensor) -> Tensor:
        """Images from 0 to 1 (B, C, H, W) -> the model's input."""
        mean, std = self._statistics(images)
        return images.sub(mean).div_(std)

    def invert(self, inputs: Tensor) -> Tensor:
        """The model's input (B, C, H, W) -> images, 0 to 1 where they came from images."""
        mean, std = self._statistics(inputs)
        return inputs * std + mean

    def _statistics(self, like: Tensor) -> Tensor:
        key = (like.device, like.dtype)
        if key not in self._columns:  # kept, because sending them anew at each step would have a GPU wait
            self._columns[key] = torch.tensor([self.mean, self.std], dtype=like.dtype, device=like.device)
        return self._columns[key][:, :, None, None]  # (2, C, 1, 1)


def evenly_spaced(count: int, most: int) -> Tensor:
    """Up to `most` of `count` indices, spread evenly: int64 (min(count, most),); all of them when `most` is 0."""
    most = min(count, most) if most else count
    return torch.arange(most) * count // most
