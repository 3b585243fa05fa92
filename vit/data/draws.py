"""Everything random in a training step, drawn in one place: a pure function of (seed, step), with one row per image.

Any step can be drawn without the ones before it, so a run continues from any step as if it had never stopped, and several
processes draw the same batch and take their own rows.

To add a draw, add a field to `Draws`, and its lines in `draw_step` after those that use the same generator, so that
earlier versions' runs can be reproduced.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from vit.config import Config
from vit.data.randaugment import OPERATIONS
from vit.device import to_device
from vit.masking import NOISE

RAND_MAGNITUDE = 9.0
"""Mean strength of RandAugment's operations, out of 10."""
CROP_RATIO = (3 / 4, 4 / 3)
"""Smallest and largest width / height of a random part, relative to that of the model's input."""
CROP_PADDING = 4
"""Width of the border around a padded image, in pixels of the model's input."""
ERASED_AREA, ERASED_RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)
"""Random erasing, as in timm: share of the area, and width / height."""
JITTERED = 0.8
"""Share of the images with colour jitter, as in SimCLR."""


class Draws(NamedTuple):
    """Every random number of a step, one row per image, on the CPU; None if the settings need none."""

    indices: Tensor | None = None  # int64 (B,), which images of the data set
    flip: Tensor | None = None  # bool (B,)
    operations: Tensor | None = None  # int64 (B, n), RandAugment's
    strengths: Tensor | None = None  # float32 (B, n), RandAugment's
    crop: Tensor | None = None  # float32 (B, 4), boxes as from `crop_boxes`
    jitter: Tensor | None = None  # float32 (B, 3), factors of brightness, contrast and saturation
    shift: Tensor | None = None  # int64 (B, 2), top and left of the crop from the padded image
    erase: Tensor | None = None  # float32 (B, 4), boxes; empty where nothing is erased
    colour: Tensor | None = None  # float32 (B, C), of those boxes
    shuffle: Tensor | None = None  # float32 (B, L), noise whose order shuffles patches
    partner: Tensor | None = (
        None  # int64 (B,), which image of the data set is mixed into each: the batch's next
    )
    share: Tensor | None = None  # float32 (B,), the share of itself that each image keeps in mixing
    box: Tensor | None = None  # int64 (B, 4), the rectangle that comes from the partner, in pixels
    mask_noise: Tensor | None = (
        None  # float32 (B, L); the patches with the smallest values stay visible
    )
    drop_path: Tensor | None = (
        None  # float32 (B, depth - 1, 2), from 0 to 1; the first block drops nothing
    )
    place: Tensor | None = (
        None  # int64 (B, 2), which row of how many, among several processes; -1: another one's row
    )

    def rows(self, rows: slice | Tensor) -> Draws:
        """Return the draws of some of the images."""
        return Draws(*(None if values is None else values[rows] for values in self))  # type: ignore[arg-type]

    def shard(self, rank: int, count: int) -> Draws:
        """Return the rows of process `rank` of `count`; the processes' numbers of rows differ by at most one.

        With mixing, one more row follows: the image mixed into the last one. Every process gets an image, even if there are
        fewer images than processes.
        """
        assert self.indices is not None
        batch = len(self.indices)
        rows = shard(batch, rank, count)
        last = max(rows.stop, rows.start + 1) + (self.partner is not None)
        taken = torch.arange(rows.start, last)
        place = torch.stack(
            [torch.where(taken < rows.stop, taken, -1), torch.full_like(taken, batch)], dim=1
        )
        return self.rows(taken % batch)._replace(place=place if count > 1 else None)

    def for_model(self, device: torch.device) -> Draws:
        """Return only the draws that model and loss read, on `device`; places stay on the CPU, where shapes are chosen."""
        noise, chance = (
            None if x is None else to_device(x, device) for x in (self.mask_noise, self.drop_path)
        )
        return Draws(mask_noise=noise, drop_path=chance, place=self.place)


