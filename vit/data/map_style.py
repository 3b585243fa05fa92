"""Any map-style data set (torch's, torchvision's or Hugging Face's), decoded once into the cache.

See `vit.data.cache`.
"""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, uint8

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
from vit.data.images import class_key, hold_out_test_images
from vit.errors import DataError, one_line
from vit.inputs import OWN


def load_datasets(
    train: Any, test: Any, config: DataConfig, image_size: Size, name: str = ""
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
        name: the data's name in messages; "": the class of `train`.

    Returns:
        train, test: uint8 images (N, 3, h, w), int64 labels. Class names are the data's (`classes`,
            or a ClassLabel's), else "0", "1", ... The notes of `train` say what was found.

    Raises:
        DataError: there are fewer than two images, an item is no picture (unless `on_bad_image` is
            "skip"), some images lack a label, or the test images have classes of their own.
        TypeError: the data is not map-style, or a label is no integer.
    """
    name = name or type(train).__name__
    picture_key, label_key = columns_of(train)
    class_names = class_names_of(train)

    def load(split: str, dataset: Any, size: Size | None) -> Cached:
        pictures = _pictures(split, dataset, name, class_names, image_size, size)
        folder = Path(os.path.expanduser(config.cache))
        path = cache_path(folder, name, split, image_size, OWN)
        return cached(path, pictures, image_size, size, config.on_bad_image)

    # The training images decide the size and the classes of both splits
    trained_on = load("train", train, None)
    train_images = _with_class_names(trained_on.images, class_names, "train", name)

    # Labels under another key would be lost in silence
    notes = []
    if not train_images.class_names:
        read_from = repr(label_key) if label_key else "a column of classes or whole numbers"
        notes.append(f"images without labels; a mapping's are read from {read_from}")
    elif _declared(train, "features", Mapping):
        notes.append(f"images of the column {picture_key}, labels of {label_key}")
    if test is None:
        train_images, test_images, note = hold_out_test_images(train_images, name, at_random=True)
        notes.append(f"no test set: {note}")
    else:
        height, width = train_images.images.shape[-2:]
        test_images = load("test", test, (height, width)).images
        test_images = _with_class_names(test_images, train_images.class_names, "test", name)
    notes += describe(train_images, test_images, trained_on.sizes, image_size)
    return replace(train_images, notes=tuple(map(one_line, notes))), test_images


# --- what a data set holds -----------------------------------------------------------------------


def _declared(dataset: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """Return an attribute of a data set, or of that of which it is a torch `Subset`, or None."""
    found = getattr(dataset, name, None)
    if isinstance(found, kind):
        return found
    if hasattr(dataset, "dataset"):
        return _declared(dataset.dataset, name, kind)
    return None


def columns_of(dataset: Any) -> tuple[str, str]:
    """Return the keys of picture and label in a data set's mappings.

    Those of a Hugging Face data set are its first column of images, and of classes, or else of
    whole numbers called label or labels; "" if there is no such column.
    """
    features = _declared(dataset, "features", Mapping)
    if features is None:
        return "image", "label"
    kinds = {name: type(kind).__name__ for name, kind in features.items()}
    pictures = [name for name, kind in kinds.items() if kind == "Image"]
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    for name in ("label", "labels"):
        if "int" in str(getattr(features.get(name), "dtype", "")):
            labels.append(name)
    return next(iter(pictures), "image"), next(iter(labels), "")


def class_names_of(dataset: Any) -> tuple[str, ...]:
    """Return the class names that a data set declares; none if it declares none."""
    features = _declared(dataset, "features", Mapping)
    if features is not None:
        return tuple(getattr(features.get(columns_of(dataset)[1]), "names", ()))
    return tuple(map(str, _declared(dataset, "classes", (list, tuple)) or ()))


# --- reading them --------------------------------------------------------------------------------


def _pictures(
    split: str,
    dataset: Any,
    name: str,
    class_names: tuple[str, ...],
    image_size: Size,
    size: Size | None,
) -> Pictures[int]:
    """Return all rows of a data set and the functions that read one of them.

    Args:
        split: "train" or "test".
        dataset: map-style.
        name: the data's name in messages.
        class_names: of the training data, which number the labels.
        image_size: (H, W) of the model's input.
        size: (h, w) of the images; None if the pictures decide it.
    """
    columns = columns_of(dataset)
    is_declared = _declared(dataset, "features", Mapping) is not None
    split_names = class_names_of(dataset)
    label_of = {class_key(class_name): label for label, class_name in enumerate(class_names)}
    renumbered = bool(class_names) and bool(split_names) and split_names != class_names

    def measure(row: int) -> Size | None:
        # `decode` will say what is wrong
        with suppress(Exception):
            picture, _ = _read_item(dataset[row], columns, is_declared)
            return inputs.upright_size(picture)
        return None

    def decode(row: int, size: Size) -> Decoded:
        # Somebody else's data set may raise anything: then the item is left out as unreadable
        try:
            picture, label = _read_item(dataset[row], columns, is_declared)
            pixels = inputs.planes(picture, size)
        except Exception as error:
            return f"{type(error).__name__}: {error}", -1

        # A wrong label is no reason to leave an image out
        if label is None:
            return pixels, -1
        number = max(operator.index(label), -1)
        if not renumbered or not 0 <= number < len(split_names):
            return pixels, number
        class_name = class_key(split_names[number])
        if class_name not in label_of:
            problem = f"a class {class_name!r} in {split}, which the training data has not"
            raise DataError(one_line(f"{name}: {problem}"))
        return pixels, label_of[class_name]

    # Without a fingerprint, the key stays empty: nobody can say whether a cache still holds the
    # same images
    key = ""
    fingerprint = _fingerprint(dataset, columns[0])
    if fingerprint:
        shaping = (CACHE_LAYOUT, image_size, size, class_names, columns, fingerprint, len(dataset))
        key = hashlib.sha256(repr(shaping).encode()).hexdigest()
    return Pictures(
        split=split,
        items=range(len(dataset)),
        key=key,
        decode=decode,
        measure=measure,
        name_of=lambda row: one_line(f"{name}: item {row}"),
    )


def _read_item(item: Any, columns: tuple[str, str], is_declared: bool) -> tuple[Image.Image, Any]:
    """Return the picture and the label, None without one, of an item of a data set.

    Args:
        item: of any form that `load_datasets` names.
        columns: the keys of a mapping.
        is_declared: whether the data set says that its items have them: a transform may give
            others, and all labels would be lost.
    """
    picture = item
    label = None
    if isinstance(item, Mapping):
        picture_key, label_key = columns
        picture = item[picture_key]
        label = item.get(label_key)
        if is_declared and label_key:
            label = item[label_key]
    elif isinstance(item, tuple | list):
        picture = item[0]
        if len(item) > 1:
            label = item[1]
    return _to_pil(picture), label


def _to_pil(picture: Any) -> Image.Image:
    """Return a picture as Pillow's.

    Raises:
        TypeError: it is neither Pillow's nor a uint8 tensor (1 or 3, H, W).
    """
    if isinstance(picture, Image.Image):
        return picture
    # Whole numbers of other types would pass as 16-bit grey
    if not isinstance(picture, Tensor) or picture.dtype != uint8 or len(picture) not in (1, 3):
        kind = getattr(picture, "dtype", type(picture).__name__)
        needed = "a PIL image or a uint8 tensor (C, H, W), before ToTensor and Normalize"
        raise TypeError(f"got {kind}, not {needed}")
    pixels = np.ascontiguousarray(picture.permute(1, 2, 0).numpy())  # (H, W, 1 or 3)
    if len(picture) == 1:
        pixels = pixels[..., 0]
    return Image.fromarray(pixels)


def _fingerprint(dataset: Any, picture_key: str) -> tuple[Any, ...]:
    """Return what changes with whatever changes the pictures of a data set; () if nothing tells.

    Hugging Face's data sets have a fingerprint. A class of somebody's own may hand on that of a
    data set that it wraps, whose items it changes.
    """
    fingerprint = getattr(dataset, "_fingerprint", None)
    if type(dataset).__module__.partition(".")[0] != "datasets" or not fingerprint:
        return ()

    # It knows the pictures in the data set's table, but of a file only the name
    files: dict[str, tuple[int, ...]] = {}
    for chunk in dataset.data.column(picture_key).chunks:
        is_file = chunk.field("bytes").is_null()
        for path in chunk.field("path").filter(is_file).to_pylist():
            # e.g. within an archive, or missing, of which the decoding will tell
            with suppress(OSError, TypeError, ValueError):
                info = os.stat(path)
                files[path] = (info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    return fingerprint, files


def _with_class_names(
    images: ImageSet, class_names: tuple[str, ...], split: str, name: str
) -> ImageSet:
    """Return images with their class names.

    Raises:
        DataError: only some of the images have a label, or a label has no name.
    """
    missing = images.labels < 0
    largest = int(images.labels.max())

    # No labels at all; but test images of classes have one
    if missing.all() and (split == "train" or not class_names):
        return images

    # A label for each image, and a name for each label
    if missing.any():
        first = int(missing.nonzero()[0])
        raise DataError(
            f"{name}: {split} image {first} has no label, unlike others; label all or none"
        )
    names = class_names or tuple(map(str, range(largest + 1)))
    if largest >= len(names):
        problem = f"a label is {largest} in {split}"
        raise DataError(f"{name}: {problem}, but there are {len(names)} classes, from 0")
    return replace(images, class_names=names)
