"""Any map-style data set (torch's, torchvision's or Hugging Face's), decoded once into the cache.

See `vit.data.cache`.
"""

from __future__ import annotations

import operator
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from vit import inputs
from vit.config import DataConfig, user_path
from vit.data import ImageSet
from vit.data.cache import Decoded, Size, cache_path, cached, times_of
from vit.errors import DataError
from vit.weights import class_key

Columns = tuple[str, str, tuple[str, ...]]
"""The keys of image and label in a data set's mappings, and its class names."""
UNNAMED: Columns = ("image", "label", ())
"""Those of a data set that declares none."""
READ_AGAIN = 32
"""The first items are read again: random transforms would be drawn only once, and stored."""
CHANGING = f"of the first {READ_AGAIN} items, random transforms change from read to read"


def load_datasets(
    train: Any, test: Any, config: DataConfig, image_size: Size, name: str
) -> tuple[ImageSet, ImageSet | None]:
    """Return map-style data sets as images, decoded in order into a memory-mapped file.

    Items are read in the caller's process and thread, one after another: another's data set may
    hold anything, such as an open file, a connection or a counter. The file is kept for the next
    run if the data set is Hugging Face's, which has a fingerprint.

    An item is an image, a sequence (image, label, ...), or a mapping with both, "image" and
    "label"; in a Hugging Face data set, they are the first columns of images and classes. An image
    is a PIL image or a uint8 tensor (C, H, W) with 1 or 3 channels; a label is an integer, or None
    or a negative number for none. `inputs.fit_picture` says how the pixels are made.

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
    *keys, class_names = columns

    def load(split: str, dataset: Any, columns: Columns, size: Size | None) -> ImageSet:
        return cached(
            cache_path(user_path(config.cache, "data.cache"), name, split, image_size),
            _shaping(dataset, columns, class_names),
            len(dataset),
            lambda row: inputs.upright_size(_read(dataset, row, columns)[0]),
            lambda size: _decoded(dataset, columns, class_names, size, name),
            image_size,
            size,
            config.on_bad_image,
        )

    # The training images decide the size and the classes of both splits
    images = load("train", train, columns, None)
    if (images.labels >= 0).any():
        numbers = range(int(images.labels.max()) + 1)
        images = _with_class_names(images, class_names or tuple(map(str, numbers)), "train")
    if columns[:2] != UNNAMED[:2]:
        read = "images are read from {!r}, labels from {!r}".format(*keys)
        note = f"{len(images.class_names)} classes; {read}"
        images = replace(images, notes=(*images.notes, note))
    if test is None:
        return images, None
    height, width = images.images.shape[-2:]
    test_images = load("test", test, _columns(test), (height, width))
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


def _columns(dataset: Any) -> Columns:
    """Return what a data set declares, or the parts of torch's `Subset` and `ConcatDataset`."""
    features = getattr(dataset, "features", None)
    class_names = getattr(dataset, "classes", None)
    if isinstance(features, Mapping):
        return _columns_of(features)
    if isinstance(class_names, list | tuple):
        return (*UNNAMED[:2], tuple(class_key(str(name)) for name in class_names))
    parts = [getattr(dataset, "dataset", None)]
    if hasattr(dataset, "cumulative_sizes"):
        parts = dataset.datasets
    # nothing shows whether class 0 of one part is class 0 of the other
    declared = {_columns(part) for part in parts if part is not None}
    if len(declared) > 1:
        raise DataError("the parts of a data set must have the same classes (`classes`)")
    return declared.pop() if declared else UNNAMED


def _columns_of(features: Any) -> Columns:
    """Return the first columns of images, and of classes, or else the one called label or labels.

    "" if there is no such column.
    """
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
    class_names = getattr(features.get(label_key), "names", ())
    return picture_key, label_key, tuple(map(class_key, class_names))


def _shaping(dataset: Any, columns: Columns, class_names: tuple[str, ...]) -> object:
    """Return a value that changes with the images of a data set; None without one.

    Hugging Face's data sets have a fingerprint. A user's own class may pass on that of a data set
    that it wraps and whose items it changes.
    """
    fingerprint = getattr(dataset, "_fingerprint", None)
    if type(dataset).__module__.partition(".")[0] != "datasets" or not fingerprint:
        return None

    # It covers the images in the data set's table, but only the name of a file
    files = {}
    for chunk in dataset.data.column(columns[0]).chunks:
        is_file = chunk.field("bytes").is_null()
        for path in chunk.field("path").filter(is_file).to_pylist():
            files[path] = times_of(path or "")
    return class_names, columns, fingerprint, len(dataset), files


# --- reading it -----------------------------------------------------------------------------------


def _read(dataset: Any, row: int, columns: Columns) -> tuple[Image.Image, Any]:
    """Return the image and the label, None without one, of an item of a data set."""
    item = dataset[row]
    parts = [item]
    if isinstance(item, Mapping):
        # a label under another key is an error: all labels would be lost silently
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


def _decoded(
    dataset: Any,
    columns: Columns,
    class_names: tuple[str, ...],
    size: Size,
    name: str,
) -> Generator[Decoded]:
    """Yield all items, their labels numbered as the training data's classes."""
    # by name only if the test data's classes have another order: two may have one name, as in
    # ImageNet the crane that flies and the one that lifts
    names = columns[2]
    number_of: dict[int, int] = {}
    if class_names and names != class_names:
        label_of = {class_name: label for label, class_name in enumerate(class_names)}
        number_of = {number: label_of[class_name] for number, class_name in enumerate(names)}
    for row in range(len(dataset)):
        title = f"{name}: item {row}"
        # another's data set may raise anything: then the item is unreadable
        try:
            picture, label = _read(dataset, row, columns)
            content = inputs.decode(picture, size)
            if row < READ_AGAIN and isinstance(content, tuple):
                picture, _ = _read(dataset, row, columns)
                if content != inputs.decode(picture, size):
                    content = (*content[:2], CHANGING)
        except Exception as error:
            yield title, f"{type(error).__name__}: {error}", -1
            continue

        # a wrong label is no reason to leave an image out
        number = -1 if label is None else max(operator.index(label), -1)
        if number_of and number >= 0:
            # one outside of its own classes is none of the training data's either
            number = number_of.get(number, max(number, len(class_names)))
        yield title, content, number
