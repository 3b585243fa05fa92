"""Images on their way into the model: uint8 to float, augmented in whole batches, each image by its own draws.

Everything runs on the images' device, and nothing is random: `Draws` says what happens to which image.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.config import Config
from vit.data.draws import CROP_PADDING, Draws
from vit.data.randaugment import rand_augment
from vit.device import to_device
from vit.inputs import cut_to_shape, to_float
from vit.patches import patchify, unpatchify


def augment(images: Tensor, draws: Draws, config: Config) -> Tensor:
    """Augment images: RandAugment on the whole image, then crop and flip, colours, erasing, shuffled patches and mixing.

    Args:
        images: uint8 (B, C, h, w), one per row of `draws`.
        draws: from `vit.data.draws.draw_step`.
        config: `augment.shuffle` and the sizes of images and patches are read.

    Returns:
        float32 (B, C, H, W) from 0 to 1; with mixing (B - 1, C, H, W), as the last image is only mixed into the one before.
    """
    assert draws.flip is not None
    size = config.model.image_size_2d
    images = cut_to_shape(images, size)
    if draws.operations is not None and draws.strengths is not None:
        images = rand_augment(images, draws.operations, draws.strengths)
    if draws.crop is not None:
        varied = sample_boxes(images, draws.crop, draws.flip, size)
    else:
        if draws.shift is not None:
            detail = max(
                1, images.shape[-1] / size[1]
            )  # the border is measured in the model's pixels
            padding = round(detail * CROP_PADDING)
            shift = (draws.shift * padding / CROP_PADDING).round().long()
            images = pad_and_crop(images, padding, shift)
        images = torch.where(
            to_device(draws.flip, images.device)[:, None, None, None], images.flip(-1), images
        )
        varied = to_float(images, size)
    if draws.jitter is not None:
        varied = color_jitter(varied, draws.jitter)
    if draws.erase is not None and draws.colour is not None:
        varied = erase(varied, draws.erase, draws.colour)
    if draws.shuffle is not None:
        varied = shuffle_patches(
            varied, draws.shuffle, config.model.patch_size_2d, config.augment.shuffle == "across"
        )
    if draws.share is not None and draws.box is not None:
        varied = mix(varied[:-1], varied[1:], draws.share[:-1], draws.box[:-1])
    return varied


def sample_boxes(
    images: Tensor, boxes: Tensor, flip: Tensor, image_size: tuple[int, int]
) -> Tensor:
    """Crop a box from each image, resize it bilinearly, and mirror it if `flip`.

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
    theta = torch.zeros(
        len(images), 2, 3
    )  # output position in [-1, 1] -> input position in [-1, 1]
    theta[:, 0, 0], theta[:, 0, 2] = width * mirror, 2 * left + width - 1
    theta[:, 1, 1], theta[:, 1, 2] = height, 2 * top + height - 1
    size = [len(images), images.shape[1], *image_size]
    grid = F.affine_grid(to_device(theta, images.device), size, align_corners=False)  # (B, H, W, 2)
    padding = "border"
    if (
        images.device.type == "mps"
    ):  # has no border padding before torch 2.11, so move outside points to the border
        border = 1 - 1 / torch.tensor([images.shape[-1], images.shape[-2]], device=images.device)
        grid, padding = grid.clamp(-border, border), "zeros"
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
    bordered = F.pad(images, (padding,) * 4)
    top, left = to_device(shifts, images.device).T[:, :, None]  # (B, 1) each
    rows = top + torch.arange(height, device=images.device)  # (B, H)
    columns = left + torch.arange(width, device=images.device)  # (B, W)
    # one gather within whole planes: on a CPU, one along each axis would take ten times as long
    pixels = (rows[:, :, None] * bordered.shape[-1] + columns[:, None]).view(len(images), 1, -1)
    return bordered.flatten(2).gather(2, pixels.expand(-1, images.shape[1], -1)).view(images.shape)


