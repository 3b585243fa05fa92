"""Any map-style data set (torch's, torchvision's or Hugging Face's) as pictures, decoded once: see `vit.data.cache`."""

from __future__ import annotations

import hashlib
import operator
import os
import sys
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, uint8
from torch.utils.data import DataLoader

from vit import inputs
from vit.config import ConfigError, DataConfig
from vit.data.cache import CACHE_LAYOUT, PictureTypeError, Split, load_splits
from vit.data.images import ImageSet, hold_out
from vit.errors import DataError, one_line
from vit.inputs import OWN, Preparation
from vit.openmp import usable_cores

FEW = 2000
"""Fewer images than this are decoded without extra processes."""

HELD_OUT = ("test", "validation", "val")
"""Splits of a Hugging Face data set to test on: the first one with labels."""


def load_datasets(
    train: Any,
    test: Any,
    config: DataConfig,
    image_size: tuple[int, int],
    name: str = "",
    cached: bool = False,
    prepared: Preparation = OWN,
) -> tuple[ImageSet, ImageSet]:
    """Return map-style data sets as images, decoded in order into a memory-mapped file.

    An item is a picture, a sequence that begins with a picture and its label, or a mapping with "image" and "label"; in
    a Hugging Face data set, the first columns of images and classes count. A picture is a PIL image or a uint8 tensor
    (C, H, W) with 1 or 3 channels; a label is an integer, or None or a negative number for none. `inputs.fit_picture` says
    how the pixels are made.

    Args:
        train, test: with `__len__` and `__getitem__`; without `test`, some images of `train` are held out (`hold_out`).
        config: the data section, for `cache` and `on_bad_image`.
        image_size: (H, W) of the model's input.
        name: the data's name in messages; "": the class of `train`.
        cached: whether the file is kept for the next run; the data must have a fingerprint.
        prepared: as a model expects its images.

    Returns:
        train, test: as from `load_splits`. Class names are the data's (`classes`, or a ClassLabel's), else "0", "1", ...

    Raises:
        DataError: the data is not map-style, has fewer than two images or other items, or lacks some of the labels.
    """
    for part in (train, *([] if test is None else [test])):
        if not (hasattr(part, "__getitem__") and hasattr(part, "__len__")):
            kind = type(part).__name__
            raise DataError(
                f"{kind}: not a map-style data set: it needs __len__ and __getitem__; a list of its items has"
            )
        if isinstance(part, Mapping) and "train" in part:
            kind = type(part).__name__
            raise DataError(f'{kind}: several data sets in one ({", ".join(part)}); hand over its ["train"]')
    notes: list[str] = []
    rows: list[Sequence[int]] = [range(len(train)), range(len(train) if test is None else len(test))]
    if min(map(len, rows)) < (2 if test is None else 1):
        raise DataError(
            f"{name or type(train).__name__}: too few images; it needs at least one to train on and one to test on"
        )
    if test is None:
        *rows, aside = hold_out(len(train), at_random=True)
        notes.append(f"no test set: {aside}")
    splits = [
        DatasetSplit(
            name or type(train).__name__, which, class_names_of(train), image_size, None, prepared, part,
            columns_of(part), some, cached,
        )
        for which, part, some in zip(("train", "test"), (train, train if test is None else test), rows, strict=True)
    ]  # fmt: skip
    if hasattr(train, "features"):
        picture, label = splits[0].columns
        labels = f"labels of {label}" if label else "without labels"
        if text := [
            name for name in ("label", "labels") if "string" in str(getattr(train.features.get(name), "dtype", ""))
        ]:
            labels += "" if label else f": {text[0]} holds text; class_encode_column({text[0]!r}) makes classes of it"
        notes.append(f"images of the column {picture}, {labels}")
    return load_splits(splits[0], splits[1], config.on_bad_image, Path(os.path.expanduser(config.cache)), notes)


