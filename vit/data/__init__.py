"""Images from any source in one shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vit.config import Source
from vit.data.images import ImageSet

__all__ = ["Dataset", "ImageSet"]


@dataclass(frozen=True)
class Dataset:
    """The images that a run trains on and is tested on."""

    name: str  # its name in every output
    source: Source
    train: ImageSet
    test: ImageSet
    warning: str | None = None  # for the user, if the data is not what was asked for
    held_out: bool = (
        False  # whether `test` is a part of the training images, held out to choose settings by
    )
    prepared: bool = False  # whether the images already are a model's input, by its `Preparation`
    whole_content_hash: str = (
        ""  # of both splits before `val_size` and `labels` took some away; "" if none
    )

    @property
    def description(self) -> str:
        """Name, counts and content hash on one line."""
        counts = f"{len(self.train):,} training and {len(self.test):,} {self.tested_on}"
        return f"{self.name}: {counts}, content hash {self.content_hash}"

    @property
    def tested_on(self) -> str:
        """The kind of images in `test`, in words."""
        return "held-out training images" if self.held_out else "test images"

    @property
    def notes(self) -> list[str]:
        """Lines that the user should see: what was found, what was done automatically, what was left out."""
        skipped = (
            f"unreadable, left out: {path}"
            for part in (self.train, self.test)
            for path in part.skipped
        )
        return list(dict.fromkeys([*self.train.notes, *self.test.notes, *skipped]))

    @property
    def content_hash(self) -> str:
        """Identifies exactly these training and test images."""
        return f"{self.train.content_hash}-{self.test.content_hash}"

    @property
    def facts(self) -> dict[str, Any]:
        """Name, source, counts and content hashes in plain values."""
        return {
            "name": self.name,
            "source": self.source,
            "warning": self.warning,
            "train_images": len(self.train),
            "test_images": len(self.test),
            "tested_on": self.tested_on,
            "skipped": len(self.train.skipped) + len(self.test.skipped),
            "content_hash": self.content_hash,
            "whole_content_hash": self.whole_content_hash or self.content_hash,
        }