def color_jitter(images: Tensor, factors: Tensor) -> Tensor:
    """Change brightness, then contrast, then saturation of each image by its own factors; 1 changes nothing.

    It equals torchvision's ColorJitter in that order, but for a whole batch at once.

    Args:
        images: float32 (B, 3, H, W) from 0 to 1.
        factors: (B, 3) from `vit.data.draws.draw_jitter`.
    """
    brightness, contrast, saturation = to_device(factors, images.device).T[
        :, :, None, None, None
    ]  # (B, 1, 1, 1) each
    images = (images * brightness).clamp(0, 1)
    images = torch.lerp(luma(images).mean((2, 3), keepdim=True), images, contrast).clamp(0, 1)
    return torch.lerp(luma(images), images, saturation).clamp(0, 1)


def luma(images: Tensor) -> Tensor:
    """Return each pixel's brightness, the luma of ITU-R 601: (B, 3, H, W) -> (B, 1, H, W)."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device)
    return (images * weights[:, None, None]).sum(1, keepdim=True)


def erase(images: Tensor, boxes: Tensor, colours: Tensor) -> Tensor:
    """Cover a box of each image with one colour (random erasing, Zhong et al. 2020; much like timm's mode "rand").

    Args:
        images: float32 (B, C, H, W).
        boxes: (B, 4) as from `crop_boxes`; height and width 0 cover nothing.
        colours: (B, C).
    """
    height, width = images.shape[-2:]
    edges = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1) * torch.tensor(
        [height, width, height, width]
    )
    return torch.where(
        _inside(edges.round(), images), to_device(colours, images.device)[:, :, None, None], images
    )


def shuffle_patches(
    images: Tensor, noise: Tensor, patch_size: tuple[int, int], across: bool
) -> Tensor:
    """Shuffle patches: a control for learning from patches that belong together.

    Args:
        images: (B, C, H, W).
        noise: (B, L), whose order decides where they go.
        patch_size: (p, q).
        across: if true, each patch keeps its place but moves to another image of the batch, so that nothing in an image
            belongs together; else patches move within their image, so that they still occur together, but anywhere.
    """
    patches = patchify(images, patch_size)  # (B, L, C p q)
    along = 0 if across else 1
    order = to_device(noise.argsort(along), images.device)[:, :, None].expand_as(patches)
    grid = images.shape[-2] // patch_size[0], images.shape[-1] // patch_size[1]
    return unpatchify(patches.gather(along, order), patch_size, grid)


def mix(images: Tensor, following: Tensor, share: Tensor, box: Tensor) -> Tensor:
    """Mix each image with the next one: Mixup or CutMix.

    A batch is in random order, so the next image is as good as a random one, and a process that computes only a part of
    the batch needs just one more image than its own.

    Args:
        images: float32 (B, C, H, W).
        following: the image after each, of the same shape.
        share, box: as in `vit.data.draws.Draws`, for these images.
    """
    share, box = to_device(share, images.device), to_device(box, images.device)
    blended = torch.lerp(following, images, share[:, None, None, None])
    cut = (box[:, 2] > box[:, 0])[
        :, None, None, None
    ]  # CutMix's empty rectangles have share 1, and blend nothing
    return torch.where(_inside(box, images), following, torch.where(cut, images, blended))


def mixed_labels(
    labels: Tensor, following: Tensor, share: Tensor, classes: int, smoothing: float = 0.0
) -> Tensor:
    """Return the soft targets of mixed images.

    Args:
        labels, following: int64 (B,), of the images and of the next ones.
        share: float32 (B,), the share of itself that each image kept.
        classes: K.
        smoothing: share to spread over all classes (Szegedy et al. 2016).

    Returns:
        float32 (B, K), each row a distribution.
    """
    own, other = (F.one_hot(values, classes).float() for values in (labels, following))
    return torch.lerp(other, own, share[:, None]) * (1 - smoothing) + smoothing / classes


def _inside(edges: Tensor, images: Tensor) -> Tensor:
    """Return which pixels lie within top, left, bottom, right (B, 4): bool (B, 1, H, W), on the images' device."""
    top, left, bottom, right = to_device(edges, images.device).T[:, :, None]  # (B, 1) each
    rows, columns = (torch.arange(length, device=images.device) for length in images.shape[-2:])
    in_rows = (rows >= top) & (rows < bottom)  # (B, H)
    in_columns = (columns >= left) & (columns < right)  # (B, W)
    return in_rows[:, None, :, None] & in_columns[:, None, None, :]
