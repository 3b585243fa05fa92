"""Images to show a model, each with its name, split and class; `vit.look.datasets` finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vit.weights import Origin


@dataclass(frozen=True)
class Collection:
    """Images, of which files are read when they are needed.

    Attributes:
        images: files, or uint8 (B, 3, h, w) of any size: what `vit.embed` takes.
        files: how each is called: its path as it was given, or within a folder; of a data set its
            split and number, "test/00007".
        title: what they are, for a caption.
        splits: of each image "train" or "test"; "" if it has none.
        labels: of each image an index into `class_names`; -1 if it has none.
        class_names: of all of them, in order.
    """

    images: Sequence[str | Path] | Tensor
    files: list[str]
    title: str
    splits: list[str]
    labels: list[int]
    class_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    @property
    def names(self) -> list[str]:
        """What to write beside each image: its class, or else its file without the suffix."""
        names = []
        for file, label in zip(self.files, self.labels, strict=True):
            names.append(self.class_names[label] if label >= 0 else Path(file).stem)
        return names

    def path(self, number: int) -> str | Path | None:
        """Return an image's file; None for one of a data set."""
        if isinstance(self.images, Tensor):
            return None
        return self.images[number]

    def load(self, numbers: Sequence[int], origin: Origin) -> Tensor:
        """Return some images as a model takes them: uint8 (B, C, H, W).

        Args:
            origin: of the model.
        """
        if isinstance(self.images, Tensor):
            return origin.fit(self.images[list(numbers)])
        return origin.read_images([self.images[number] for number in numbers])


def of_files(paths: Sequence[str | Path]) -> Collection:
    """Return image files, which have neither splits nor classes."""
    count = len(paths)
    files = [str(path) for path in paths]
    return Collection(paths, files, "image files", [""] * count, [-1] * count)