def draw_step(config: Config, step: int, count: int, masked: bool) -> Draws:
    """Draw everything random in a step, for the whole batch.

    Each purpose has its own generator, so that switching one on changes nothing else.

    Args:
        config: all settings.
        step: from 0.
        count: number of images in the data set.
        masked: whether patches are hidden from the encoder in this step.
    """
    seed, augment, size = config.train.seed, config.augment, config.model.image_size_2d
    indices = batch_indices(seed, step, count, config.train.batch_size).repeat_interleave(
        augment.views
    )
    batch, grid = len(indices), config.model.grid_size

    # how each image is augmented
    generator = make_generator(seed, "augment", step)
    drawn = {"indices": indices, "flip": torch.rand(batch, generator=generator) < augment.flip}
    if augment.rand_augment:
        operations, strengths = draw_operations(
            batch, augment.rand_augment, RAND_MAGNITUDE, generator
        )
        drawn |= {"operations": operations, "strengths": strengths}
    if augment.crop == "resized":  # in fractions of the image's own shape
        drawn["crop"] = crop_boxes(batch, (1, 1), augment.crop_scale, CROP_RATIO, generator)
    elif augment.crop == "pad":
        drawn["shift"] = torch.randint(0, 2 * CROP_PADDING + 1, (2, batch), generator=generator).T
    if augment.color_jitter or augment.grayscale:
        colours = make_generator(seed, "jitter", step)
        drawn["jitter"] = draw_jitter(batch, augment.color_jitter, augment.grayscale, colours)
    if augment.erasing:
        erased = torch.rand(batch, generator=generator) < augment.erasing
        drawn["erase"] = (
            crop_boxes(batch, size, ERASED_AREA, ERASED_RATIO, generator) * erased[:, None]
        )
        drawn["colour"] = torch.rand(batch, 3, generator=generator)
    if augment.shuffle != "none":
        drawn["shuffle"] = torch.rand(
            batch, grid[0] * grid[1], generator=make_generator(seed, "shuffle", step)
        )

    # which images are mixed
    mixup, cutmix = config.classify.mixup, config.classify.cutmix
    if mixup or cutmix:
        share, box = draw_mixing(batch, size, mixup, cutmix, make_generator(seed, "mixing", step))
        drawn |= {"partner": indices.roll(-1), "share": share, "box": box}

    # which patches are visible, and which branches are dropped
    if masked:
        drawn["mask_noise"] = NOISE[config.mask.kind](
            batch, grid, make_generator(seed, "mask", step)
        )
    branches = 2 * (config.model.dimensions["depth"] - 1)
    if config.model.drop_path and branches:
        chance = torch.rand(branches, batch, generator=make_generator(seed, "drop path", step))
        drawn["drop_path"] = chance.T.reshape(batch, -1, 2)
    return Draws(**drawn)


