"""Images from any source in one shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vit.config import Source
from vit.data.images import ImageSet

__all__ = ["Dataset", "ImageSet"]


@dataclass(frozen=True)
class Dataset:
    """The images that a run trains on and is tested on.

    Attributes:
        name: the data's name in every output.
        source: a name in `data.source`.
        warning: for the user, if the data is not what the settings say.
        held_out: whether `test` is a part of the training images, to choose settings by.
        prepared: whether the images already are a model's input, by its `Preparation`.
        whole_content_hash: of both splits before `val_size` and `labels` took some away; "" if
            they took none.
    """

    name: str
    source: Source
    train: ImageSet
    test: ImageSet
    warning: str | None = None
    held_out: bool = False
    prepared: bool = False
    whole_content_hash: str = ""

    @property
    def description(self) -> str:
        """Name, counts and content hash on one line."""
        counts = f"{len(self.train):,} training and {len(self.test):,} {self.tested_on}"
        return f"{self.name}: {counts}, content hash {self.content_hash}"

    @property
    def tested_on(self) -> str:
        """The kind of images in `test`, in words."""
        if self.held_out:
            return "held-out training images"
        return "test images"

    @property
    def notes(self) -> list[str]:
        """Lines for the user: which files are used, what was decided, what was left out."""
        notes = [*self.train.notes, *self.test.notes]
        for path in (*self.train.skipped, *self.test.skipped):
            notes.append(f"unreadable, left out: {path}")
        # both splits may have the same note
        return list(dict.fromkeys(notes))

    @property
    def content_hash(self) -> str:
        """Identifies exactly these training and test images."""
        return f"{self.train.content_hash}-{self.test.content_hash}"

    @property
    def facts(self) -> dict[str, Any]:
        """Name, source, counts and content hashes in plain values, as runs record them."""
        # two hashes: of these images, and of those before some were held out or lost their labels
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
