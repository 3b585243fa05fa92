"""Prepare images for the model: uint8 to float, augmented in whole batches.

Each image is changed by its own draws. Where a library loops over images with one set of numbers
each, every function here takes the numbers of all images as a tensor with a row per image, and
computes the batch at once. An image that is to stay unchanged gets numbers that change nothing: a
rectangle of no area, a factor of 1, a shift of 0.

Everything runs on the images' device, and nothing is random: `Draws` holds what is done to each
image.

Letters: B batch, C channels, H and W the model's input, h and w the data's images, L patches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.data.draws import CROP_PADDING, Draws
from vit.data.randaugment import rand_augment
from vit.inputs import constant, cut_to_shape, to_float
from vit.patches import patchify, unpatchify

if TYPE_CHECKING:
    from vit.config import Config


def augment(images: Tensor, draws: Draws, config: Config) -> Tensor:
    """Augment a batch of images.

    Args:
        images: uint8 (B, C, h, w), one per row of `draws`.
        draws: from `vit.data.draws.draw_step`, on the images' device.
        config: `augment.shuffle` and the sizes of images and patches are read.

    Returns:
        float32 (B, C, H, W) from 0 to 1; with mixing (B - 1, C, H, W), as the last image is only
        mixed into the one before.
    """
    assert draws.flip is not None
    size = config.model.image_size
    images = cut_to_shape(images, size)

    # RandAugment works on the whole image in whole numbers, as Pillow does
    if draws.operations is not None and draws.strengths is not None:
        images = rand_augment(images, draws.operations, draws.strengths)

    # Crop, flip and resize to the model's input: (B, C, h, w) -> (B, C, H, W)
    if draws.crop is not None:
        inputs = sample_boxes(images, draws.crop, draws.flip, size)
    else:
        if draws.shift is not None:
            # images kept larger than the model's input get a proportionally wider border
            detail = max(1, images.shape[-1] / size[1])
            padding = round(detail * CROP_PADDING)
            shift = (draws.shift * padding / CROP_PADDING).round().long()
            images = pad_and_crop(images, padding, shift)
        flip = draws.flip[:, None, None, None]
        inputs = to_float(torch.where(flip, images.flip(-1), images), size)

    # Colours, then what moves parts of the image; mixing is last, as it needs two images
    if draws.jitter is not None:
        inputs = color_jitter(inputs, draws.jitter)
    if draws.shuffle is not None:
        across = config.augment.shuffle == "across"
        inputs = shuffle_patches(inputs, draws.shuffle, config.model.patch_size, across)
    if draws.share is not None and draws.box is not None:
        inputs = mix(inputs[:-1], inputs[1:], draws.share[:-1], draws.box[:-1])
    return inputs


def sample_boxes(
    images: Tensor, boxes: Tensor, flip: Tensor, image_size: tuple[int, int]
) -> Tensor:
    """Crop a box from each image, resize it bilinearly, and mirror it if `flip`.

    A batch cannot be sliced at a different place in each image. Instead, each pixel of the output
    has a position in its image, and is interpolated there.

    Args:
        images: uint8 (B, C, h, w).
        boxes: (B, 4) as from `crop_boxes`.
        flip: bool (B,).
        image_size: (H, W).

    Returns:
        float32 (B, C, H, W) from 0 to 1.
    """
    # The map from an output position (x, y, 1) to an input position, both from -1 to 1 across the
    # image: a box of half the width, for instance, scales x by 1/2. A negative scale mirrors.
    top, left, height, width = boxes.unbind(1)
    theta = images.new_zeros(len(images), 2, 3, dtype=torch.float32)
    theta[:, 0, 0] = width * (1 - 2 * flip.float())
    theta[:, 0, 2] = 2 * left + width - 1
    theta[:, 1, 1] = height
    theta[:, 1, 2] = 2 * top + height - 1
    size = [len(images), images.shape[1], *image_size]
    grid = F.affine_grid(theta, size, align_corners=False)  # (B, H, W, 2)

    # Samples up to half a pixel outside take the border's colour. MPS cannot do so before
    # torch 2.11; there, move these samples to the border.
    padding = "border"
    if images.device.type == "mps":
        border = 1 - 1 / constant((images.shape[-1], images.shape[-2]), images.device)
        grid = grid.clamp(-border, border)
        padding = "zeros"
    return F.grid_sample(
        images.float() / 255, grid, mode="bilinear", padding_mode=padding, align_corners=False
    )


def pad_and_crop(images: Tensor, padding: int, shifts: Tensor) -> Tensor:
    """Shift each image by up to `padding` pixels in each direction, within a black border.

    Args:
        images: uint8 (B, C, H, W).
        padding: width of the border.
        shifts: int64 (B, 2), top and left of the crop from the bordered image, from 0 to 2 padding.
    """
    height, width = images.shape[-2:]
    bordered = F.pad(images, (padding,) * 4)  # (B, C, H + 2 padding, W + 2 padding)
    top, left = shifts.T[:, :, None]  # (B, 1) each
    rows = top + torch.arange(height, device=images.device)  # (B, H)
    columns = left + torch.arange(width, device=images.device)  # (B, W)

    # One gather within whole planes: on a CPU, one along each axis would take ten times as long
    pixels = rows[:, :, None] * bordered.shape[-1] + columns[:, None]  # (B, H, W)
    taken = bordered.flatten(2).take_along_dim(pixels.flatten(1)[:, None], 2)  # (B, C, H W)
    return taken.view(images.shape)


def color_jitter(images: Tensor, factors: Tensor) -> Tensor:
    """Change brightness, then contrast, then saturation of each image; a factor of 1 is no change.

    It equals torchvision's ColorJitter in that order.

    Args:
        images: float32 (B, 3, H, W) from 0 to 1.
        factors: (B, 3) from `vit.data.draws.draw_jitter`.
    """
    # (B, 1, 1, 1) each, so that an image is multiplied by its own
    brightness, contrast, saturation = factors.T[..., None, None, None]
    images = (images * brightness).clamp(0, 1)

    # Contrast moves away from the image's mean grey, saturation from each pixel's own grey
    grey = luma(images).mean((2, 3), keepdim=True)  # (B, 1, 1, 1)
    images = torch.lerp(grey, images, contrast).clamp(0, 1)
    return torch.lerp(luma(images), images, saturation).clamp(0, 1)


def luma(images: Tensor) -> Tensor:
    """Return each pixel's brightness (ITU-R 601): (B, 3, H, W) -> (B, 1, H, W)."""
    weights = constant((0.299, 0.587, 0.114), images.device)
    return (images * weights[:, None, None]).sum(1, keepdim=True)


