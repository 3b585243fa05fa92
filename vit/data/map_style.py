"""Any map-style data set (torch's, torchvision's or Hugging Face's), decoded once into the cache.

See `vit.data.cache`.
"""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vit import inputs
from vit.config import DataConfig
from vit.data import ImageSet
from vit.data.cache import MEASURED, Decoded, Size, cache_path, cached, times_of
from vit.data.images import spread
from vit.errors import DataError, one_line
from vit.weights import class_key

Columns = tuple[str, str, tuple[str, ...]]
"""The keys of picture and label in a data set's mappings, and its class names."""


def load_datasets(
    train: Any, test: Any, config: DataConfig, image_size: Size, name: str
) -> tuple[ImageSet, ImageSet | None]:
    """Return map-style data sets as images, decoded in order into a memory-mapped file.

    Items are read in the caller's process and thread, one after another: nobody knows what somebody
    else's data set holds, as an open file, a connection or a counter. The file is kept for the next
    run if the data set is Hugging Face's, which has a fingerprint.

    An item is a picture, a sequence that begins with a picture and its label, or a mapping that has
    both, "image" and "label"; in a Hugging Face data set, the first columns of images and classes
    count. A picture is a PIL image or a uint8 tensor (C, H, W) with 1 or 3 channels; a label is an
    integer, or None or a negative number for none. `inputs.fit_picture` says how the pixels are
    made.

    Args:
        train, test: with `__len__` and `__getitem__`; `test` may be None.
        config: the data section, for `cache` and `on_bad_image`.
        image_size: (H, W) of the model's input.
        name: the data's name in messages.

    Returns:
        train, test: uint8 images (N, 3, h, w), int64 labels. Class names are the data's (`classes`,
            or a ClassLabel's), else "0", "1", ... The notes of `train` say what was found.
    """
    columns = _columns(train)
    class_names = columns[2]

    def load(split: str, dataset: Any, size: Size | None) -> ImageSet:
        return cached(
            cache_path(Path(config.cache).expanduser(), name, split, image_size),
            _shaping(dataset, class_names),
            len(dataset),
            _sizes(dataset),
            lambda size: _decoded(dataset, class_names, size, name),
            image_size,
            size,
            config.on_bad_image,
        )

    # The training images decide the size and the classes of both splits
    images = load("train", train, None)
    if (images.labels >= 0).any():
        numbers = range(int(images.labels.max()) + 1)
        images = _with_class_names(images, class_names or tuple(map(str, numbers)), "train")
    if _declared(train, "features", Mapping):
        read = f"images are read from {columns[0]!r}, labels from {columns[1]!r}"
        images = replace(images, notes=(one_line(f"{len(images.class_names)} classes; {read}"),))
    if test is None:
        return images, None
    height, width = images.images.shape[-2:]
    test_images = load("test", test, (height, width))
    if images.class_names:
        test_images = _with_class_names(test_images, images.class_names, "test")
    return images, test_images


def _with_class_names(images: ImageSet, class_names: tuple[str, ...], split: str) -> ImageSet:
    """Return images of which each has a label, a number of these classes."""
    wrong = (images.labels < 0) | (images.labels >= len(class_names))
    if wrong.any():
        first = int(wrong.nonzero()[0])
        problem = f"image {first} has label {int(images.labels[first])}"
        raise DataError(f"{split}: {problem}; the {len(class_names)} classes are numbered from 0")
    return replace(images, class_names=class_names)


# --- what a data set declares ---------------------------------------------------------------------


