"""Which images of a data set: evenly spaced ones, some held out, a share of every class.

And which of its classes are a model's.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import torch
from torch import Tensor

from vit.data.draws import make_generator


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


def hold_out(count: int, at_random: bool = False) -> tuple[list[int], list[int], str]:
    """Choose test images from a data set without any: M = min(1000, max(1, N // 10)) of N.

    Args:
        count: N.
        at_random: use `spread_at_random`; else they are evenly spaced (i * N // M).

    Returns:
        The indices to train on, those to test on, and a note about it.
    """
    test_count = min(1000, max(1, count // 10))
    if at_random:
        test = spread_at_random(count, test_count).tolist()
        manner = "spread at random"
    else:
        test = evenly_spaced(count, test_count).tolist()
        manner = "evenly spaced"
    train = sorted(set(range(count)).difference(test))
    note = f"{len(test):,} of the {count:,} images, {manner}, are held out as test images"
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
    rank = torch.empty(len(labels))
    for label in labels.unique():
        members = labels[order] == label
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
        names: of a model's classes; empty if they have none: then their numbers, from 0, are theirs.
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