def load_hf(config: DataConfig, image_size: tuple[int, int], prepared: Preparation = OWN) -> tuple[ImageSet, ImageSet]:
    """Return the images of a Hugging Face data set: `config.root` is a folder from `save_to_disk`, or a name on the hub.

    Raises:
        ConfigError: the library is not installed.
        DataError: there is no such data set, it cannot be downloaded, or as in `load_datasets`.
    """
    try:
        import datasets
    except ImportError as error:
        ways = "pip install 'datasets>=4'"
        raise ConfigError(f"data.source: hf needs the datasets library ({error}): {ways}") from error
    root = os.path.expanduser(config.root)
    try:
        if os.path.isdir(root):
            found = datasets.load_from_disk(root)
        else:
            found = datasets.load_dataset(
                root, download_config=datasets.DownloadConfig(local_files_only=not config.download)
            )
    except Exception as error:  # network, hub, library or a damaged file may raise anything
        reason = one_line(f"{type(error).__name__}: {error}").rstrip(".")
        ways = (
            "set data.root to a data set's name on the Hugging Face hub, or to a folder that save_to_disk has written"
        )
        raise DataError(f"{root}: cannot be loaded ({reason}); {ways}") from error
    if not isinstance(found, Mapping):
        return load_datasets(found, None, config, image_size, root, cached=True, prepared=prepared)
    others = [found[name] for name in HELD_OUT if name in found]
    if "train" not in found and len(found) > 1:
        raise DataError(f"{root}: has no split train, only {', '.join(map(str, found))}; rename one")
    train = found["train"] if "train" in found else next(iter(found.values()))
    others = [part for part in others if part is not train]
    labelled = [part for part in (train, *others) if max(_labels(part, columns_of(part)[1]), default=-1) >= 0]
    notes: tuple[str, ...] = ()
    if others and labelled == [train]:  # to measure, labels are needed on both sides
        others, notes = [], ("the test images have no labels, and are not used",)
    test = next((part for part in (*labelled, *others) if part is not train), None)
    kept, held_out = load_datasets(train, test, config, image_size, root, cached=True, prepared=prepared)
    return replace(kept, notes=(*notes, *kept.notes)), held_out


def columns_of(dataset: Any) -> tuple[str, str]:
    """Return the keys of picture and label in the mappings of a data set, or of the one it is a subset of; "" for no label.

    Raises:
        DataError: a Hugging Face data set has no column of images.
    """
    features = getattr(dataset, "features", None)
    if not isinstance(features, Mapping):
        return columns_of(dataset.dataset) if hasattr(dataset, "dataset") else ("image", "label")  # torch's Subset
    kinds = {name: type(kind).__name__ for name, kind in features.items()}
    pictures = [name for name, kind in kinds.items() if kind == "Image"]
    if not pictures:
        raise DataError(f"no image column among {', '.join(kinds)}; cast_column(NAME, datasets.Image()) makes one")
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    labels += [name for name in ("label", "labels") if "int" in str(getattr(features.get(name), "dtype", ""))]
    return pictures[0], next(iter(labels), "")


def class_names_of(dataset: Any) -> tuple[str, ...]:
    """Return the class names that a data set, or the one it is a subset of, declares; none if it declares none."""
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        return tuple(getattr(features.get(columns_of(dataset)[1]), "names", ()))
    if isinstance(names := getattr(dataset, "classes", None), list | tuple):
        return tuple(map(str, names))
    return class_names_of(dataset.dataset) if hasattr(dataset, "dataset") else ()  # torch's Subset


