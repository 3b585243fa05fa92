"""Write images as a folder of class folders, which `data.source folder` reads back."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from PIL import Image

from vit.atomic import PARTIAL, sync_folder
from vit.data import Dataset
from vit.data.images import ImageSet
from vit.errors import DataError, one_line
from vit.progress import track


def export_images(data: Dataset, folder: Path, kind: str = "jpeg", quality: int = 75) -> int:
    """Write `folder`/train/<class>/0000.jpg ... and test/<class>/..., numbered within each class, in the order of the data.

    Images without labels go directly into train/ and test/. The folder appears whole or not at all: it is written under
    a temporary name next to it, and removed if anything fails.

    Args:
        data: uint8 images (N, 3, H, W).
        folder: must not exist.
        kind: "jpeg", with colours at half the resolution (4:2:0), or "png", which is lossless.
        quality: JPEG's, 1 to 100, on Pillow's scale.

    Returns:
        The number of files.

    Raises:
        DataError: classes cannot be folders, or would not be read back from them.
        OSError: `folder` exists, or cannot be written.
    """
    refuse_classes(data)
    suffix, how = (".png", {}) if kind == "png" else (".jpg", {"quality": quality, "subsampling": "4:2:0"})
    if os.path.lexists(folder):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    partial = folder.with_name(f"{PARTIAL}{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        count = sum(_write_split(split, partial / name, suffix, how) for name, split in _splits(data).items())
        if hasattr(os, "sync"):  # once for all files: one at a time would take minutes
            os.sync()
        partial.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:  # name the folder that was asked for, not the temporary one
        raise OSError(error.errno, error.strerror or str(error), str(folder)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return count


def refuse_classes(data: Dataset) -> None:
    """Refuse classes that would not survive a folder.

    Raises:
        DataError: no folder that is read can have a class's name (hidden ones are not), only some images have a class, or a
            class has no training images.
    """
    present = {name: set(split.label_names) for name, split in _splits(data).items()}
    for name in sorted(present["train"] | present["test"]):
        if name.startswith(".") or len(os.fsencode(name)) > 255 or any(part in name for part in ("/", "\\", "\0")):
            raise DataError(f"class {one_line(name)[:40]!r}: its name cannot be a folder name")
    if "" in present["train"] | present["test"] and present["train"] | present["test"] != {""}:
        raise DataError(f"{data.name}: some images have no class; a folder needs classes for all images or for none")
    if missing := sorted(present["test"] - present["train"]):
        raise DataError(f"class {one_line(missing[0])!r}: has test images but no training images")


def _splits(data: Dataset) -> dict[str, ImageSet]:
    return {"train": data.train, "test": data.test}


def _write_split(split: ImageSet, folder: Path, suffix: str, how: dict[str, Any]) -> int:
    """Write the images of a split, and return how many there are."""
    names = split.label_names
    for name in sorted(set(names)):
        (folder / name).mkdir(parents=True)  # fails for Cat and cat on a disk that ignores case
    numbers: Counter[str] = Counter()
    digits = max(4, len(str(max(Counter(names).values()) - 1)))
    for row, name in enumerate(track(names, f"writing {folder.name}", unit=" images")):
        picture = Image.fromarray(split.images[row].permute(1, 2, 0).numpy())
        picture.save(folder / name / f"{numbers[name]:0{digits}d}{suffix}", **how)
        numbers[name] += 1
    return len(names)
