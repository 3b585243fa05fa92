"""Image files of a command line: which ones, which of them can be read, and their features."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.data.folder import list_files, readable
from vit.errors import ConfigError, DataError
from vit.look.predict import embed
from vit.mae import Model
from vit.progress import track

BATCH = 64
"""Images at a time: read, and shown to the model."""


@contextmanager
def naming_the_option() -> Iterator[None]:
    """Add to the message about an unreadable image the option that leaves such files out."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; --on-bad-image skip leaves out all such files") from error


def list_images(names: Sequence[str], on_bad_image: str = "stop") -> list[str]:
    """Return the image files of a command line, those of folders among them, each once.

    Args:
        names: files and folders.
        on_bad_image: "skip" leaves out files that cannot be read, with a warning of each.

    Raises:
        ConfigError: a name is neither a file nor a folder.
        DataError: a folder has no images, or no file can be read.
    """
    # A file may also lie in a folder that is named
    files: dict[str, str] = {}
    for name in names:
        if not os.path.exists(name):
            raise ConfigError(f"images: {name!r} is neither a file nor a folder")
        inside = [name]
        if os.path.isdir(name):
            inside = [str(path) for path in list_files(Path(name))]
        for file in inside:
            folder, base = os.path.split(file)
            files.setdefault(os.path.join(os.path.realpath(folder), base), file)

    chosen = list(files.values())
    if chosen and on_bad_image == "skip":
        chosen = list(compress(chosen, readable(chosen)))
    return chosen


def pooled_features(model: Model, count: int, read: Callable[[int, int], Any]) -> Tensor:
    """Return the features of images, (N, D); of each batch only the pooled ones stay in memory.

    Args:
        model: on the device to use.
        count: N.
        read: (start, stop) -> what `vit.look.predict.embed` takes.
    """
    batches = []
    for start in track(range(0, count, BATCH), "embedding", unit=" batches"):
        with naming_the_option():
            batches.append(embed(model, read(start, start + BATCH), BATCH).pooled)
    return torch.cat(batches)
