"""The images of a data set or a folder, to show a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from vit.config import BUILT_IN, DataConfig
from vit.data.folder import choose_readable, list_folder
from vit.data.images import evenly_spaced
from vit.data.sources import load_data
from vit.errors import AttentionError
from vit.look.subject import ModelWithImages, with_files
from vit.mae import Model

OnBadImage = Literal["stop", "skip"]


def with_data(
    model: Model, data: str, root: str, count: int, on_bad_image: OnBadImage = "stop"
) -> ModelWithImages:
    """Return a model with up to `count` test images, evenly spaced over their classes.

    Of a folder without test images, all its images are candidates.

    Args:
        model: as `load_model` returns it.
        data: "cifar10", "cifar100", "scenes", or a folder of images.
        root: folder that holds CIFAR's archive, or gets it.
        count: number of images.
        on_bad_image: at an unreadable one, stop, or show the others.

    Raises:
        AttentionError: `data` is neither a name nor a folder.
        DataError: the data is missing or cannot be read.
    """
    if data in BUILT_IN:
        return _with_data_set(model, data, root, count, on_bad_image)
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise AttentionError(f"{data!r} is neither {', '.join(BUILT_IN)} nor a folder of images")
    return _with_folder(model, folder, count, on_bad_image)


def with_readable_files(model: Model, paths: Sequence[str]) -> ModelWithImages:
    """Return a model with the image files that can be read; a warning names each of the others."""
    return with_files(model, [paths[number] for number in choose_readable(paths)])


def _with_data_set(
    model: Model, name: str, root: str, count: int, on_bad_image: OnBadImage
) -> ModelWithImages:
    """Return a model with test images of a whole data set, which stays in memory."""
    # Scenes are drawn on the fly, so a part is enough
    limit = 0
    if name == "scenes":
        limit = 10 * count
    origin = model.origin
    source: Any = name
    config = DataConfig(source=source, root=root, limit=limit, on_bad_image=on_bad_image)
    dataset = load_data(config, origin.image_size, prepared=origin.prepared)

    # `showcase` takes them evenly from the classes
    test = dataset.test
    chosen = test.showcase(count)

    def load(numbers: Sequence[int]) -> Tensor:
        return origin.fit(test.images[chosen[list(numbers)]], whole=dataset.prepared)

    names = test.subset(chosen).label_names
    return ModelWithImages(model, names, f"{dataset.name}, test images", load)


def _with_folder(
    model: Model, folder: Path, count: int, on_bad_image: OnBadImage
) -> ModelWithImages:
    """Return a model with images of a folder, of which only the chosen ones are read."""
    # The last split is the test split, or the only one
    split, files = list(list_folder(folder).items())[-1]

    # Unreadable files are left out before the model is shown any
    if on_bad_image == "skip":
        chosen = choose_readable([folder / file.name for file in files], count)
    else:
        chosen = evenly_spaced(len(files), count).tolist()
    files = [files[number] for number in chosen]
    paths = [folder / file.name for file in files]

    # Images of a folder without classes are called after their files
    names = [file.class_name or Path(file.name).stem for file in files]
    kind = "test images" if split in ("test", "val") else "images"
    title = f"{folder.resolve().name}, {kind}"
    return replace(with_files(model, paths), names=names, data=title)
