"""`vit embed`: the pooled features of images, in a file that NumPy reads."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vit.atomic import make_folder, replacing
from vit.checkpoints import load_model
from vit.cli.images import list_images, pooled_features
from vit.cli.options import choose_device, images_or_data, load_options
from vit.cli.outputs import output_file
from vit.cli.parsers import named_data
from vit.config import BUILT_IN, DataConfig
from vit.data.folder import choose_readable, list_splits
from vit.data.images import evenly_spaced
from vit.data.sources import load_data
from vit.errors import ConfigError, one_line, plural

# Where each image stands: its file or number, its split ("" of a single file), its class (-1
# without one), and the classes' names; and (start, stop) -> what `vit.look.predict.embed` takes
Listed = tuple[dict[str, Any], Callable[[int, int], Any]]


def run(options: Namespace) -> int:
    """Embed all images, batch by batch, then write the file."""
    # Refuse what cannot be done before the model is loaded
    load = load_options(options)
    output_file(options.out, (".npz",), overwrite=options.overwrite)
    files, data = images_or_data(options)
    require_images(files, data)
    files = list_images(files, options.on_bad_image)

    # The model, and the images' names
    model = load_model(options.checkpoint, strict=True, **load)
    if data is None:
        listed, read = list_image_files(files)
    elif data in BUILT_IN:
        listed, read = list_data_set(options, data, model.origin.image_size)
    else:
        listed, read = list_folder_images(options, data, model.origin.image_size)
    model = model.to(choose_device(options).device)

    # The features, and what they belong to
    pooled = pooled_features(model, len(listed["files"]), read)  # (N, D)
    arrays = {
        "pooled": pooled.numpy(),
        **listed,
        "checkpoint": model.origin.source,
        "data": data or "image files",
        "grid": model.encoder.patch_embed.grid_size,
    }
    make_folder(options.out.parent)
    with replacing(options.out) as partial:
        np.savez(partial, **arrays)

    count, width = pooled.shape
    print(
        f"features of {plural(count, 'image')}: {count} x {width}; in {one_line(str(options.out))}"
    )
    return 0


def require_images(files: Sequence[str], data: str | None) -> None:
    """Refuse data that is neither a name nor a folder, and a folder among files."""
    if data is not None:
        named_data(data)  # refuses what is neither a name nor a folder

    # A folder among files would lose its splits and classes
    for file in files:
        if os.path.isdir(file):
            raise ConfigError(f"{file}: a folder; name it alone, or image files alone")


def listing(
    files: Sequence[str], splits: list[str], labels: list[int], class_names: tuple[str, ...]
) -> dict[str, Any]:
    """Return where images stand, by the names of the file's arrays."""
    # Without its type, an empty list would become an array of numbers
    names = np.asarray(class_names, dtype=str)
    return {"files": files, "splits": splits, "labels": labels, "class_names": names}


def list_image_files(files: Sequence[str]) -> Listed:
    """Return image files, which have neither splits nor classes."""

    def read(start: int, stop: int) -> Sequence[str]:
        return files[start:stop]

    return listing(files, [""] * len(files), [-1] * len(files), ()), read


def list_data_set(options: Namespace, name: str, image_size: tuple[int, int]) -> Listed:
    """Return a built-in data set, training images first."""
    # Scenes are drawn, so the first ones are enough; images of a file must all be numbered
    limit = 0
    if name == "scenes":
        limit = options.limit
    config = DataConfig(**named_data(name, str(options.root)), limit=limit)
    data = load_data(config, image_size)

    # Names, splits and labels
    chosen = {
        "train": evenly_spaced(len(data.train), options.limit),
        "test": evenly_spaced(len(data.test), options.limit),
    }
    files: list[str] = []
    splits: list[str] = []
    for split, numbers in chosen.items():
        files += [f"{split}/{number:05d}" for number in numbers.tolist()]
        splits += [split] * len(numbers)
    labels = torch.cat([data.train.labels[chosen["train"]], data.test.labels[chosen["test"]]])
    first_test = len(chosen["train"])

    # A batch may hold the last training images and the first test images
    def read(start: int, stop: int) -> Tensor:
        test_start = max(start - first_test, 0)
        test_stop = max(stop - first_test, 0)
        train = data.train.images[chosen["train"][start:stop]]
        test = data.test.images[chosen["test"][test_start:test_stop]]
        return torch.cat([train, test])

    return listing(files, splits, labels.tolist(), data.train.class_names), read


def list_folder_images(options: Namespace, data: str, image_size: tuple[int, int]) -> Listed:
    """Return the images of a folder, with the splits that a run on it would use."""
    folder = Path(data).expanduser()
    files_by_split = list_splits(folder, image_size)

    # The classes of all images, so that a limit does not renumber them
    present: set[str] = set()
    for files in files_by_split.values():
        present |= {file.class_name for file in files}
    class_names = tuple(sorted(present - {""}))
    numbers = {name: number for number, name in enumerate(class_names)}

    # The images to embed
    chosen = []
    for split, files in files_by_split.items():
        if options.on_bad_image == "skip":
            numbers_of_split = choose_readable(
                [folder / file.name for file in files], options.limit
            )
        else:
            numbers_of_split = evenly_spaced(len(files), options.limit).tolist()
        chosen += [(split, files[number]) for number in numbers_of_split]

    # File by file
    names = [file.name for _, file in chosen]
    splits = [split for split, _ in chosen]
    labels = [numbers.get(file.class_name, -1) for _, file in chosen]

    def read(start: int, stop: int) -> list[Path]:
        return [folder / name for name in names[start:stop]]

    return listing(names, splits, labels, class_names), read