def crop_boxes(
    batch: int,
    size: tuple[int, int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: Generator,
) -> Tensor:
    """Draw boxes inside an image of (H, W), as Inception's crop does: area uniform in `scale`, aspect log-uniform in `ratio`.

    Returns:
        float32 (B, 4): top, left, height, width as fractions of the image. A side longer than the image is shortened to it
        (instead of drawing again, which a whole batch cannot do at once).
    """
    draws = torch.rand(batch, 4, generator=generator)
    area = scale[0] + (scale[1] - scale[0]) * draws[:, 0]
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (
        (low + (high - low) * draws[:, 1]).exp() * size[0] / size[1]
    )  # width / height in fractions
    height = (area / aspect).sqrt().clamp(max=1)
    width = (area * aspect).sqrt().clamp(max=1)
    return torch.stack(
        [draws[:, 2] * (1 - height), draws[:, 3] * (1 - width), height, width], dim=1
    )


def draw_operations(
    batch: int, count: int, magnitude: float, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Draw RandAugment's operations for a batch: n = `count` per image, each applied with probability 1/2.

    Strengths are normally distributed around `magnitude`, with standard deviation 0.5, and clamped to 0 to 10.

    Returns:
        operations: int64 (B, n), an index into OPERATIONS, perhaps repeated; -1 for none.
        strengths: float32 (B, n), from -1 to 1.
    """
    order = torch.randint(len(OPERATIONS), (count, batch), generator=generator)
    applied = torch.rand(count, batch, generator=generator) < 0.5
    strength = (magnitude + 0.5 * torch.randn(count, batch, generator=generator)).clamp(0, 10) / 10
    sign = 1 - 2 * (torch.rand(count, batch, generator=generator) < 0.5).float()
    return torch.where(applied, order, -1).T, (strength * sign).T


def draw_jitter(batch: int, jitter: float, grayscale: float, generator: Generator) -> Tensor:
    """Draw each view's change of colours (SimCLR, Chen et al. 2020, without its change of hue).

    Args:
        batch: B.
        jitter: for `JITTERED` of the images, the factors are uniform from 1 - jitter to 1 + jitter; for the others, 1.
        grayscale: probability of turning an image grey (saturation 0).
        generator: the only source of randomness.

    Returns:
        float32 (B, 3): factors of brightness, contrast and saturation.
    """
    factors = 1 + jitter * (2 * torch.rand(batch, 3, generator=generator) - 1)
    jittered, grey = torch.rand(batch, 2, generator=generator).unbind(1)
    factors = torch.where(jittered[:, None] < JITTERED, factors, 1.0)
    factors[:, 2] *= grey >= grayscale
    return factors


def draw_mixing(
    batch: int, size: tuple[int, int], mixup: float, cutmix: float, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Draw how each image of a batch is mixed with the next one.

    Args:
        batch: B.
        size: (H, W) of the images.
        mixup: alpha of Mixup's Beta(alpha, alpha) (Zhang et al. 2018), from which the share is drawn; 0: never.
        cutmix: likewise for CutMix (Yun et al. 2019); with both, each image gets either with probability 1/2. The rectangle
            has the image's shape and its middle anywhere; it is clipped to the image before the share is computed.
        generator: the only source of randomness.

    Returns:
        share: float32 (B,), the share of itself that each image keeps: of its values, or of its area.
        box: int64 (B, 4): top, left, bottom and right, in pixels, of the rectangle that comes from the next image; all 0
            if the two are blended instead.
    """
    cut = torch.rand(batch, generator=generator) < (0.5 if mixup and cutmix else float(cutmix > 0))
    blended, kept = beta(mixup, batch, generator), beta(cutmix, batch, generator)
    middle = torch.rand(batch, 2, generator=generator)
    half = (1 - kept).sqrt()[:, None] / 2
    edges = torch.cat([middle - half, middle + half], dim=1).clamp(0, 1)  # (B, 4), as fractions
    box = (edges * torch.tensor([*size, *size])).round().long() * cut[:, None]
    area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
    return torch.where(cut, 1 - area / (size[0] * size[1]), blended), box


def beta(alpha: float, count: int, generator: Generator) -> Tensor:
    """Draw from Beta(alpha, alpha): float32 (count,), all 1 if alpha is 0."""
    if not alpha:
        return torch.ones(count)
    # a ratio of gammas, because torch's own distribution takes no generator
    one, other = torch._standard_gamma(
        torch.full((2, count), alpha, dtype=torch.float64), generator=generator
    )
    return (one / (one + other)).float()


def derive_seed(seed: int, purpose: str, number: int) -> int:
    """Hash a seed, a purpose ("order", "augment", "mask", ...) and a step or epoch into a 63-bit seed.

    Neighbouring seeds, purposes and numbers therefore share nothing.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def make_generator(seed: int, purpose: str, number: int = 0) -> Generator:
    """Return a generator for one purpose (see `derive_seed`), on the CPU so that every device gets the same draws."""
    return Generator().manual_seed(derive_seed(seed, purpose, number))


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """Return the order in which epoch `epoch` (from 0) visits `count` images: int64 (count,), a permutation."""
    return torch.randperm(count, generator=make_generator(seed, "order", epoch))


def steps_per_epoch(count: int, batch_size: int) -> int:
    """Return the number of steps for `count` images; the last one may have fewer images than `batch_size`."""
    return -(-count // batch_size)


def batch_indices(seed: int, step: int, count: int, batch_size: int) -> Tensor:
    """Return the images of step `step` (from 0): int64 (B,), indices into the data set.

    Every image comes exactly once per epoch. An epoch's last batch holds the remaining 1 to `batch_size` images; its loss
    is the mean over those, and its learning rate the schedule's, as in any other step.
    """
    epoch, position = divmod(step, steps_per_epoch(count, batch_size))
    return epoch_order(seed, epoch, count)[position * batch_size : (position + 1) * batch_size]


def shard(count: int, rank: int, processes: int) -> slice:
    """Return the rows, out of `count`, that process `rank` of `processes` computes; they may be none."""
    return slice(count * rank // processes, count * (rank + 1) // processes)