@dataclass(frozen=True)
class DatasetSplit(Split):
    """Some items of a map-style data set.

    Attributes:
        dataset: the whole data set; `rows` are this split's items.
        columns: keys of picture and label in items that are mappings.
        cached: whether it has a fingerprint, and is to be cached.
        found: labels, in the order in which their pictures were decoded.
    """

    dataset: Any
    columns: tuple[str, str]
    rows: Sequence[int]
    cached: bool
    found: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def key(self) -> str:
        if not self.cached:
            return ""
        known = (self.columns, self.dataset._fingerprint, *self.rows)
        shaping = (CACHE_LAYOUT, self.image_size, self.kept, self.prepared, *known)
        return hashlib.sha256(repr(shaping).encode()).hexdigest()

    def name_of(self, number: int) -> str:
        return f"item {self.rows[number]}"

    def size_of(self, number: int) -> tuple[int, int] | None:
        try:
            return inputs.upright_size(_picture(self.dataset[self.rows[number]], self.columns)[0])
        except Exception:  # `pixels` will say what is wrong
            return None

    def labels(self) -> list[int]:
        if not (labels := self.found):
            known = _labels(self.dataset, self.columns[1])
            labels = [known[row] for row in self.rows]
        own = class_names_of(self.dataset)
        if not own or own == self.class_names or self.class_names == tuple(map(str, range(len(self.class_names)))):
            return labels
        # the test data has other classes than the training data, or the same in another order
        number = {name: label for label, name in enumerate(self.class_names)}
        if unknown := [own[label] for label in sorted({*labels}) if 0 <= label < len(own) and own[label] not in number]:
            what = f"the {self.name} data has a class {unknown[0]!r}, which the training data has not"
            raise DataError(f"{self.origin}: {what}; both need the same classes")
        return [number[own[label]] if 0 <= label < len(own) else label for label in labels]

    def decoded(self, size: tuple[int, int]) -> Generator[bytes | str | PictureTypeError]:
        """Implement `Split.decoded` with torch's DataLoader, in several processes if the system can fork.

        Raises:
            DataError: a label is not an integer.
        """
        cores = usable_cores()
        workers = min(cores, 8) if sys.platform == "linux" and len(self) >= FEW and cores > 1 else 0
        how = {"multiprocessing_context": "fork"} if workers else {}  # other methods would run the main module again
        self.found.clear()
        work = partial(self.pixels, size=size)
        loader: DataLoader[Any] = DataLoader(
            range(len(self)), batch_size=None, num_workers=workers, collate_fn=work, **how  # type: ignore[arg-type]
        )  # fmt: skip
        with warnings.catch_warnings(action="ignore"):  # Pillow's name no file; Python's are about torch's threads
            for pixels, label in loader:
                if isinstance(pixels, DataError):
                    raise pixels
                self.found.append(label)
                yield pixels

    def pixels(self, number: int, size: tuple[int, int]) -> tuple[bytes | str | PictureTypeError | DataError, int]:
        """Return a picture's pixels, uint8 (3, h, w) for `size` = (h, w), or the reason why it has none, and its label.

        A label that cannot be used is a DataError, returned because a DataLoader's process would change it in raising it.
        """
        try:
            picture, label = _picture(self.dataset[self.rows[number]], self.columns)
            return inputs.planes(picture, size, self.prepared), label
        except DataError as error:
            return DataError(f"{self.located(self.name_of(number))}: {error}"), -1
        except PictureTypeError as error:
            return error, -1
        except Exception as error:  # somebody else's data set may raise anything
            return f"{type(error).__name__}: {error}", -1

    def image_set(self, *args: Any) -> ImageSet:
        """Return the images with their class names.

        Raises:
            DataError: only some of the images have a label, or a label has no name.
        """
        made = super().image_set(*args)
        missing, most = made.labels < 0, int(made.labels.max())
        if missing.all() and not (self.class_names and self.name == "test"):
            return replace(made, class_names=())
        names = self.class_names or tuple(map(str, range(most + 1)))
        if missing.all():
            ways = "label it, or leave it out to hold out training images"
            raise DataError(f"{self.origin}: the test data has no labels, which the training data has; {ways}")
        if missing.any():
            first = int(missing.nonzero()[0])
            raise DataError(
                f"{self.origin}: {self.name} image {first} has no label, unlike others; leave out all or none"
            )
        if most >= len(names):
            raise DataError(
                f"{self.origin}: a label is {most} in {self.name}, but there are {len(names)} classes, from 0"
            )
        return replace(made, class_names=names)


def _picture(item: Any, columns: tuple[str, str]) -> tuple[Image.Image, int]:
    """Return an item's picture and label.

    Raises:
        PictureTypeError: the item has another form.
        DataError: the label is not an integer.
    """
    if isinstance(item, Mapping):
        image, label = item[columns[0]], item.get(columns[1])
    elif isinstance(item, tuple | list):
        image, label = item[0], item[1] if len(item) > 1 else None
    else:
        image, label = item, None
    try:
        number = -1 if label is None else max(operator.index(label), -1)
    except TypeError as error:
        what = f"its label is {repr(label)[:60]} ({type(label).__name__})"
        raise DataError(f"{what}; labels are integers from 0") from error
    if isinstance(image, Image.Image):
        return image, number
    if not isinstance(image, Tensor) or image.dtype != uint8 or image.ndim != 3 or len(image) not in (1, 3):
        found = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
        raise PictureTypeError(
            f"got {found}; a PIL image or a uint8 tensor (C, H, W) is needed, before ToTensor and Normalize"
        )
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    return Image.fromarray(pixels if len(image) == 3 else pixels[..., 0]), number


def _labels(dataset: Any, column: str) -> list[int]:
    """Return the labels of a Hugging Face data set without decoding its images; -1 for none."""
    values = dataset.select_columns([column])[:][column] if column else [None] * len(dataset)
    return [-1 if value is None else max(operator.index(value), -1) for value in values]