def shuffle_patches(
    images: Tensor, noise: Tensor, patch_size: tuple[int, int], across: bool
) -> Tensor:
    """Shuffle patches within or across images: a control experiment.

    Args:
        images: (B, C, H, W).
        noise: (B, L), whose order is the permutation: sorted along patches, each image gets its
            own; along the batch, each position in the grid does.
        patch_size: (p, q).
        across: if true, each patch keeps its position but moves to another image of the batch, so
            that the patches of an image do not belong together; else patches move within their
            image: they still occur together, but anywhere.
    """
    patches = patchify(images, patch_size)  # (B, L, C p q)
    axis = 1
    if across:
        axis = 0
    # stable, because devices order equal values differently otherwise
    order = noise.argsort(dim=axis, stable=True)[:, :, None]
    grid = (images.shape[-2] // patch_size[0], images.shape[-1] // patch_size[1])
    return unpatchify(patches.take_along_dim(order, axis), patch_size, grid)


def mix(images: Tensor, following: Tensor, share: Tensor, box: Tensor) -> Tensor:
    """Mix each image with the next one: Mixup or CutMix.

    A batch is in random order, so the next image is as good as a random one, and a process that
    computes only a part of the batch needs just one more image than its own.

    Args:
        images: float32 (B, C, H, W).
        following: the image after each, of the same shape.
        share, box: as in `vit.data.draws.Draws`, for these images.
    """
    blended = torch.lerp(following, images, share[:, None, None, None])

    # An image with a rectangle keeps its values outside of it; the others are blended. CutMix may
    # clip its rectangle to no area: then share is 1, and the blend is the image itself.
    cut = (box[:, 2] > box[:, 0])[:, None, None, None]  # (B, 1, 1, 1)
    return torch.where(_inside(box, images), following, torch.where(cut, images, blended))


def mixed_labels(
    labels: Tensor, following: Tensor, share: Tensor, classes: int, smoothing: float
) -> Tensor:
    """Return the soft targets of mixed images.

    Args:
        labels, following: int64 (B,), of the images and of the next ones.
        share: float32 (B,), the fraction of itself that each image keeps.
        classes: K.
        smoothing: probability to spread over all classes (Szegedy et al. 2016).

    Returns:
        float32 (B, K), each row a distribution.
    """
    targets = F.one_hot(labels, classes).float()
    next_targets = F.one_hot(following, classes).float()
    mixed = torch.lerp(next_targets, targets, share[:, None])
    return mixed * (1 - smoothing) + smoothing / classes


def _inside(edges: Tensor, images: Tensor) -> Tensor:
    """Return which pixels lie within top, left, bottom, right (B, 4): bool (B, 1, H, W)."""
    top, left, bottom, right = edges.T[:, :, None]  # (B, 1) each
    rows = torch.arange(images.shape[-2], device=images.device)
    columns = torch.arange(images.shape[-1], device=images.device)
    in_rows = (rows >= top) & (rows < bottom)  # (B, H)
    in_columns = (columns >= left) & (columns < right)  # (B, W)
    return in_rows[:, None, :, None] & in_columns[:, None, None, :]
