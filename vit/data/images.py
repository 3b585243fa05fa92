"""The one form in which every source returns its images, and ways to choose some of them."""

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
    """One whole split of a data set, in memory (or memory-mapped from a cache)."""

    images: Images  # uint8 (N, C, H, W), RGB
    labels: Tensor  # int64 (N,), an index into `class_names`; -1 for no label
    class_names: tuple[str, ...]  # empty for images without labels
    content_hash: str  # 16 hexadecimal digits that identify exactly these images and labels: `content_hash` below
    skipped: tuple[str, ...] = ()  # paths of unreadable files, left out on request
    notes: tuple[
        str, ...
    ] = ()  # lines that the user should see: what was found, what was done automatically

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labelled(self) -> bool:
        """Whether every image belongs to one of two classes or more; a single one measures nothing."""
        return len(self.class_names) > 1

    @property
    def label_names(self) -> list[str]:
        """The class of each image by name, "" if it has none."""
        return [self.class_names[label] if label >= 0 else "" for label in self.labels.tolist()]

    def showcase(self, count: int) -> Tensor:
        """Return the indices of up to `count` images to show, spread evenly over the classes: int64 (count,)."""
        count = min(count, len(self))
        # the middles of equal stretches: their starts would lie on the edges between classes, and miss some
        middles = (2 * torch.arange(count) + 1) * len(self) // (2 * count)
        return self.labels.argsort(stable=True)[middles]

    def subset(self, indices: Tensor) -> ImageSet:
        """Return the images at `indices` (int64 (M,), or bool (N,)) as a set with its own content hash."""
        images: Images = Rows(self.images, torch.arange(len(self))[indices])
        if math.prod(images.shape) <= LARGE:
            images = images[:]
        labels = self.labels[indices]
        return ImageSet(
            images, labels, self.class_names, content_hash(images, labels), self.skipped, self.notes
        )


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
        """Return some of the images, copied."""
        return self._images[self._rows[numbers]]


def content_hash(images: Images, labels: Tensor) -> str:
    """Return 16 hexadecimal digits of the SHA-256 over shape, pixels and labels."""
    digest = hashlib.sha256(repr(tuple(images.shape)).encode())
    few = max(
        2**24 // max(math.prod(images.shape[1:]), 1), 1
    )  # a memory-mapped set need not fit in memory
    for start in range(0, len(images), few):
        digest.update(images[start : start + few].contiguous().numpy().data)
    digest.update(labels.to(torch.int64).contiguous().numpy().data)
    return digest.hexdigest()[:16]


def evenly_spaced(count: int, most: int) -> Tensor:
    """Return up to `most` of `count` indices, spread evenly: int64 (min(count, most),); all of them if `most` is 0."""
    most = min(count, most) if most else count
    return torch.arange(most) * count // most


def spread_at_random(count: int, most: int) -> Tensor:
    """Do the same with each index drawn from its stretch (always the same), because data in e.g. ten turns has a period."""
    starts = evenly_spaced(count, most)
    lengths = torch.cat([starts[1:], torch.tensor([count])]) - starts
    return (
        starts + (torch.rand(len(starts), generator=make_generator(0, "spread")) * lengths).long()
    )


def hold_out(count: int, at_random: bool = False) -> tuple[list[int], list[int], str]:
    """Choose test images from a data set without any: M = min(1000, max(1, N // 10)) of N, evenly spaced (i * N // M).

    Or `spread_at_random`.

    Returns:
        The indices to train on, those held out, and a note about it.
    """
    held_out = (spread_at_random if at_random else evenly_spaced)(
        count, min(1000, max(1, count // 10))
    ).tolist()
    kept = sorted(set(range(count)).difference(held_out))
    how = "spread at random" if at_random else "evenly spaced"
    aside = f"{len(held_out):,} of the {count:,} images, {how}, are held out as test images"
    return kept, held_out, aside


def spread_over_classes(labels: Tensor, count: int, seed: int, purpose: str) -> Tensor:
    """Choose `count` of the images at random, stratified by class.

    With the same seed and purpose, a larger choice includes every smaller one; different purposes draw independently.

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
    order = torch.randperm(len(labels), generator=make_generator(seed, purpose))
    rank = torch.empty(len(labels))  # of the images in that order
    for label in labels.unique():
        members = labels[order] == label
        size = int(members.sum())
        rank[members] = (torch.arange(size) + 0.5) / size
    # Take the lowest ranks over all classes; between equal ones, the image drawn first.
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[order[rank.argsort(stable=True)[:count]]] = True
    return mask
