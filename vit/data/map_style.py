"""Any map-style data set (torch's, torchvision's or Hugging Face's), decoded once into the cache.

See `vit.data.cache`.
"""

from __future__ import annotations

import operator
import os
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
from vit.data.images import class_key, evenly_spaced, hold_out_test_images, notes_on
from vit.errors import DataError, one_line


def load_datasets(
    train: Any, test: Any, config: DataConfig, image_size: Size, name: str
) -> tuple[ImageSet, ImageSet]:
    """Return map-style data sets as images, decoded in order into a memory-mapped file.

    Items are read in the caller's process and thread, one after another: nobody knows what somebody
    else's data set holds, as an open file, a connection or a counter. The file is kept for the next
    run if the data set is Hugging Face's, which has a fingerprint.

    An item is a picture, a sequence that begins with a picture and its label, or a mapping with
    "image" and "label"; in a Hugging Face data set, the first columns of images and classes count.
    A picture is a PIL image or a uint8 tensor (C, H, W) with 1 or 3 channels; a label is an
    integer, or None or a negative number for none. `inputs.fit_picture` says how the pixels are
    made.

    Args:
        train, test: with `__len__` and `__getitem__`; without `test`, some images of `train` are
            held out (`hold_out_test_images`).
        config: the data section, for `cache` and `on_bad_image`.
        image_size: (H, W) of the model's input.
        name: the data's name in messages.

    Returns:
        train, test: uint8 images (N, 3, h, w), int64 labels. Class names are the data's (`classes`,
            or a ClassLabel's), else "0", "1", ... The notes of `train` say what was found.

    Raises:
        DataError: there are fewer than two images, an item is no picture (unless `on_bad_image` is
            "skip"), or a label is missing or not one of the classes.
        KeyError: the test images have a class that the training data has not.
        TypeError: the data is not map-style, or a label is no integer.
    """
    picture_key, label_key, class_names = _columns(train)

    def load(split: str, dataset: Any, size: Size | None) -> ImageSet:
        return cached(
            cache_path(Path(os.path.expanduser(config.cache)), name, split, image_size),
            _shaping(dataset, class_names),
            len(dataset),
            _sizes(dataset),
            lambda size: _decoded(dataset, class_names, size, name),
            image_size,
            size,
            config.on_bad_image,
        )

    # The training images decide the size and the classes of both splits
    train_images = _with_class_names(load("train", train, None), class_names, f"{name}: train")
    names = train_images.class_names
    if test is None:
        train_images, test_images = hold_out_test_images(train_images, name, "dataset")
    else:
        height, width = train_images.images.shape[-2:]
        test_images = load("test", test, (height, width))
        test_images = _with_class_names(test_images, names, f"{name}: test", bool(names))

    # Labels under another key would be lost in silence
    notes = [*train_images.notes, *notes_on(train_images, test_images, image_size)]
    if not names or _declared(train, "features", Mapping):
        columns = f"images are read from {picture_key!r}, labels from {label_key!r}"
        notes.append(f"{len(names)} classes; of mappings, {columns}")
    return replace(train_images, notes=tuple(map(one_line, notes))), test_images


# --- what a data set declares ---------------------------------------------------------------------


def _declared(dataset: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """Return an attribute of a data set, or of that of which it is a torch `Subset`, or None."""
    found = getattr(dataset, name, None)
    if isinstance(found, kind):
        return found
    if hasattr(dataset, "dataset"):
        return _declared(dataset.dataset, name, kind)
    return None


def _columns(dataset: Any) -> tuple[str, str, tuple[str, ...]]:
    """Return the keys of picture and label in a data set's mappings, and its class names.

    Those of a Hugging Face data set are its first column of images, and of classes, or else of
    whole numbers called label or labels; "" if there is no such column.
    """
    features = _declared(dataset, "features", Mapping)
    if features is None:
        names = _declared(dataset, "classes", (list, tuple)) or ()
        return "image", "label", tuple(map(str, names))
    kinds = {name: type(kind).__name__ for name, kind in features.items()}
    pictures = [name for name, kind in kinds.items() if kind == "Image"]
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    for name in ("label", "labels"):
        if "int" in str(getattr(features.get(name), "dtype", "")):
            labels.append(name)
    picture_key = next(iter(pictures), "image")
    label_key = next(iter(labels), "")
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


def _read(dataset: Any, row: int) -> tuple[Image.Image, Any]:
    """Return the picture and the label, None without one, of an item of a data set.

    Raises:
        TypeError: the picture is neither Pillow's nor a uint8 tensor.
    """
    item = dataset[row]
    picture = item
    label = None
    if isinstance(item, Mapping):
        picture_key, label_key, _ = _columns(dataset)
        picture = item[picture_key]
        label = item.get(label_key)
        # a transform may rename a column that the data set declares: all labels would be lost
        if label_key and _declared(dataset, "features", Mapping):
            label = item[label_key]
    elif isinstance(item, tuple | list):
        picture = item[0]
        if len(item) > 1:
            label = item[1]

    if isinstance(picture, Image.Image):
        return picture, label
    # whole numbers of other types would pass as 16-bit grey
    if getattr(picture, "dtype", None) != torch.uint8:
        kind = getattr(picture, "dtype", type(picture).__name__)
        needed = "a PIL image or a uint8 tensor (C, H, W), before ToTensor and Normalize"
        raise TypeError(f"got {kind}, not {needed}")
    # grey is three equal channels
    pixels = picture.expand(3, -1, -1).permute(1, 2, 0)
    return Image.fromarray(np.ascontiguousarray(pixels)), label


def _sizes(dataset: Any) -> Iterator[Size]:
    """Yield (width, height) of some pictures; `_decoded` says what is wrong with the others."""
    for row in evenly_spaced(len(dataset), MEASURED).tolist():
        size = None
        with suppress(Exception):
            size = inputs.upright_size(_read(dataset, row)[0])
        if size is not None:
            yield size


def _decoded(
    dataset: Any, class_names: tuple[str, ...], size: Size, name: str
) -> Generator[Decoded]:
    """Yield all items, with labels as the training data's classes are numbered."""
    own_names = _columns(dataset)[2]
    label_of = {class_key(class_name): label for label, class_name in enumerate(class_names)}
    renumbered = bool(class_names) and bool(own_names) and own_names != class_names
    for row in range(len(dataset)):
        title = f"{name}: item {row}"
        # somebody else's data set may raise anything: then the item is unreadable
        try:
            picture, label = _read(dataset, row)
            pixels = inputs.planes(picture, size)
        except Exception as error:
            yield title, f"{type(error).__name__}: {error}", -1
            continue

        # a wrong label is no reason to leave an image out
        number = -1 if label is None else max(operator.index(label), -1)
        if renumbered and number >= 0:
            number = label_of[class_key(own_names[number])]
        yield title, pixels, number


def _with_class_names(
    images: ImageSet, class_names: tuple[str, ...], name: str, required: bool = False
) -> ImageSet:
    """Return images with their class names; "0", "1", ... if the data set declares none.

    Raises:
        DataError: an image has no label, or one without a name; but unless labels are required,
            all may have none.
    """
    if not required and bool((images.labels < 0).all()):
        return images
    class_names = class_names or tuple(map(str, range(int(images.labels.max()) + 1)))
    wrong = (images.labels < 0) | (images.labels >= len(class_names))
    if wrong.any():
        first = int(wrong.nonzero()[0])
        problem = f"image {first} has label {int(images.labels[first])}"
        raise DataError(f"{name}: {problem}; the {len(class_names)} classes are numbered from 0")
    return replace(images, class_names=class_names)
