"""The images that a model is shown: from a command line, a folder or a data set."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vit.config import DataConfig, OnBadImage, changed, user_path
from vit.data import Dataset, ImageSet
from vit.data.folder import File, is_image, list_folder, walk
from vit.data.images import spread
from vit.data.sources import load_data
from vit.errors import ConfigError, DataError, one_line, plural
from vit.inputs import decode
from vit.look.subject import Collection
from vit.progress import track

logger = logging.getLogger(__name__)


def of_data(
    config: DataConfig, image_size: tuple[int, int], count: int, both_splits: bool
) -> Collection:
    """Return images of a folder or of a built-in data set.

    Args:
        config: which data: source, root and on_bad_image are read.
        image_size: (H, W) of the model's input, in which a data set is decoded.
        count: at most so many of each split, spread over it; 0: all.
        both_splits: training images, then test images, as in a run on them; else only the test
            images, or all images of a folder without any.
    """
    if config.source != "folder":
        return _of_data_set(config, image_size, count, both_splits)
    folder = user_path(config.root)
    files_of, unused = list_folder(folder)
    _warn_of_unused(config.root, unused)
    if not both_splits:
        # the last split is the test split, or the only one
        files_of = dict([files_of.popitem()])
    elif len(files_of) == 1:
        files_of = _as_split(config, *files_of.values())

    # the classes of all images, so that a count does not renumber them
    present = {class_name for files in files_of.values() for class_name, _ in files}
    class_names = tuple(sorted(present - {""}))
    number_of = {name: number for number, name in enumerate(class_names)}

    # only the chosen images are read
    names = []
    splits = []
    labels = []
    for split, files in files_of.items():
        for number in _chosen([folder / name for _, name in files], count, config.on_bad_image):
            class_name, name = files[number]
            names.append(name)
            splits.append(split)
            labels.append(number_of.get(class_name, -1))
    kind = "images"
    if splits[0] in ("test", "val"):
        kind = "test images"
    title = f"{folder.resolve().name}, {kind}"
    paths = [folder / name for name in names]
    return Collection(paths, names, title, splits, labels, class_names)


def _of_data_set(
    config: DataConfig, image_size: tuple[int, int], count: int, both_splits: bool
) -> Collection:
    """Return images of a built-in data set; test images alone are spread over their classes."""
    # scenes are drawn, so a part is enough; images in a file must all be numbered
    if config.source == "scenes":
        config = changed(config, {"limit": count if both_splits else 10 * count})
    data = load_data(config, image_size)
    if not both_splits:
        return of_sets(data, test=data.test.showcase(count))
    train, test = (spread(len(part), count, config.source) for part in (data.train, data.test))
    return of_sets(data, train=train, test=test)


def of_sets(data: Dataset, **chosen: Tensor) -> Collection:
    """Return some images of a data set, by their numbers in each split: train=, test=."""
    images = []
    labels: list[int] = []
    files: list[str] = []
    splits: list[str] = []
    for split, numbers in chosen.items():
        part: ImageSet = getattr(data, split)
        images.append(part.images[numbers])
        labels += part.labels[numbers].tolist()
        files += [f"{split}/{number:05d}" for number in numbers.tolist()]
        splits += [split] * len(numbers)
    title = f"{data.name}, test images"
    return Collection(torch.cat(images), files, title, splits, labels, data.train.class_names)


def _as_split(config: DataConfig, files: list[File]) -> dict[str, list[File]]:
    """Return the files of a folder without a test folder by split, as a run on it splits them.

    A file that cannot be read is a training file, and so is each of a folder that no run can split.
    """
    config = changed(config, {"on_bad_image": "skip"})
    try:
        # the split depends on the whole images; a small size keeps the cache small
        held_out = set(load_data(config, (1, 1)).test.files)
    except DataError:
        return {"train": files}
    train = [file for file in files if file[1] not in held_out]
    return {"train": train, "test": [file for file in files if file[1] in held_out]}


def of_images(names: Sequence[str], on_bad_image: OnBadImage = "stop") -> Collection:
    """Return image files, those of folders among them, each once.

    Args:
        names: files and folders.
        on_bad_image: "skip" leaves out files that cannot be read, with a warning for each.
    """
    # a file may also lie in a folder that is named
    files: dict[Path, str] = {}
    for name in names:
        if not os.path.exists(name):
            raise ConfigError(f"images: {name!r} is neither a file nor a folder")
        inside = [name]
        if os.path.isdir(name):
            found = sorted(walk(Path(name)))
            inside = [str(path) for path in found if is_image(path)]
            _warn_of_unused(name, [path.name for path in found if not is_image(path)])
        if not inside:
            raise DataError(f"{name}: no images")
        for file in inside:
            path = Path(file)
            files.setdefault(path.parent.resolve() / path.name, file)
    paths = list(files.values())
    chosen = [paths[number] for number in _chosen(paths, 0, on_bad_image)]
    # they have neither splits nor classes
    count = len(chosen)
    return Collection(chosen, chosen, "image files", [""] * count, [-1] * count)


def _warn_of_unused(folder: str, unused: Sequence[str]) -> None:
    if unused:
        count = plural(len(unused), "file")
        logger.warning("%s: %s not used, e.g. %s", one_line(folder), count, one_line(unused[0]))


def _chosen(paths: Sequence[str | Path], count: int, on_bad_image: OnBadImage) -> list[int]:
    """Return the numbers of up to `count` files, spread over all, 0: of all; "skip": to be read."""
    numbers: list[int] = spread(len(paths), count).tolist()
    if on_bad_image == "stop":
        return numbers
    readable = []
    for number in track(numbers, "checking", unit=" images"):
        # a small size, because the pixels are not used
        content = decode(paths[number], (8, 8), hashed=False)
        if isinstance(content, tuple):
            readable.append(number)
        else:
            problem = one_line(f"{paths[number]}: not a readable image ({content})")
            logger.warning("%s, left out", problem)
    if not readable:
        raise DataError("none of the images can be read")
    return readable
