"""Which images of a data set: evenly spaced ones, some held out, a share of every class.

And which of its classes are a model's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from vit.data import ImageSet
from vit.data.draws import make_generator
from vit.errors import one_line

NAMED_CLASSES = 12
"""Most classes that a note names."""


def evenly_spaced(count: int, most: int) -> Tensor:
    """Return int64 (M,), M = min(count, most) of `count` indices; all of them if `most` is 0."""
    most = min(count, most or count)
    return torch.arange(most) * count // most


def spread(count: int, most: int, source: str) -> Tensor:
    """Return int64 (M,), M = min(count, most) of the indices of a source's images; 0: all of them.

    Evenly spaced ones are a fair choice from images that are sorted by class or shuffled. A
    caller's data set may repeat its classes with a period: there one is drawn from each of M
    stretches, always the same one.
    """
    starts = evenly_spaced(count, most)
    if source != "dataset":
        return starts
    lengths = torch.cat([starts[1:], torch.tensor([count])]) - starts
    shares = torch.rand(len(starts), generator=make_generator(0, "spread"))
    return starts + (shares * lengths).long()


def hold_out(image_hashes: Tensor, count: int, choose: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Choose about `count` images to hold out, so that copies of one image are on one side.

    Without copies, they are `choose(torch.arange(N), count)`. With copies, fewer are chosen, from
    the first copies alone, and each takes its own copies along. An image with more copies than
    `count`, e.g. a blank one, is not chosen: it would be most of what is held out. Only copies of a
    single image, which is all the data, are on both sides.

    Args:
        image_hashes: int64 (N,), as in `ImageSet`.
        count: from 0 to N.
        choose: (numbers of images, int64 (E,); how many of them) -> which of the E, as indices or
            as a mask.

    Returns:
        bool (N,).
    """
    total = len(image_hashes)
    _, groups, sizes = image_hashes.unique(return_inverse=True, return_counts=True)
    # copies of a single image cannot be on one side: then they count as different images
    if len(sizes) == 1:
        groups = torch.arange(total)
        sizes = torch.ones_like(groups)

    # The first images of small groups, or of the smallest that there are
    first = torch.full_like(sizes, total).scatter_reduce(0, groups, torch.arange(total), "amin")
    candidates = first[sizes <= max(count, int(sizes.min()))].sort().values
    number = max(min(count, 1), count * len(candidates) // total)
    chosen = candidates[choose(candidates, number)]
    return torch.isin(groups, groups[chosen])


def hold_out_by_class(image_hashes: Tensor, labels: Tensor, count: int, seed: int) -> Tensor:
    """Choose images to hold out, as `hold_out` does, stratified by class: labels are int64 (N,)."""

    def choose(among: Tensor, most: int) -> Tensor:
        return spread_over_classes(labels[among], most, seed, "holdout")

    return hold_out(image_hashes, count, choose)


def choose_test_images(image_hashes: Tensor, source: str) -> Tensor:
    """Choose the test images of a data set without any: M = min(1000, max(1, N // 10)) of N.

    Args:
        image_hashes: int64 (N,), as in `ImageSet`.
        source: whose images they are; see `spread`.

    Returns:
        bool (N,); with copies of one image, as `hold_out` chooses.
    """
    count = min(1000, max(1, len(image_hashes) // 10))
    return hold_out(image_hashes, count, lambda among, most: spread(len(among), most, source))


def with_test_images(
    train: ImageSet, test: ImageSet | None, source: str, image_size: tuple[int, int]
) -> tuple[ImageSet, ImageSet]:
    """Return training and test images, with notes on both at the training images.

    Args:
        train, test: with class names; without `test`, some of `train` are held out: see
            `choose_test_images`.
        source: whose images they are.
        image_size: (H, W) of the model's input.
    """
    notes = []
    if test is None:
        total = len(train)
        held_out = choose_test_images(train.image_hashes, source)
        note = f"no test images: {int(held_out.sum()):,} of the {total:,} images are held out"
        copies = total - len(train.image_hashes.unique())
        if copies:
            note += f"; {copies:,} are copies of another image, on the same side as it"
        notes.append(note)
        # what was left out is told once, with the training images
        test = replace(train.subset(held_out), skipped=())
        train = train.subset(~held_out)

    # The size of the images, and how many of the first classes there are
    height, width = train.images.shape[-2:]
    size = f"{width} x {height}; the model's input is {image_size[1]} x {image_size[0]}"
    notes.append(f"images are kept at {size}")
    rows = []
    for label, class_name in enumerate(train.class_names[:NAMED_CLASSES]):
        of_class = [(split.labels == label).sum() for split in (train, test)]
        rows.append(f"{class_name} {of_class[0]:,} + {of_class[1]:,}")
    if len(train.class_names) > NAMED_CLASSES:
        rows.append(f"{len(train.class_names) - NAMED_CLASSES:,} other classes")
    if rows:
        notes.append(f"training + test images of each class: {', '.join(rows)}")
    return replace(train, notes=(*map(one_line, notes), *train.notes)), test


def spread_over_classes(labels: Tensor, count: int, seed: int, purpose: str) -> Tensor:
    """Choose `count` of the images at random, stratified by class.

    With the same seed and purpose, a larger choice includes every smaller one; different purposes
    draw independently.

    Args:
        labels: int64 (N,).
        count: from 0 to N.
        seed, purpose: of the random numbers.

    Returns:
        bool (N,), `count` of them True.
    """
    # Rank each image at random within its class, as a share of the class: from 0 to below 1.
    # `rank` is in the order of `order`.
    order = torch.randperm(len(labels), generator=make_generator(seed, purpose))
    shuffled = labels[order]
    rank = torch.empty(len(labels))
    for label in labels.unique():
        members = shuffled == label
        size = int(members.sum())
        rank[members] = (torch.arange(size) + 0.5) / size

    # Take the lowest ranks over all classes; between equal ones, the image drawn first
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[order[rank.argsort(stable=True)[:count]]] = True
    return mask
