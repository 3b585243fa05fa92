"""Everything random of a training step, drawn in one place: a pure function of (seed, step), a row per image.

Any step can be drawn without the ones before it, so a run continues from any step as if it had never stopped, and several
processes draw the same batch and take their rows of it.

To add a draw: a field of `Draws`, and its lines in `draw_step` after those that use the same generator, so that the runs of
earlier versions stay as they are.
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

ERASED_AREA, ERASED_RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)
"""Of random erasing, as in timm: share of the area, and width / height."""
JITTERED = 0.8
"""Share of the images whose colours are jittered, as in SimCLR."""


class Draws(NamedTuple):
    """Every random number of a step, a row per image; on the CPU, None where the settings ask for none."""

    indices: Tensor | None = None  # int64 (B,), which images of the data set
    flip: Tensor | None = None  # bool (B,)
    operations: Tensor | None = None  # int64 (B, n), of RandAugment
    strengths: Tensor | None = None  # float32 (B, n), likewise
    crop: Tensor | None = None  # float32 (B, 4), boxes as from `crop_boxes`
    jitter: Tensor | None = None  # float32 (B, 3), factors of brightness, contrast and saturation
    shift: Tensor | None = None  # int64 (B, 2), top and left of what is kept of a padded image
    erase: Tensor | None = None  # float32 (B, 4), boxes; empty where nothing is erased
    colour: Tensor | None = None  # float32 (B, C), of what is erased
    shuffle: Tensor | None = None  # float32 (B, L), noise whose order shuffles patches
    partner: Tensor | None = None  # int64 (B,), which image of the data set is mixed into each: the batch's next
    share: Tensor | None = None  # float32 (B,), the share that each image keeps of itself in mixing
    box: Tensor | None = None  # int64 (B, 4), the rectangle that comes from the partner, in pixels
    mask_noise: Tensor | None = None  # float32 (B, L); the patches with the smallest values are seen
    drop_path: Tensor | None = None  # float32 (B, depth - 1, 2), from 0 to 1; the first block's branches always stay

    def rows(self, rows: slice | Tensor) -> Draws:
        """Return the draws of some of the images."""
        return Draws(*(None if values is None else values[rows] for values in self))  # type: ignore[arg-type]

    def shard(self, rank: int, count: int) -> Draws:
        """Return the rows of process `rank` of `count`; their numbers differ by one at most.

        With mixing, one more row follows: the image that is mixed into the last. A process always has an image, also where
        there are fewer images than processes.
        """
        assert self.indices is not None
        batch = len(self.indices)
        rows = shard(batch, rank, count)
        last = max(rows.stop, rows.start + 1) + (self.partner is not None)
        return self.rows(torch.arange(rows.start, last) % batch)

    def for_model(self, device: torch.device) -> Draws:
        """Return what the model reads, on `device`; all else is None."""
        noise, chance = (None if x is None else to_device(x, device) for x in (self.mask_noise, self.drop_path))
        return Draws(mask_noise=noise, drop_path=chance)


def draw_step(config: Config, step: int, count: int, masked: bool) -> Draws:
    """Draw everything random of a step, for the whole batch.

    Each purpose has a generator of its own, so that switching one on changes nothing else.

    Args:
        config: all settings.
        step: from 0.
        count: images of the data set.
        masked: whether the encoder sees only some of the patches in this step.
    """
    seed, augment, size = config.train.seed, config.augment, config.model.image_size_2d
    indices = batch_indices(seed, step, count, config.train.batch_size).repeat_interleave(augment.views)
    batch, grid = len(indices), config.model.grid_size

    # how each image is varied
    generator = make_generator(seed, "augment", step)
    drawn = {"indices": indices, "flip": torch.rand(batch, generator=generator) < augment.flip}
    if augment.rand_augment:
        operations, strengths = draw_operations(batch, augment.rand_augment, augment.rand_magnitude, generator)
        drawn |= {"operations": operations, "strengths": strengths}
    if augment.crop == "resized":  # in fractions of the image's own shape
        drawn["crop"] = crop_boxes(batch, (1, 1), augment.crop_scale, augment.crop_ratio, generator)
    elif augment.crop == "pad":
        drawn["shift"] = torch.randint(0, 2 * augment.crop_padding + 1, (2, batch), generator=generator).T
    if augment.color_jitter or augment.grayscale:
        colours = make_generator(seed, "jitter", step)
        drawn["jitter"] = draw_jitter(batch, augment.color_jitter, augment.grayscale, colours)
    if augment.erasing:
        erased = torch.rand(batch, generator=generator) < augment.erasing
        drawn["erase"] = crop_boxes(batch, size, ERASED_AREA, ERASED_RATIO, generator) * erased[:, None]
        drawn["colour"] = torch.rand(batch, 3, generator=generator)
    if augment.shuffle != "none":
        drawn["shuffle"] = torch.rand(batch, grid[0] * grid[1], generator=make_generator(seed, "shuffle", step))

    # which images are mixed
    mixup, cutmix = config.classify.mixup, config.classify.cutmix
    if mixup or cutmix:
        share, box = draw_mixing(batch, size, mixup, cutmix, make_generator(seed, "mixing", step))
        drawn |= {"partner": indices.roll(-1), "share": share, "box": box}

    # which patches are seen, and which branches are left out
    if masked:
        drawn["mask_noise"] = NOISE[config.mask.kind](batch, grid, make_generator(seed, "mask", step))
    branches = 2 * (config.model.dimensions["depth"] - 1)
    if config.model.drop_path and branches:
        chance = torch.rand(branches, batch, generator=make_generator(seed, "drop path", step))
        drawn["drop_path"] = chance.T.reshape(batch, -1, 2)
    return Draws(**drawn)


def crop_boxes(
    batch: int, size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], generator: Generator
) -> Tensor:
    """Draw boxes inside an image of (H, W), as Inception's crop does: area uniform in `scale`, aspect log-uniform in `ratio`.

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


