"""`vit embed`: the pooled features of images, in a file that NumPy reads."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vit.atomic import replacing
from vit.cli.common import choose_device, load_options, refuse_given, require_data
from vit.cli.outputs import output_file
from vit.cli.predict import naming_the_way_out
from vit.config import BUILT_IN, DataConfig, named_data
from vit.errors import one_line
from vit.progress import track

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 64
"""Images at a time: read, and shown to the model."""


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
    load = load_options(options)
    require_data(options)
    output_file(options.out, (".npz",), overwrite=options.overwrite)
    if options.data in BUILT_IN:
        reason = "only applies to a folder of images; leave it out"
        refuse_given(options, ("on_bad_image",), reason)
    else:
        refuse_given(options, ("root",), "only applies to CIFAR; leave it out")
    named_data(options.data)  # refuses what is neither a name nor a folder, before torch is loaded

    import numpy as np
    import torch

    from vit.checkpoints import load_trained
    from vit.look.predict import embed

    # The model, and the images' names
    model = load_trained(options.checkpoint, load)
    list_images = list_data_set if options.data in BUILT_IN else list_folder_images
    listed = list_images(options, model.origin.image_size)
    model = model.to(choose_device(options).device)

    # The features; of each batch only the pooled ones stay in memory
    count = len(listed.files)
    batches = []
    for start in track(range(0, count, BATCH), "embedding", unit=" batches"):
        with naming_the_way_out():
            batches.append(embed(model, listed.read(start, start + BATCH), BATCH).pooled)
    pooled = torch.cat(batches).numpy()  # (N, D)

    arrays = {
        "pooled": pooled,
        "files": listed.files,
        "splits": listed.splits,
        "labels": listed.labels,
        "class_names": np.asarray(
            listed.class_names, dtype=str
        ),  # an empty list alone would be of numbers
        "checkpoint": model.origin.source,
        "data": options.data,
        "grid": model.encoder.patch_embed.grid_size,
    }
    with replacing(options.out) as partial:
        np.savez(partial, **arrays)
    plural = "" if count == 1 else "s"
    print(
        f"features of {count:,} image{plural}: {count} x {pooled.shape[1]}; in {one_line(str(options.out))}"
    )
    return 0


def list_data_set(options: Namespace, image_size: tuple[int, int]) -> ListedImages:
    """Return a built-in data set, training images first."""
    import torch

    from vit.data.images import evenly_spaced
    from vit.data.sources import load_data

    # Scenes are drawn, so the first ones are enough; images of a file must all be numbered
    limit = options.limit if options.data == "scenes" else 0
    data = load_data(
        DataConfig(source=options.data, root=str(options.root), limit=limit), image_size
    )  # type: ignore[arg-type]

    # Names, splits and labels, training images first
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
    border = len(chosen["train"])

    def read(start: int, stop: int) -> Tensor:
        train = data.train.images[chosen["train"][start:stop]]
        test = data.test.images[chosen["test"][max(start - border, 0) : max(stop - border, 0)]]
        return torch.cat([train, test])

    return ListedImages(files, splits, labels.tolist(), data.train.class_names, read)


def list_folder_images(options: Namespace, image_size: tuple[int, int]) -> ListedImages:
    """Return the images of a folder."""
    from vit.data.folder import list_folder, readable
    from vit.data.images import evenly_spaced

    folder = Path(options.data).expanduser()
    parts = list_folder(folder)

    # The classes of all images, so that a limit does not renumber them
    class_names: set[str] = set()
    for files in parts.values():
        class_names |= {file.class_name for file in files}
    numbered = tuple(sorted(class_names - {""}))

    # The images to embed
    chosen = []
    for split, files in parts.items():
        chosen += [
            (split, files[number]) for number in evenly_spaced(len(files), options.limit).tolist()
        ]
    if options.on_bad_image == "skip":
        chosen = [*compress(chosen, readable([folder / file.name for _, file in chosen]))]

    names = [file.name for _, file in chosen]
    splits = [split for split, _ in chosen]
    number_of = {name: number for number, name in enumerate(numbered)}
    labels = [number_of.get(file.class_name, -1) for _, file in chosen]
    return ListedImages(
        names,
        splits,
        labels,
        numbered,
        lambda start, stop: [folder / name for name in names[start:stop]],
    )
