"""The images of a command line, of a folder or of a data set, to show a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from vit.config import BUILT_IN, DataConfig
from vit.data.folder import choose_readable, list_files, list_folder, list_splits
from vit.data.images import evenly_spaced
from vit.data.sources import load_data
from vit.errors import ConfigError
from vit.look.collection import Collection, of_files

OnBadImage = Literal["stop", "skip"]


def of_data(
    data: str,
    image_size: tuple[int, int],
    root: str,
    count: int = 0,
    on_bad_image: OnBadImage = "stop",
    both_splits: bool = False,
) -> Collection:
    """Return images of a folder or of a built-in data set.

    Args:
        data: "cifar10", "cifar100", "scenes", or a folder of images.
        image_size: (H, W) of the model's input, on which a folder's splits may depend.
        root: folder that holds CIFAR's archive, or gets it.
        count: at most so many of each split, evenly spaced; 0: all.
        on_bad_image: at an unreadable file, stop, or leave it out.
        both_splits: training images, then test images, as in a run on them; else only those to be
            looked at: test images, or of a folder without any, all.

    Raises:
        ConfigError: `data` is neither a name nor a folder.
        DataError: the data is missing or cannot be read.
    """
    if data in BUILT_IN:
        return _of_data_set(data, image_size, root, count, both_splits)
    return _of_folder(Path(data).expanduser(), image_size, count, on_bad_image, both_splits)


def _of_data_set(
    name: str, image_size: tuple[int, int], root: str, count: int, both_splits: bool
) -> Collection:
    """Return images of a built-in data set; test images alone are spread over their classes."""
    # scenes are drawn, so that a part is enough; images of a file must all be numbered
    limit = 0
    if name == "scenes":
        limit = count if both_splits else 10 * count
    source: Any = name
    data = load_data(DataConfig(source=source, root=root, limit=limit), image_size)
    if both_splits:
        chosen = {
            "train": evenly_spaced(len(data.train), count),
            "test": evenly_spaced(len(data.test), count),
        }
    else:
        chosen = {"test": data.test.showcase(count)}

    images = []
    labels: list[int] = []
    files: list[str] = []
    splits: list[str] = []
    for split, numbers in chosen.items():
        part = data.train if split == "train" else data.test
        images.append(part.images[numbers])
        labels += part.labels[numbers].tolist()
        files += [f"{split}/{number:05d}" for number in numbers.tolist()]
        splits += [split] * len(numbers)
    title = f"{data.name}, test images"
    return Collection(torch.cat(images), files, title, splits, labels, data.train.class_names)


def _of_folder(
    folder: Path,
    image_size: tuple[int, int],
    count: int,
    on_bad_image: OnBadImage,
    both_splits: bool,
) -> Collection:
    """Return images of a folder, of which only the chosen ones are read."""
    if not folder.is_dir():
        raise ConfigError(f"{str(folder)!r} is neither a data set's name nor a folder of images")
    kind = "images"
    if both_splits:
        files_of = list_splits(folder, image_size)
    else:
        # the last split is the test split, or the only one
        split, files = list(list_folder(folder).items())[-1]
        files_of = {split: files}
        if split in ("test", "val"):
            kind = "test images"

    # the classes of all images, so that a count does not renumber them
    present = {file.class_name for files in files_of.values() for file in files}
    class_names = tuple(sorted(present - {""}))
    number_of = {name: number for number, name in enumerate(class_names)}

    chosen = []
    splits = []
    for split, files in files_of.items():
        if on_bad_image == "skip":
            numbers = choose_readable([folder / file.name for file in files], count)
        else:
            numbers = evenly_spaced(len(files), count).tolist()
        chosen += [files[number] for number in numbers]
        splits += [split] * len(numbers)
    return Collection(
        images=[folder / file.name for file in chosen],
        files=[file.name for file in chosen],
        title=f"{folder.resolve().name}, {kind}",
        splits=splits,
        labels=[number_of.get(file.class_name, -1) for file in chosen],
        class_names=class_names,
    )


def of_images(names: Sequence[str], on_bad_image: OnBadImage = "stop") -> Collection:
    """Return image files, those of folders among them, each once.

    Args:
        names: files and folders.
        on_bad_image: "skip" leaves out files that cannot be read, with a warning of each.

    Raises:
        ConfigError: a name is neither a file nor a folder.
        DataError: a folder has no images, or no file can be read.
    """
    # a file may also lie in a folder that is named
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
    if on_bad_image == "skip":
        chosen = [chosen[number] for number in choose_readable(chosen)]
    return of_files(chosen)
