"""Any map-style data set (torch's, torchvision's or Hugging Face's) as pictures, decoded once: see `vit.data.cache`."""

from __future__ import annotations

import hashlib
import operator
import os
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, uint8
from torch.utils.data import DataLoader

from vit import inputs
from vit.config import DataConfig
from vit.data import ImageSet
from vit.data.cache import (
    CACHE_LAYOUT,
    Cached,
    Decoded,
    Pictures,
    Size,
    cache_path,
    cached,
    describe,
)
from vit.data.images import hold_out
from vit.errors import DataError, one_line
from vit.inputs import OWN
from vit.openmp import usable_cores

FEW = 2000
"""Fewer images than this are decoded without extra processes."""

NEEDED = "a PIL image or a uint8 tensor (C, H, W) is needed, before ToTensor and Normalize"


def load_datasets(
    train: Any, test: Any, config: DataConfig, image_size: Size, name: str = ""
) -> tuple[ImageSet, ImageSet]:
    """Return map-style data sets as images, decoded in order into a memory-mapped file.

    The file is kept for the next run if the data set has a fingerprint, as Hugging Face's have.

    An item is a picture, a sequence that begins with a picture and its label, or a mapping with
    "image" and "label"; in a Hugging Face data set, the first columns of images and classes count.
    A picture is a PIL image or a uint8 tensor (C, H, W) with 1 or 3 channels; a label is an
    integer, or None or a negative number for none. `inputs.fit_picture` says how the pixels are
    made.

    Args:
        train, test: with `__len__` and `__getitem__`; without `test`, some images of `train` are
            held out (`hold_out`).
        config: the data section, for `cache` and `on_bad_image`.
        image_size: (H, W) of the model's input.
        name: the data's name in messages; "": the class of `train`.

    Returns:
        train, test: uint8 images (N, 3, h, w), int64 labels. Class names are the data's (`classes`,
            or a ClassLabel's), else "0", "1", ... The notes of `train` say what was found.

    Raises:
        DataError: the data is not map-style, has fewer than two images or other items, or lacks
            some of the labels.
    """
    # Which items
    train_rows: Sequence[int]
    test_rows: Sequence[int]
    name = name or type(train).__name__
    notes: list[str] = []
    _refuse_other_kinds(train)
    if test is None:
        _refuse_few(train, 2, name)
        train_rows, test_rows, aside = hold_out(len(train), at_random=True)
        notes.append(f"no test set: {aside}")
        test = train
    else:
        _refuse_other_kinds(test)
        _refuse_few(train, 1, name)
        _refuse_few(test, 1, name)
        train_rows = range(len(train))
        test_rows = range(len(test))
    if hasattr(train, "features"):
        notes.append(_describe_columns(train))

    # Their images: those to train on decide the size of both
    class_names = class_names_of(train)

    def load(split: str, dataset: Any, rows: Sequence[int], kept: Size | None) -> Cached:
        if config.on_bad_image == "stop":
            _refuse_first(dataset, name)
        pictures = _pictures(split, dataset, rows, name, class_names, image_size, kept)
        folder = Path(os.path.expanduser(config.cache))
        path = cache_path(folder, name, split, image_size, OWN)
        return cached(path, pictures, image_size, kept, config.on_bad_image)

    train_images, sizes = load("train", train, train_rows, None)
    train_images = _with_class_names(train_images, class_names, "train", name)
    height, width = train_images.images.shape[-2:]
    test_images, _ = load("test", test, test_rows, (height, width))
    test_images = _with_class_names(test_images, train_images.class_names, "test", name)
    notes += describe(train_images, test_images, sizes, image_size)
    return replace(train_images, notes=tuple(map(one_line, notes))), test_images


# --- what a data set holds -----------------------------------------------------------------------


def _refuse_other_kinds(dataset: Any) -> None:
    kind = type(dataset).__name__
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        needed = "it needs __len__ and __getitem__; a list of its items has"
        raise DataError(f"{kind}: not a map-style data set: {needed}")
    if isinstance(dataset, Mapping) and "train" in dataset:
        parts = ", ".join(dataset)
        raise DataError(f'{kind}: several data sets in one ({parts}); hand over its ["train"]')


