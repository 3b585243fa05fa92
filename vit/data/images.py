"""The one shape in which every source hands over its images."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vit.errors import UserError


class DataError(UserError):
    """Data that cannot be used; the message is one line: what, where, what to do."""


@dataclass(frozen=True)
class ImageSet:
    """One split of a data set, whole, in memory (or memory-mapped from a cache).

    Attributes:
        images: uint8 (N, C, H, W), RGB.
        labels: int64 (N,), an index into ``class_names``; -1 where there is no label.
        class_names: one name per class; empty for images without labels.
        stamp: 16 hexadecimal digits that identify exactly these images and labels (``content_stamp``).
        skipped: paths of files that could not be read and were left out on request.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    stamp: str
    skipped: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labelled(self) -> bool:
        """True when every image belongs to a named class."""
        return len(self.class_names) > 0

    @property
    def label_names(self) -> list[str]:
        """The class of each image by name, "" where it has none."""
        return [self.class_names[label] if label >= 0 else "" for label in self.labels.tolist()]

    def showcase(self, count: int) -> Tensor:
        """Return the indices of up to `count` images to show, spread evenly over the classes: int64 (count,)."""
        count = min(count, len(self))
        # The middles of equal stretches: their starts would lie on the edges between classes, and miss some.
        middles = (2 * torch.arange(count) + 1) * len(self) // (2 * count)
        return self.labels.argsort(stable=True)[middles]

    def subset(self, indices: Tensor) -> ImageSet:
        """Return the images at ``indices`` (int64 (M,), or bool (N,)) as a set with a stamp of its own."""
        images, labels = self.images[indices], self.labels[indices]
        return ImageSet(images, labels, self.class_names, content_stamp(images, labels), self.skipped)


def content_stamp(images: Tensor, labels: Tensor) -> str:
    """Return 16 hexadecimal digits of the SHA-256 over shape, pixels and labels: equal exactly when the content is."""
    digest = hashlib.sha256(repr(tuple(images.shape)).encode())
    for chunk in images.split(4096):  # a memory-mapped set need not fit in memory
        digest.update(chunk.contiguous().numpy().data)
    digest.update(labels.to(torch.int64).contiguous().numpy().data)
    return digest.hexdigest()[:16]
