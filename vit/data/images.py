"""Which images of a data set: evenly spaced ones, some held out, a share of every class.

And which of its classes are a model's.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vit.data import ImageSet
from vit.data.draws import make_generator
from vit.errors import DataError, one_line, plural


def evenly_spaced(count: int, most: int) -> Tensor:
    """Return int64 (M,), M = min(count, most) of `count` indices; all of them if `most` is 0."""
    if most == 0:
        most = count
    most = min(count, most)
    return torch.arange(most) * count // most


def spread_at_random(count: int, most: int) -> Tensor:
    """Return int64 (M,), M = min(count, most) of `count` indices, one from each of M stretches.

    Each is drawn from its stretch, always the same one. Use it for images whose order may repeat
    with a period (classes in turn, for instance), of which `evenly_spaced` would miss some.
    """
    starts = evenly_spaced(count, most)
    lengths = torch.cat([starts[1:], torch.tensor([count])]) - starts
    shares = torch.rand(len(starts), generator=make_generator(0, "spread"))
    return starts + (shares * lengths).long()


def spread(count: int, most: int, source: str) -> Tensor:
    """Return int64 (M,), M = min(count, most) of the indices of a source's images; 0: all of them.

    Evenly spaced ones are a fair choice from images that are sorted by class or shuffled. A
    caller's data set may repeat its classes with a period: there they are drawn at random.
    """
    if source == "dataset":
        return spread_at_random(count, most)
    return evenly_spaced(count, most)


def first_copies(image_hashes: Tensor) -> Tensor:
    """Return int64 (N,), for each image the number of the first image with the same pixels.

    Args:
        image_hashes: int64 (N,), as in `ImageSet`.
    """
    _, groups = image_hashes.unique(return_inverse=True)
    numbers = torch.arange(len(groups))
    first = torch.full_like(numbers, len(groups))
    return first.scatter_reduce(0, groups, numbers, "amin")[groups]


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
    first = first_copies(image_hashes)
    copies = first.bincount(minlength=total)  # of each first copy; 0 for the others
    distinct = copies > 0
    # copies of a single image cannot be on one side: then they count as different images
    if int(distinct.sum()) == 1:
        first = torch.arange(total)
        copies = torch.ones_like(first)
        distinct = copies > 0

    # Small groups, or the smallest that there are
    most_copies = max(count, int(copies[distinct].min()))
    candidates = (distinct & (copies <= most_copies)).nonzero().flatten()
    number = max(min(count, 1), count * len(candidates) // total)
    held_out = torch.zeros(total, dtype=torch.bool)
    held_out[candidates[choose(candidates, number)]] = True
    return held_out[first]


def choose_test_images(image_hashes: Tensor, at_random: bool = False) -> Tensor:
    """Choose the test images of a data set without any: M = min(1000, max(1, N // 10)) of N.

    Args:
        image_hashes: int64 (N,), as in `ImageSet`.
        at_random: use `spread_at_random`; else they are evenly spaced (i * N // M).

    Returns:
        bool (N,); with copies of one image, as `hold_out` chooses.
    """
    total = len(image_hashes)
    count = min(1000, max(1, total // 10))
    spread = evenly_spaced
    if at_random:
        spread = spread_at_random
    return hold_out(image_hashes, count, lambda among, most: spread(len(among), most))


def hold_out_test_images(
    images: ImageSet, name: str, at_random: bool = False
) -> tuple[ImageSet, ImageSet, str]:
    """Hold out test images from a data set without any; see `choose_test_images`.

    Args:
        images: all that there are.
        name: the data's name in messages.

    Returns:
        The images to train on, those to test on, and a note about it.

    Raises:
        DataError: there are fewer than two images.
    """
    total = len(images)
    if total < 2:
        advice = "it needs at least two, one to train on and one to test on"
        raise DataError(one_line(f"{name}: has {plural(total, 'image')}; {advice}"))
    held_out = choose_test_images(images.image_hashes, at_random)

    # What was left out and decided is told once, with the training images
    train = images.subset(~held_out)
    test = replace(images.subset(held_out), skipped=(), notes=())
    manner = "evenly spaced"
    if at_random:
        manner = "spread at random"
    are_held_out = "are held out as test images"
    if len(test) == 1:
        are_held_out = "is held out as the test image"
    note = f"{len(test):,} of the {total:,} images, {manner}, {are_held_out}"
    copies = total - len(images.image_hashes.unique())
    if copies:
        note += f"; {copies:,} are copies of another image, on the same side as it"
    return train, test, note


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
    if not 0 <= count <= len(labels):
        raise ValueError(f"{count} of {len(labels)} images cannot be taken")

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


def class_key(name: str) -> str:
    """Return a class name as it is compared: systems encode the same accents differently."""
    return unicodedata.normalize("NFC", name)


def match_classes(names: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """Return for each of the `wanted` classes its number among `names`, whatever their orders.

    Numbers as names are compared as numbers, because as text 10 comes before 2.

    Args:
        names: of a model's classes; empty if they have none: then their numbers, from 0, are
            theirs.
        wanted: of a data set's classes.

    Returns:
        None if they are not the same classes, or two have the same name.
    """
    own: list[str] | list[int] = [class_key(name) for name in names]
    theirs: list[str] | list[int] = [class_key(name) for name in wanted]
    if own == theirs:
        return list(range(len(own)))

    # as numbers
    if all(name.isdecimal() and len(name) < 19 for name in (*names, *wanted)):
        own = [int(name) for name in names] or list(range(len(wanted)))
        theirs = [int(name) for name in wanted]

    # each is there once
    number_of = {name: number for number, name in enumerate(own)}
    if len(number_of) != len(own) or len(own) != len(theirs) or set(theirs) != set(own):
        return None
    return [number_of[name] for name in theirs]
