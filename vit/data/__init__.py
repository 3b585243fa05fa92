"""Images from any source in one shape."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vit.errors import plural
from vit.inputs import Images, Rows, image_hash

if TYPE_CHECKING:
    from vit.config import Source

LARGE = 2**28
"""Bytes of images above which a subset is not copied: enough for all of CIFAR."""

HASHED = 2**30
"""Bytes of images up to which a subset's pixels are hashed at every start, in half a second."""


@dataclass(frozen=True)
class ImageSet:
    """One split of a data set, in memory or memory-mapped from a cache.

    Attributes:
        images: uint8 (N, C, H, W), RGB.
        labels: int64 (N,), an index into `class_names`; -1 for no label.
        class_names: empty for images without labels.
        content_hash: 16 hexadecimal digits that identify exactly these images and labels.
        image_hashes: int64 (N,), a hash of each image's pixels before any resize: copies have one.
        skipped: paths of unreadable files, left out on request.
        notes: lines for the user on choices made automatically.
        files: of each image its file within the folder; empty if they come from elsewhere.
    """

    images: Images
    labels: Tensor
    class_names: tuple[str, ...]
    content_hash: str
    image_hashes: Tensor
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @classmethod
    def in_memory(cls, images: Tensor, labels: Tensor, class_names: tuple[str, ...]) -> ImageSet:
        """Return images uint8 (N, C, H, W) with labels int64 (N,) as a set, with their hashes."""
        hashes = [image_hash(pixels.data) for part in _in_parts(images) for pixels in part]
        identity = content_hash(images, labels)
        return cls(images, labels, class_names, identity, torch.tensor(hashes))

    def __len__(self) -> int:
        return len(self.images)

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
        numbers = torch.arange(len(self))[indices]
        images: Images = Rows(self.images, numbers)
        size = math.prod(images.shape)
        # a small subset is copied, as reading it row by row would take longer
        if size <= LARGE:
            images = images[:]
        labels = self.labels[indices]
        hashes = self.image_hashes[indices]
        # to read the pixels of many would take too long; their hashes identify them too
        identified = hashes if size > HASHED else images
        return replace(
            self,
            images=images,
            labels=labels,
            content_hash=content_hash(identified, labels),
            image_hashes=hashes,
            files=tuple(self.files[number] for number in numbers.tolist()) if self.files else (),
        )


def content_hash(images: Images, labels: Tensor) -> str:
    """Return 16 hexadecimal digits of the SHA-256 over shape, pixels and labels, int64 (N,)."""
    digest = hashlib.sha256(repr(tuple(images.shape)).encode())
    for part in _in_parts(images):
        digest.update(part.data)
    digest.update(labels.numpy().data)
    return digest.hexdigest()[:16]


def _in_parts(images: Images) -> Iterator[np.ndarray]:
    """Yield 16 MB of images at a time, because memory-mapped ones need not fit in memory."""
    count = max(2**24 // math.prod(images.shape[1:]), 1)
    for start in range(0, len(images), count):
        yield images[start : start + count].contiguous().numpy()


@dataclass(frozen=True)
class Dataset:
    """The images that a run trains on and is tested on.

    Attributes:
        name: the data's name in every output.
        source: a name in `data.source`.
        warning: for the user, if the data is not what the settings say.
        tested_on: the kind of images in `test`, as text: "test images", or "held-out training
            images", to choose settings by.
        is_chosen: whether `test` was chosen here, among images of a single split.
        prepared: whether the images already are a model's input, by its `Preparation`.
        whole_content_hash: of both splits before `val_size` and `labels` removed images; "": they
            removed none.
        copies: how many of the test images are also training images, to the pixel.
    """

    name: str
    source: Source
    train: ImageSet
    test: ImageSet
    warning: str | None = None
    tested_on: str = "test images"
    is_chosen: bool = False
    prepared: bool = False
    whole_content_hash: str = ""
    copies: int = 0

    @property
    def has_classes(self) -> bool:
        """Whether there are at least two classes; a single one measures nothing."""
        return len(self.train.class_names) > 1

    @property
    def description(self) -> str:
        """Name, counts and image hash on one line."""
        counts = f"{len(self.train):,} training and {self.tested}"
        return f"{self.name}: {counts}, image hash {self.content_hash}"

    @property
    def tested(self) -> str:
        """The images in `test` with their number, as text."""
        return plural(len(self.test), self.tested_on.removesuffix("s"))

    @property
    def decisions(self) -> list[str]:
        """Lines for the user: the files used, and choices made automatically."""
        notes = [*self.train.notes, *self.test.notes]
        if self.copies:
            meaning = "are also training images: scores on them do not apply to new images"
            notes.append(f"{self.copies:,} of the {len(self.test):,} {self.tested_on} {meaning}")
        return notes

    @property
    def notes(self) -> list[str]:
        """`decisions`, and what was left out."""
        skipped = (*self.train.skipped, *self.test.skipped)
        return [*self.decisions, *(f"unreadable, left out: {path}" for path in skipped)]

    @property
    def content_hash(self) -> str:
        """Identifies exactly these training and test images."""
        return f"{self.train.content_hash}-{self.test.content_hash}"

    @property
    def facts(self) -> dict[str, Any]:
        """Name, source, counts and image hashes in plain values, as runs record them."""
        # two hashes: of these images, and of those before `val_size` and `labels`
        return {
            "name": self.name,
            "source": self.source,
            "warning": self.warning,
            "train_images": len(self.train),
            "test_images": len(self.test),
            "tested_on": self.tested_on,
            "skipped": len(self.train.skipped) + len(self.test.skipped),
            "test_images_in_train": self.copies,
            "notes": self.decisions,
            "content_hash": self.content_hash,
            "whole_content_hash": self.whole_content_hash or self.content_hash,
        }
