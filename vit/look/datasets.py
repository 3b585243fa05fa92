"""A data set's images, or a folder's, to show a model."""

from __future__ import annotations

from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Literal

from vit.config import BUILT_IN, DataConfig, named_data
from vit.data.folder import list_folder, readable
from vit.data.images import evenly_spaced
from vit.data.sources import load_data
from vit.errors import AttentionError
from vit.look.shown import ModelWithImages, with_files
from vit.mae import Model


def with_data(
    model: Model, data: str, root: str, count: int, on_bad_image: Literal["stop", "skip"] = "stop"
) -> ModelWithImages:
    """Show a model up to `count` test images, spread evenly over their classes; of a folder without any, of all its images.

    Args:
        model: as `load_model` returns it.
        data: "cifar10", "cifar100", "scenes", or a folder of images.
        root: folder that holds CIFAR's archive, or gets it.
        count: number of images.
        on_bad_image: at an unreadable one, stop, or show the others.

    Raises:
        DataError: the data is missing or cannot be read.
    """
    origin, folder = model.origin, Path(data).expanduser()

    # A whole data set; of Scenes, which are drawn on the fly, a part is enough
    if data in BUILT_IN:
        limit = 10 * count if data == "scenes" else 0
        config = DataConfig(**named_data(data, root), limit=limit, on_bad_image=on_bad_image)
        found = load_data(config, origin.image_size, prepared=origin.prepared)
        test, chosen = found.test, found.test.showcase(count)
        names, title = [test.label_names[i] for i in chosen.tolist()], f"{found.name}, test images"
        return ModelWithImages(
            model,
            names,
            title,
            lambda numbers: origin.fit(test.images[chosen[list(numbers)]], whole=found.prepared),
        )

    # A folder, of which only the chosen images are read
    if not folder.is_dir():
        raise AttentionError(f"{data!r} is neither {', '.join(BUILT_IN)} nor a folder of images")
    *_, (split, files) = list_folder(folder).items()
    files = [files[i] for i in evenly_spaced(len(files), min(count, len(files))).tolist()]
    if on_bad_image == "skip":
        files = [*compress(files, readable([folder / file.name for file in files]))]
    names = [file.class_name or Path(file.name).stem for file in files]
    title = f"{folder.resolve().name}, {'test images' if split in ('test', 'val') else 'images'}"
    return replace(
        with_files(model, [folder / file.name for file in files]), names=names, data=title
    )