def _refuse_few(dataset: Any, fewest: int, name: str) -> None:
    if len(dataset) < fewest:
        needed = "it needs at least one to train on and one to test on"
        raise DataError(f"{name}: too few images; {needed}")


def _refuse_first(dataset: Any, name: str) -> None:
    """Refuse a data set whose first item is no picture: to leave such items out would leave none."""
    try:
        _picture(dataset[0], columns_of(dataset))
    except NotAPictureError as error:
        raise DataError(f"{one_line(name)}: item 0: not a readable image ({error})") from error
    except Exception:  # another fault, which decoding will name
        return


def _describe_columns(dataset: Any) -> str:
    """Return a note on the columns of a Hugging Face data set that are used."""
    picture, label = columns_of(dataset)
    if label:
        return f"images of the column {picture}, labels of {label}"
    note = f"images of the column {picture}, without labels"
    for column in ("label", "labels"):
        if "string" in str(getattr(dataset.features.get(column), "dtype", "")):
            way = f"class_encode_column({column!r}) makes classes of it"
            return f"{note}: {column} holds text; {way}"
    return note


def columns_of(dataset: Any) -> tuple[str, str]:
    """Return the keys of picture and label in the mappings of a data set, or of the one it is a subset of; "" for no label.

    Raises:
        DataError: a Hugging Face data set has no column of images.
    """
    features = getattr(dataset, "features", None)
    if not isinstance(features, Mapping):
        return (
            columns_of(dataset.dataset) if hasattr(dataset, "dataset") else ("image", "label")
        )  # torch's Subset
    kinds = {name: type(kind).__name__ for name, kind in features.items()}
    pictures = [name for name, kind in kinds.items() if kind == "Image"]
    if not pictures:
        raise DataError(
            f"no image column among {', '.join(kinds)}; cast_column(NAME, datasets.Image()) makes one"
        )
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    labels += [
        name
        for name in ("label", "labels")
        if "int" in str(getattr(features.get(name), "dtype", ""))
    ]
    return pictures[0], next(iter(labels), "")


def class_names_of(dataset: Any) -> tuple[str, ...]:
    """Return the class names that a data set, or the one it is a subset of, declares; none if it declares none."""
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        return tuple(getattr(features.get(columns_of(dataset)[1]), "names", ()))
    if isinstance(names := getattr(dataset, "classes", None), list | tuple):
        return tuple(map(str, names))
    return class_names_of(dataset.dataset) if hasattr(dataset, "dataset") else ()  # torch's Subset


# --- reading them --------------------------------------------------------------------------------


class NotAPictureError(TypeError):
    """An item is neither a picture nor begins with one; the message says what it is instead."""


def _pictures(
    split: str,
    dataset: Any,
    rows: Sequence[int],
    name: str,
    class_names: tuple[str, ...],
    image_size: Size,
    kept: Size | None,
) -> Pictures[int]:
    """Return the rows of a data set and the functions that read one of them."""
    columns = columns_of(dataset)
    own_names = class_names_of(dataset)
    label_of = {class_name: label for label, class_name in enumerate(class_names)}
    renumbered = bool(class_names) and bool(own_names) and own_names != class_names

    def name_of(row: int) -> str:
        return one_line(f"{name}: item {row}")

    def size_of(row: int) -> Size | None:
        try:
            picture, _ = _picture(dataset[row], columns)
            return inputs.upright_size(picture)
        except Exception:  # `decode_row` will say what is wrong
            return None

    def decode_row(row: int, size: Size) -> Decoded:
        try:
            picture, label = _picture(dataset[row], columns)
            pixels = inputs.planes(picture, size)
        except DataError as error:  # its label, which is no reason to leave it out
            raise DataError(f"{name_of(row)}: {error}") from error
        except NotAPictureError as error:
            return str(error), -1
        except Exception as error:  # somebody else's data set may raise anything
            return f"{type(error).__name__}: {error}", -1
        if not renumbered or not 0 <= label < len(own_names):
            return pixels, label
        if own_names[label] not in label_of:
            unknown = f"has a class {own_names[label]!r}, which the training data has not"
            raise DataError(
                one_line(f"{name}: the {split} data {unknown}; both need the same classes")
            )
        return pixels, label_of[own_names[label]]

    # A fingerprint changes with whatever changes the data; without one, nothing is known of it
    key = ""
    fingerprint = getattr(dataset, "_fingerprint", None)
    if isinstance(fingerprint, str):
        shaping = (CACHE_LAYOUT, image_size, kept, class_names, columns, fingerprint, rows)
        key = hashlib.sha256(repr(shaping).encode()).hexdigest()
    return Pictures(split, rows, key, decode_row, size_of, name_of, _in_processes)


