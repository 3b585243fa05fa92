"""The one form in which every source returns its images, and choices of some of them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vit.data.draws import make_generator
from vit.inputs import Images

LARGE = 2**28
"""Bytes of images above which a subset is not copied: enough for all of CIFAR."""


@dataclass(frozen=True)
class ImageSet:
    """One split of a data set, in memory or memory-mapped from a cache.

    Attributes:
        images: uint8 (N, C, H, W), RGB.
        labels: int64 (N,), an index into `class_names`; -1 for no label.
        class_names: empty for images without labels.
        content_hash: 16 hexadecimal digits that identify exactly these images and labels.
        skipped: paths of unreadable files, left out on request.
        notes: lines for the user on what was decided without them.
    """

    images: Images
    labels: Tensor
    class_names: tuple[str, ...]
    content_hash: str
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labelled(self) -> bool:
        """Whether there are two classes or more; a single one measures nothing."""
        return len(self.class_names) > 1

    @property
    def label_names(self) -> list[str]:
        """The class of each image by name, "" if it has none."""
        names = [*self.class_names, ""]
        # -1, for no label, is the last of them
        return [names[label] for label in self.labels.tolist()]

    def showcase(self, count: int) -> Tensor:
        """Return int64 (count,), up to `count` images to show, spread evenly over the classes."""
        count = min(count, len(self))
        # Divide the images, sorted by class, into equal stretches, and show the middle of each: the
        # starts would lie on the edges between classes, and miss some.
        middles = (2 * torch.arange(count) + 1) * len(self) // (2 * count)
        return self.labels.argsort(stable=True)[middles]

    def subset(self, indices: Tensor) -> ImageSet:
        """Return the images at `indices`, int64 (M,) or bool (N,), as a set with its own hash."""
        images: Images = Rows(self.images, torch.arange(len(self))[indices])
        if math.prod(images.shape) <= LARGE:
            images = images[:]
        labels = self.labels[indices]
        images_hash = content_hash(images, labels)
        return ImageSet(images, labels, self.class_names, images_hash, self.skipped, self.notes)


class Rows:
    """A subset of images that may not fit in memory: rows are copied only when they are read.

    Args:
        images: uint8 (N, C, H, W).
        rows: int64 (M,), which of them.
    """

    def __init__(self, images: Images, rows: Tensor):
        self._images = images
        self._rows = rows
        self.shape = torch.Size((len(rows), *images.shape[1:]))
        self.device = images.device

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, numbers: int | slice | Tensor) -> Tensor:
        """Return a copy of some rows."""
        return self._images[self._rows[numbers]]


def content_hash(images: Images, labels: Tensor) -> str:
    """Return 16 hexadecimal digits of the SHA-256 over shape, pixels and labels."""
    digest = hashlib.sha256(repr(tuple(images.shape)).encode())
    # 16 MB at a time, because memory-mapped images need not fit in memory
    count = max(2**24 // max(math.prod(images.shape[1:]), 1), 1)
    for start in range(0, len(images), count):
        digest.update(images[start : start + count].contiguous().numpy().data)
    digest.update(labels.to(torch.int64).contiguous().numpy().data)
    return digest.hexdigest()[:16]


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
