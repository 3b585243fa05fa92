"""Everything random in a training step, drawn in one place: a pure function of (seed, step).

Each image of the batch has a row. Any step can be drawn without the ones before it, so a run
continues from any step as if it had never stopped, and several processes draw the same batch and
take their own rows.

To add a draw, add a field to `Draws`, and its lines in `draw_step` after those that use the same
generator: then the numbers of the other draws stay as they are.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Generator, Tensor

from vit.data.randaugment import OPERATIONS
from vit.device import all_to_device
from vit.masking import NOISE

if TYPE_CHECKING:
    from vit.config import Config

RAND_MAGNITUDE = 9.0
"""Mean strength of RandAugment's operations, out of 10."""
CROP_RATIO = (3 / 4, 4 / 3)
"""Smallest and largest width / height of a random crop, relative to that of the model's input."""
CROP_PADDING = 4
"""Width of the border around a padded image, in pixels of the model's input."""
JITTERED = 0.8
"""Fraction of the images with colour jitter, as in SimCLR."""
BUILDING = threading.RLock()
"""Held by the thread whose seed torch's global generator has."""


class Draws(NamedTuple):
    """Every random number of a step, one row per image; None for what is off.

    They are drawn on the CPU, so that every device gets the same.
    """

    # which images of the data set
    indices: Tensor | None = None  # int64 (B,)
    # whether it is mirrored
    flip: Tensor | None = None  # bool (B,)
    # RandAugment's operations, one after another, and how strong each is
    operations: Tensor | None = None  # int64 (B, n)
    strengths: Tensor | None = None  # float32 (B, n)
    # the crop: a box as from `crop_boxes`, or top and left of a window in the padded image
    crop: Tensor | None = None  # float32 (B, 4)
    shift: Tensor | None = None  # int64 (B, 2)
    # factors of brightness, contrast and saturation
    jitter: Tensor | None = None  # float32 (B, 3)
    # noise whose order shuffles patches
    shuffle: Tensor | None = None  # float32 (B, L)
    # which image of the data set is mixed into it, the fraction of itself that it keeps, and the
    # rectangle that comes from the partner, as top, left, bottom and right in pixels
    partner: Tensor | None = None  # int64 (B,)
    share: Tensor | None = None  # float32 (B,)
    box: Tensor | None = None  # int64 (B, 4)
    # the patches with the smallest values stay visible
    mask_noise: Tensor | None = None  # float32 (B, L)
    # from 0 to 1, for the two branches of each layer but the first, which drops nothing
    drop_path: Tensor | None = None  # float32 (B, depth - 1, 2)
    # among several processes: its row in the batch (-1: another process's), and the batch's length
    place: Tensor | None = None  # int64 (B, 2)

    def rows(self, rows: slice | Tensor) -> Draws:
        """Return the draws of some of the images."""
        return Draws(*(None if x is None else x[rows] for x in self))

    def shard(self, rank: int, count: int) -> Draws:
        """Return the draws of the rows that process `rank` of `count` computes.

        Their numbers differ by at most 1. With mixing, one more row follows: the image mixed into
        the last one. Every process gets an image, even if there are fewer images than processes.
        """
        assert self.indices is not None
        batch = len(self.indices)
        part = shard(batch, rank, count)
        stop = max(part.stop, part.start + 1)
        if self.partner is not None:
            stop += 1
        # the batch is a ring: the image mixed into the last one is the first
        rows = torch.arange(part.start, stop) % batch
        draws = self.rows(rows)
        if count == 1:
            return draws
        # beyond its part are rows that belong to other processes
        is_own = torch.arange(len(rows)) < part.stop - part.start
        numbers = torch.where(is_own, rows, -1)
        return draws._replace(place=torch.stack([numbers, torch.full_like(rows, batch)], dim=1))

    def to(self, device: torch.device) -> Draws:
        """Return the draws on `device`, without waiting for its current work."""
        # `place` stays on the CPU, where shapes are chosen from it without waiting
        fields = {name: x for name, x in self._asdict().items() if x is not None}
        fields.pop("place", None)
        moved = all_to_device(list(fields.values()), device)
        return self._replace(**dict(zip(fields, moved, strict=True)))

    def for_model(self) -> Draws:
        """Return only the draws that model and loss read."""
        return Draws(mask_noise=self.mask_noise, drop_path=self.drop_path, place=self.place)