def _declared(dataset: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """Return an attribute of a data set, or of that of which it is a torch `Subset`, or None."""
    attribute = getattr(dataset, name, None)
    if isinstance(attribute, kind):
        return attribute
    if hasattr(dataset, "dataset"):
        return _declared(dataset.dataset, name, kind)
    return None


def _columns(dataset: Any) -> Columns:
    """Return what a data set declares.

    Of a Hugging Face data set, its first column of images, and of classes, or else the one called
    label or labels; "" if there is no such column.
    """
    features = _declared(dataset, "features", Mapping)
    if features is None:
        names = _declared(dataset, "classes", (list, tuple)) or ()
        return "image", "label", tuple(map(str, names))
    picture_key = "image"
    label_key = ""
    for key, feature in reversed(features.items()):
        kind = type(feature).__name__
        if kind == "Image":
            picture_key = key
        elif kind == "ClassLabel":
            label_key = key
    for key in ("label", "labels"):
        if key in features:
            label_key = label_key or key
    return picture_key, label_key, tuple(getattr(features.get(label_key), "names", ()))


def _shaping(dataset: Any, class_names: tuple[str, ...]) -> object:
    """Return what changes with whatever changes the images of a data set; None if nothing tells.

    Hugging Face's data sets have a fingerprint. A class of somebody's own may hand on that of a
    data set that it wraps, whose items it changes.
    """
    fingerprint = getattr(dataset, "_fingerprint", None)
    if type(dataset).__module__.partition(".")[0] != "datasets" or not fingerprint:
        return None

    # It knows the pictures in the data set's table, but of a file only the name
    columns = _columns(dataset)
    files = {}
    for chunk in dataset.data.column(columns[0]).chunks:
        is_file = chunk.field("bytes").is_null()
        for path in chunk.field("path").filter(is_file).to_pylist():
            files[path] = times_of(path or "")
    return class_names, columns, fingerprint, len(dataset), files


# --- reading it -----------------------------------------------------------------------------------


def _read(dataset: Any, row: int, columns: Columns) -> tuple[Image.Image, Any]:
    """Return the picture and the label, None without one, of an item of a data set."""
    item = dataset[row]
    parts = [item]
    if isinstance(item, Mapping):
        # a label under another key is an error: all would be lost in silence
        parts = [item[key] for key in columns[:2] if key]
    elif isinstance(item, tuple | list):
        parts = list(item)
    picture, label, *_ = [*parts, None]

    if isinstance(picture, Image.Image):
        return picture, label
    # whole numbers of other types would pass as 16-bit grey
    if getattr(picture, "dtype", None) != torch.uint8:
        expected = "a PIL image or a uint8 tensor (C, H, W), before ToTensor and Normalize"
        raise TypeError(f"got {getattr(picture, 'dtype', type(picture).__name__)}, not {expected}")
    # grey is three equal channels
    pixels = picture.expand(3, -1, -1).permute(1, 2, 0)
    return Image.fromarray(np.ascontiguousarray(pixels)), label


def _sizes(dataset: Any) -> Iterator[Size]:
    """Yield (width, height) of some pictures; `_decoded` says what is wrong with the others."""
    columns = _columns(dataset)
    for row in spread(len(dataset), MEASURED).tolist():
        with suppress(Exception):
            yield inputs.upright_size(_read(dataset, row, columns)[0])


def _decoded(
    dataset: Any, class_names: tuple[str, ...], size: Size, name: str
) -> Generator[Decoded]:
    """Yield all items, with labels as the training data's classes are numbered."""
    columns = _columns(dataset)
    # by name, if these classes have another order
    number_of: dict[int, int] = {}
    if class_names and columns[2] not in ((), class_names):
        label_of = {class_key(name): label for label, name in enumerate(class_names)}
        number_of = {own: label_of[class_key(name)] for own, name in enumerate(columns[2])}
    for row in range(len(dataset)):
        title = f"{name}: item {row}"
        # somebody else's data set may raise anything: then the item is unreadable
        try:
            picture, label = _read(dataset, row, columns)
            content = inputs.pixels_and_hash(picture, size)
        except Exception as error:
            yield title, f"{type(error).__name__}: {error}", -1
            continue

        # a wrong label is no reason to leave an image out
        number = -1 if label is None else max(operator.index(label), -1)
        if number >= 0 and number_of:
            number = number_of[number]
        yield title, content, number