def draw_operations(batch: int, count: int, magnitude: float, generator: Generator) -> tuple[Tensor, Tensor]:
    """Draw RandAugment's operations for a batch: n = `count` per image, each applied with probability 1/2.

    Strengths are normally distributed about `magnitude` with a deviation of 0.5, and kept between 0 and 10.

    Returns:
        operations: int64 (B, n), an index into OPERATIONS, which may come twice; -1 for none.
        strengths: float32 (B, n), from -1 to 1.
    """
    order = torch.randint(len(OPERATIONS), (count, batch), generator=generator)
    applied = torch.rand(count, batch, generator=generator) < 0.5
    strength = (magnitude + 0.5 * torch.randn(count, batch, generator=generator)).clamp(0, 10) / 10
    sign = 1 - 2 * (torch.rand(count, batch, generator=generator) < 0.5).float()
    return torch.where(applied, order, -1).T, (strength * sign).T


def draw_jitter(batch: int, jitter: float, grayscale: float, generator: Generator) -> Tensor:
    """Draw how the colours of each view change (SimCLR, Chen et al. 2020; the hue stays).

    Args:
        batch: B.
        jitter: the factors are uniform from 1 - jitter to 1 + jitter, in `JITTERED` of the images; elsewhere they are 1.
        grayscale: probability that an image is grey: its saturation is 0.
        generator: the only source of chance.

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
        cutmix: likewise of CutMix (Yun et al. 2019); with both, each image has either with probability 1/2. The rectangle has
            the image's shape and its middle anywhere; what lies outside is cut off, and the share is of what is left.
        generator: the only source of chance.

    Returns:
        share: float32 (B,), the share that each image keeps of itself: of its values, or of its area.
        box: int64 (B, 4): top, left, bottom and right, in pixels, of the rectangle that comes from the next image; all 0
            where the two are blended instead.
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
    """Draw from Beta(alpha, alpha): float32 (count,), all 1 where alpha is 0."""
    if not alpha:
        return torch.ones(count)
    # a ratio of gammas, as torch's own distribution takes no generator
    one, other = torch._standard_gamma(torch.full((2, count), alpha, dtype=torch.float64), generator=generator)
    return (one / (one + other)).float()


def derive_seed(seed: int, purpose: str, number: int) -> int:
    """Return a 63-bit seed for one purpose ("order", "augment", "mask", ...) at one step or epoch.

    A hash, so that neighbouring seeds, purposes and numbers share nothing.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def make_generator(seed: int, purpose: str, number: int = 0) -> Generator:
    """Return a generator for one purpose, on the CPU (so that every device gets the same draws); see `derive_seed`."""
    return Generator().manual_seed(derive_seed(seed, purpose, number))


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """Return the order in which epoch `epoch` (from 0) visits `count` images: int64 (count,), a permutation."""
    return torch.randperm(count, generator=make_generator(seed, "order", epoch))


def steps_per_epoch(count: int, batch_size: int) -> int:
    """Return the steps that `count` images take; the last one may have fewer images than `batch_size`."""
    return -(-count // batch_size)


def batch_indices(seed: int, step: int, count: int, batch_size: int) -> Tensor:
    """Return the images of step `step` (from 0): int64 (B,), indices into the data set.

    Every image comes exactly once an epoch. The last batch of an epoch holds what remains, from 1 to `batch_size` images;
    its loss is the mean over those, and its learning rate the schedule's, like any other step's.
    """
    epoch, position = divmod(step, steps_per_epoch(count, batch_size))
    return epoch_order(seed, epoch, count)[position * batch_size : (position + 1) * batch_size]


def shard(count: int, rank: int, processes: int) -> slice:
    """Return the rows of `count` that process `rank` of `processes` computes; may be empty."""
    return slice(count * rank // processes, count * (rank + 1) // processes)