def draw_step(config: Config, step: int, count: int, masked: bool) -> Draws:
    """Draw everything random in a step, for the whole batch.

    Each purpose has its own generator, so that switching one on changes nothing else.

    Args:
        config: all settings.
        step: from 0.
        count: number of images of the data set.
        masked: whether patches are masked in this step.
    """
    seed = config.train.seed
    augment = config.augment
    size = config.model.image_size
    grid = config.model.grid_size

    # which images; the views of one stand beside each other
    indices = batch_indices(config, step, count).repeat_interleave(augment.views)
    batch = len(indices)

    # how each image is augmented
    generator = make_generator(seed, "augment", step)
    draws = {"indices": indices, "flip": torch.rand(batch, generator=generator) < augment.flip}
    if augment.rand_augment:
        draws["operations"], draws["strengths"] = draw_operations(
            batch, augment.rand_augment, generator
        )
    if augment.crop == "resized":
        draws["crop"] = crop_boxes(batch, augment.crop_scale, generator)
    elif augment.crop == "pad":
        draws["shift"] = torch.randint(0, 2 * CROP_PADDING + 1, (2, batch), generator=generator).T
    if augment.color_jitter or augment.grayscale:
        colours = make_generator(seed, "jitter", step)
        draws["jitter"] = draw_jitter(batch, augment.color_jitter, augment.grayscale, colours)
    if augment.shuffle != "none":
        noise = make_generator(seed, "shuffle", step)
        draws["shuffle"] = torch.rand(batch, grid[0] * grid[1], generator=noise)

    # which images are mixed: each with the next, as the batch is in random order already
    mixup = config.classify.mixup
    cutmix = config.classify.cutmix
    if mixup or cutmix:
        mixing = make_generator(seed, "mixing", step)
        draws["partner"] = indices.roll(-1)
        draws["share"], draws["box"] = draw_mixing(batch, size, mixup, cutmix, mixing)

    # which patches are visible, and which branches are dropped
    if masked:
        noise = make_generator(seed, "mask", step)
        draws["mask_noise"] = NOISE[config.mask.kind](batch, grid, noise)
    branches = 2 * (config.model.filled["depth"] - 1)
    if config.model.drop_path and branches:
        chance = torch.rand(branches, batch, generator=make_generator(seed, "drop path", step))
        draws["drop_path"] = chance.T.reshape(batch, -1, 2)  # (B, depth - 1, 2)
    return Draws(**draws)


# --- one purpose each ----------------------------------------------------------------------------


def crop_boxes(batch: int, scale: tuple[float, float], generator: Generator) -> Tensor:
    """Draw boxes inside an image as Inception's crop does (Szegedy et al. 2015).

    Args:
        batch: B.
        scale: smallest and largest fraction of the area, which is uniform between them; width /
            height is log-uniform between those of CROP_RATIO.
        generator: the only source of randomness.

    Returns:
        float32 (B, 4): top, left, height, width as fractions of the image, whatever its shape. A
        side longer than the image is shortened to it (instead of drawing again, which a batch
        cannot do at once).
    """
    draws = torch.rand(batch, 4, generator=generator)
    area = scale[0] + (scale[1] - scale[0]) * draws[:, 0]

    # width / height
    low, high = map(math.log, CROP_RATIO)
    aspect = (low + (high - low) * draws[:, 1]).exp()
    height = (area / aspect).sqrt().clamp(max=1)
    width = (area * aspect).sqrt().clamp(max=1)

    # anywhere in the image
    top = draws[:, 2] * (1 - height)
    left = draws[:, 3] * (1 - width)
    return torch.stack([top, left, height, width], dim=1)