def _in_processes(decode_row: Callable[[int], Decoded], rows: Sequence[int]) -> Generator[Decoded]:
    """Apply a function to rows, in order, in several processes if the system can fork.

    Raises:
        DataError: as the function.
    """
    workers = 0
    context = None
    cores = usable_cores()
    if sys.platform == "linux" and len(rows) >= FEW and cores > 1:
        workers = min(cores, 8)
        context = "fork"  # other methods would run the main module again

    def attempt(row: int) -> Decoded | DataError:
        try:
            return decode_row(row)
        except DataError as error:  # returned, because a DataLoader's process would change it
            return error

    loader: DataLoader[Any] = DataLoader(
        rows,  # type: ignore[arg-type]  # any sequence is a data set
        batch_size=None,
        num_workers=workers,
        collate_fn=attempt,  # type: ignore[arg-type]  # of one row, without batches
        multiprocessing_context=context,
    )
    with warnings.catch_warnings(action="ignore"):  # Pillow's, which name no file, and Python's
        for result in loader:
            if isinstance(result, DataError):
                raise result
            yield result


def _with_class_names(
    images: ImageSet, class_names: tuple[str, ...], split: str, name: str
) -> ImageSet:
    """Return images with their class names.

    Raises:
        DataError: only some of the images have a label, or a label has no name.
    """
    missing = images.labels < 0
    largest = int(images.labels.max())
    if missing.all():
        if class_names and split == "test":
            ways = "label it, or leave it out to hold out training images"
            raise DataError(
                f"{name}: the test data has no labels, which the training data has; {ways}"
            )
        return images
    if missing.any():
        first = int(missing.nonzero()[0])
        ways = "leave out all or none"
        raise DataError(f"{name}: {split} image {first} has no label, unlike others; {ways}")
    names = class_names or tuple(map(str, range(largest + 1)))
    if largest >= len(names):
        classes = f"there are {len(names)} classes, from 0"
        raise DataError(f"{name}: a label is {largest} in {split}, but {classes}")
    return replace(images, class_names=names)


def _picture(item: Any, columns: tuple[str, str]) -> tuple[Image.Image, int]:
    """Return an item's picture and label.

    Raises:
        NotAPictureError: the item has another form.
        DataError: the label is not an integer.
    """
    # The parts of an item
    image, label = item, None
    if isinstance(item, Mapping):
        image, label = item[columns[0]], item.get(columns[1])
    elif isinstance(item, tuple | list):
        image = item[0]
        label = item[1] if len(item) > 1 else None

    # The label
    number = -1
    if label is not None:
        try:
            number = max(operator.index(label), -1)
        except TypeError as error:
            shown = f"{repr(label)[:60]} ({type(label).__name__})"
            raise DataError(f"its label is {shown}; labels are integers from 0") from error

    # The picture
    if isinstance(image, Image.Image):
        return image, number
    if not isinstance(image, Tensor):
        raise NotAPictureError(f"got {type(image).__name__}; {NEEDED}")
    if image.dtype != uint8 or image.ndim != 3 or len(image) not in (1, 3):
        raise NotAPictureError(f"got {image.dtype} {tuple(image.shape)}; {NEEDED}")
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    return Image.fromarray(pixels if len(image) == 3 else pixels[..., 0]), number
