"""`vit embed`: the pooled features of images, in a file that NumPy reads."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vit.atomic import replacing
from vit.checkpoints import load_trained
from vit.cli.common import choose_device, load_options, refuse_given, require_data
from vit.cli.outputs import output_file
from vit.cli.predict import BATCH, naming_the_option
from vit.config import BUILT_IN, DataConfig, named_data
from vit.data.folder import list_folder, readable
from vit.data.images import evenly_spaced
from vit.data.sources import load_data
from vit.errors import one_line
from vit.look.predict import embed
from vit.mae import Model
from vit.progress import track


class ListedImages(NamedTuple):
    """Images known by name, and read batch by batch.

    Attributes:
        files: file names relative to the folder; for a data set, split and number.
        splits: per image, "train", "test", "val", or "" without a split.
        labels: per image, an index of `class_names`; -1 without a label.
        read: (start, stop) -> what `vit.look.predict.embed` takes.
    """

    files: list[str]
    splits: list[str]
    labels: list[int]
    class_names: tuple[str, ...]
    read: Callable[[int, int], Any]


def run(options: Namespace) -> int:
    """Embed all images, batch by batch, then write the file."""
    # Refuse what cannot be done before the model is loaded
    load = load_options(options)
    require_data(options)
    output_file(options.out, (".npz",), overwrite=options.overwrite)
    if options.data in BUILT_IN:
        reason = "only applies to a folder of images; leave it out"
        refuse_given(options, ("on_bad_image",), reason)
    else:
        refuse_given(options, ("root",), "only applies to CIFAR; leave it out")
    named_data(options.data)  # refuses what is neither a name nor a folder

    # The model, and the images' names
    model = load_trained(options.checkpoint, load)
    listed = list_images(options, model.origin.image_size)
    model = model.to(choose_device(options).device)

    # The features, and what they belong to
    pooled = pooled_features(model, listed)  # (N, D)
    arrays = {
        "pooled": pooled.numpy(),
        "files": listed.files,
        "splits": listed.splits,
        "labels": listed.labels,
        # Without its type, an empty list would become an array of numbers
        "class_names": np.asarray(listed.class_names, dtype=str),
        "checkpoint": model.origin.source,
        "data": options.data,
        "grid": model.encoder.patch_embed.grid_size,
    }
    with replacing(options.out) as partial:
        np.savez(partial, **arrays)

    count, width = pooled.shape
    images = "1 image" if count == 1 else f"{count:,} images"
    print(f"features of {images}: {count} x {width}; in {one_line(str(options.out))}")
    return 0


def pooled_features(model: Model, listed: ListedImages) -> Tensor:
    """Return the images' features, (N, D); of each batch only the pooled ones stay in memory."""
    batches = []
    for start in track(range(0, len(listed.files), BATCH), "embedding", unit=" batches"):
        with naming_the_option():
            batches.append(embed(model, listed.read(start, start + BATCH), BATCH).pooled)
    return torch.cat(batches)


def list_images(options: Namespace, image_size: tuple[int, int]) -> ListedImages:
    """Return the images of a built-in data set, or of a folder."""
    if options.data in BUILT_IN:
        return list_data_set(options, image_size)
    return list_folder_images(options)


def list_data_set(options: Namespace, image_size: tuple[int, int]) -> ListedImages:
    """Return a built-in data set, training images first."""
    # Scenes are drawn, so the first ones are enough; images of a file must all be numbered
    limit = options.limit if options.data == "scenes" else 0
    config = DataConfig(source=options.data, root=options.root, limit=limit)
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

    return ListedImages(files, splits, labels.tolist(), data.train.class_names, read)


def list_folder_images(options: Namespace) -> ListedImages:
    """Return the images of a folder."""
    folder = Path(options.data).expanduser()
    files_by_split = list_folder(folder)

    # The classes of all images, so that a limit does not renumber them
    present: set[str] = set()
    for files in files_by_split.values():
        present |= {file.class_name for file in files}
    class_names = tuple(sorted(present - {""}))
    numbers = {name: number for number, name in enumerate(class_names)}

    # The images to embed
    chosen = []
    for split, files in files_by_split.items():
        for index in evenly_spaced(len(files), options.limit).tolist():
            chosen.append((split, files[index]))
    if options.on_bad_image == "skip":
        chosen = list(compress(chosen, readable([folder / file.name for _, file in chosen])))

    # File by file
    names = [file.name for _, file in chosen]
    splits = [split for split, _ in chosen]
    labels = [numbers.get(file.class_name, -1) for _, file in chosen]

    def read(start: int, stop: int) -> list[Path]:
        return [folder / name for name in names[start:stop]]

    return ListedImages(names, splits, labels, class_names, read)