def draw_operations(batch: int, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Draw RandAugment's operations: n = `count` per image, each applied with probability 1/2.

    Strengths are normally distributed around RAND_MAGNITUDE, with standard deviation 0.5, and
    clamped to 0 to 10; the sign of each is random.

    Returns:
        operations: int64 (B, n), an index into OPERATIONS, perhaps repeated; -1 for none.
        strengths: float32 (B, n), from -1 to 1.
    """
    order = torch.randint(len(OPERATIONS), (count, batch), generator=generator)
    applied = torch.rand(count, batch, generator=generator) < 0.5
    strength = RAND_MAGNITUDE + 0.5 * torch.randn(count, batch, generator=generator)
    strength = strength.clamp(0, 10) / 10
    sign = 1 - 2 * (torch.rand(count, batch, generator=generator) < 0.5).float()
    return torch.where(applied, order, -1).T, (strength * sign).T  # (n, B) -> (B, n)


def draw_jitter(batch: int, jitter: float, grayscale: float, generator: Generator) -> Tensor:
    """Draw each view's change of colours (SimCLR, Chen et al. 2020, without its change of hue).

    Args:
        batch: B.
        jitter: for `JITTERED` of the images, the factors are uniform from 1 - jitter to 1 + jitter;
            for the others, 1.
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
        mixup: alpha of Mixup's Beta(alpha, alpha) (Zhang et al. 2018), from which `share` is drawn;
            0: never.
        cutmix: alpha of CutMix's (Yun et al. 2019); 0: never. Its rectangle has the image's shape
            and its middle anywhere; it is clipped to the image before `share` is computed.
            With both, each image gets either with probability 1/2.
        generator: the only source of randomness.

    Returns:
        share: float32 (B,), the fraction of itself that each image keeps: of its values, or of its
            area.
        box: int64 (B, 4): top, left, bottom and right, in pixels, of the rectangle that comes from
            the next image; all 0 if the two are blended instead.
    """
    probability = float(cutmix > 0)
    if mixup and cutmix:
        probability = 0.5
    cut = torch.rand(batch, generator=generator) < probability
    blended_share = beta(mixup, batch, generator)
    cut_share = beta(cutmix, batch, generator)

    # a rectangle of 1 - share of the area, around any point
    middle = torch.rand(batch, 2, generator=generator)
    half = (1 - cut_share).sqrt()[:, None] / 2
    edges = torch.cat([middle - half, middle + half], dim=1).clamp(0, 1)  # (B, 4), as fractions
    box = (edges * torch.tensor([*size, *size])).round().long() * cut[:, None]

    # its area after clipping and rounding
    area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
    return torch.where(cut, 1 - area / (size[0] * size[1]), blended_share), box


def beta(alpha: float, count: int, generator: Generator) -> Tensor:
    """Draw from Beta(alpha, alpha): float32 (count,), all 1 if alpha is 0."""
    if not alpha:
        return torch.ones(count)
    # a ratio of gammas, because torch's own distribution takes no generator
    shape = torch.full((2, count), alpha, dtype=torch.float64)
    first, second = torch._standard_gamma(shape, generator=generator)
    return (first / (first + second)).float()


# --- generators, and the order of the images -----------------------------------------------------


def derive_seed(seed: int, purpose: str, number: int) -> int:
    """Hash a seed, a purpose ("order", "augment", "mask", ...) and a step or epoch into 63 bits.

    Neighbouring seeds, purposes and numbers are therefore unrelated.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def make_generator(seed: int, purpose: str, number: int = 0) -> Generator:
    """Return a generator for one purpose (see `derive_seed`).

    It is on the CPU, so that every device gets the same draws.
    """
    return Generator().manual_seed(derive_seed(seed, purpose, number))


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Let modules that are built on the CPU within the block draw their weights from `seed`.

    torch's layers draw from the global generator of the CPU, which is the caller's: its state is
    put back. Those of other devices are not touched. Threads that build models take turns.
    """
    with BUILDING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "weights", 0))
        yield


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """Return the order in which an epoch (from 0) visits the images: int64 (count,)."""
    return torch.randperm(count, generator=make_generator(seed, "order", epoch))


def batch_indices(config: Config, step: int, count: int) -> Tensor:
    """Return the images of step `step` (from 0): int64 (B,), numbers below `count`.

    Every image comes once per epoch, or not at all where the remainder is left out
    (`Config.steps_per_epoch`). A last, smaller batch counts like any other: its loss is the mean
    over its images, its learning rate the schedule's.
    """
    batch_size = config.train.batch_size
    epoch, position = divmod(step, config.steps_per_epoch(count))
    order = epoch_order(config.train.seed, epoch, count)
    return order[position * batch_size : (position + 1) * batch_size]


def shard(count: int, rank: int, processes: int) -> slice:
    """Return the rows of `count` that process `rank` of `processes` computes; perhaps none."""
    return slice(count * rank // processes, count * (rank + 1) // processes)
