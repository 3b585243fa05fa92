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
from typing import Any, NamedTuple

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

PICTURE_NEEDED = "a PIL image or a uint8 tensor (C, H, W) is needed, before ToTensor and Normalize"


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
        DataError: the data is not map-style, has fewer than two images or other items, or lacks
            some of the labels.
    """
    name = name or type(train).__name__
    notes: list[str] = []

    # Which data sets
    _refuse_other_kinds(train, name)
    if test is not None:
        _refuse_other_kinds(test, name)
    notes += _describe_labels(train)

    # Their images, from the cache
    class_names = class_names_of(train)

    def load(split: str, dataset: Any, size: Size | None) -> Cached:
        if config.on_bad_image == "stop":
            _refuse_first(dataset, name)
        pictures = _pictures(split, dataset, name, class_names, image_size, size)
        folder = Path(os.path.expanduser(config.cache))
        path = cache_path(folder, name, split, image_size, OWN)
        return cached(path, pictures, image_size, size, config.on_bad_image)

    # The training images decide the size and the classes of both splits
    trained_on = load("train", train, None)
    train_images = _with_class_names(trained_on.images, class_names, "train", name)
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


def _refuse_other_kinds(dataset: Any, name: str) -> None:
    """Refuse what cannot be indexed, a mapping of several data sets, and one without items."""
    kind = type(dataset).__name__
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        advice = "it needs __len__ and __getitem__; a list of its items has"
        raise DataError(f"{kind}: not a map-style data set: {advice}")
    if isinstance(dataset, Mapping) and "train" in dataset:
        parts = ", ".join(dataset)
        raise DataError(f'{kind}: several data sets in one ({parts}); hand over its ["train"]')
    if not len(dataset):
        raise DataError(f"{name}: has no images")


def _refuse_first(dataset: Any, name: str) -> None:
    """Refuse a data set whose first item is no picture: to leave such items out would leave none.

    Any other fault is left to the decoding, which names it.
    """
    try:
        problem = _read_item(dataset, 0, columns_of(dataset)).problem
    except Exception:
        return
    if problem:
        raise DataError(one_line(f"{name}: item 0: not a readable image ({problem})"))


def _describe_labels(dataset: Any) -> list[str]:
    """Return a note on where labels come from: the columns of a Hugging Face data set; else its
    mappings, if they have none."""
    columns = columns_of(dataset)
    if columns.declared and columns.label:
        return [f"images of the column {columns.picture}, labels of {columns.label}"]

    # Hugging Face's, without classes
    if columns.declared:
        note = f"images of the column {columns.picture}, without labels"
        for column in ("label", "labels"):
            if "string" in str(getattr(_features(dataset).get(column), "dtype", "")):
                advice = f"class_encode_column({column!r}) makes classes of it"
                note = f"{note}: {column} holds text; {advice}"
                break
        return [note]

    # Somebody's own, whose labels may have another name
    try:
        item = dataset[0]
    except Exception:
        # the decoding will say what is wrong
        return []
    if isinstance(item, Mapping) and columns.label not in item and len(item) > 1:
        others = ", ".join(str(key) for key in item if key != columns.picture)
        return [f"images without labels: items have no key {columns.label!r}, but {others}"]
    return []


class Columns(NamedTuple):
    """The keys of an item that is a mapping.

    Attributes:
        picture: of the picture.
        label: of its label; "" if the data has none.
        declared: whether the data set says that every item has them.
    """

    picture: str
    label: str
    declared: bool


def _features(dataset: Any) -> Mapping[str, Any]:
    """Return the columns that a Hugging Face data set declares, or a Subset of one; else none."""
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        return features
    # torch's Subset has those of the data set that it is a part of
    if hasattr(dataset, "dataset"):
        return _features(dataset.dataset)
    return {}


def columns_of(dataset: Any) -> Columns:
    """Return the keys of picture and label in a data set's mappings.

    Raises:
        DataError: a Hugging Face data set has no column of images.
    """
    features = _features(dataset)
    if not features:
        return Columns("image", "label", declared=False)

    # The first column of images
    kinds = {name: type(kind).__name__ for name, kind in features.items()}
    pictures = [name for name, kind in kinds.items() if kind == "Image"]
    if not pictures:
        advice = "cast_column(NAME, datasets.Image()) makes one"
        raise DataError(f"no image column among {', '.join(kinds)}; {advice}")

    # The first column of classes, or else of whole numbers under a usual name
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    for name in ("label", "labels"):
        if "int" in str(getattr(features.get(name), "dtype", "")):
            labels.append(name)
    return Columns(pictures[0], next(iter(labels), ""), declared=True)


def class_names_of(dataset: Any) -> tuple[str, ...]:
    """Return the class names that a data set declares; none if it declares none."""
    features = _features(dataset)
    if features:
        return tuple(getattr(features.get(columns_of(dataset).label), "names", ()))
    names = getattr(dataset, "classes", None)
    if isinstance(names, list | tuple):
        return tuple(map(str, names))
    # torch's Subset has those of the data set that it is a part of
    if hasattr(dataset, "dataset"):
        return class_names_of(dataset.dataset)
    return ()


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
    split_names = class_names_of(dataset)
    label_of = {class_key(class_name): label for label, class_name in enumerate(class_names)}
    renumbered = bool(class_names) and bool(split_names) and split_names != class_names

    def name_of(row: int) -> str:
        return one_line(f"{name}: item {row}")

    def measure(row: int) -> Size | None:
        try:
            item = _read_item(dataset, row, columns)
            if not item.problem:
                return inputs.upright_size(_to_pil(item.picture))
        except Exception:
            pass
        # `decode_row` will say what is wrong
        return None

    def decode_row(row: int, size: Size) -> Decoded:
        # Somebody else's data set may raise anything: then the item is left out as unreadable
        try:
            item = _read_item(dataset, row, columns)
            if item.problem:
                return item.problem, -1
            pixels = inputs.planes(_to_pil(item.picture), size)
        except Exception as error:
            return f"{type(error).__name__}: {error}", -1

        # A wrong label is no reason to leave an image out
        number = _label_number(item.label, name_of(row))
        if not renumbered or not 0 <= number < len(split_names):
            return pixels, number
        class_name = class_key(split_names[number])
        if class_name not in label_of:
            problem = (
                f"the {split} data has a class {class_name!r}, which the training data has not"
            )
            raise DataError(one_line(f"{name}: {problem}; both need the same classes"))
        return pixels, label_of[class_name]

    # Without a fingerprint, the key stays empty: nobody can say whether a cache still holds the
    # same images
    key = ""
    fingerprint = _fingerprint(dataset, columns)
    if fingerprint:
        shaping = (CACHE_LAYOUT, image_size, size, class_names, columns, fingerprint, len(dataset))
        key = hashlib.sha256(repr(shaping).encode()).hexdigest()
    return Pictures(
        split=split,
        items=range(len(dataset)),
        key=key,
        decode=decode_row,
        measure=measure,
        name_of=name_of,
    )


def _fingerprint(dataset: Any, columns: Columns) -> tuple[Any, ...]:
    """Return what changes with whatever changes the pictures of a data set; () if nothing tells.

    Hugging Face's data sets have a fingerprint. A class of somebody's own may hand on that of a
    data set that it wraps, whose items it changes.
    """
    fingerprint = getattr(dataset, "_fingerprint", None)
    if type(dataset).__module__.partition(".")[0] != "datasets" or not fingerprint:
        return ()

    # It knows the pictures in the data set's table, but of a file only the name
    files: dict[str, tuple[int, ...]] = {}
    for chunk in dataset.data.column(columns.picture).chunks:
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

    # No labels at all
    if missing.all():
        if class_names and split == "test":
            problem = "the test data has no labels, which the training data has"
            advice = "label it, or leave it out to hold out training images"
            raise DataError(f"{name}: {problem}; {advice}")
        return images

    # A label for each image, and a name for each label
    if missing.any():
        first = int(missing.nonzero()[0])
        problem = f"{split} image {first} has no label, unlike others"
        raise DataError(f"{name}: {problem}; leave out all or none")
    names = class_names or tuple(map(str, range(largest + 1)))
    if largest >= len(names):
        problem = f"a label is {largest} in {split}"
        raise DataError(f"{name}: {problem}, but there are {len(names)} classes, from 0")
    return replace(images, class_names=names)


class Item(NamedTuple):
    """An item of a data set.

    Attributes:
        picture: as it is.
        label: as it is; None without one.
        problem: why the picture cannot be used; "" if it can.
    """

    picture: Any
    label: Any
    problem: str


def _read_item(dataset: Any, row: int, columns: Columns) -> Item:
    """Read an item of a data set, whatever it is."""
    item = dataset[row]
    picture = item
    label = None
    problem = ""
    if isinstance(item, Mapping):
        picture = item.get(columns.picture)
        label = item.get(columns.label)
        needed = [columns.picture]
        if columns.declared and columns.label:
            needed.append(columns.label)
        for key in needed:
            if key not in item:
                problem = f"its keys are {', '.join(map(str, item))}; it needs {key!r}"
                break
    elif isinstance(item, tuple | list):
        picture = item[0] if item else None
        if len(item) > 1:
            label = item[1]
    if not problem:
        problem = _problem_of(picture)

    # Hugging Face's transforms and formats make something else of the pictures
    if problem and _is_formatted(dataset):
        problem = f"{problem}; hand over the data set as it is: with_format(None)"
    return Item(picture, label, problem)


def _is_formatted(dataset: Any) -> bool:
    """Return whether a Hugging Face data set, or that of a Subset, has a transform or a format."""
    if hasattr(dataset, "dataset"):
        return _is_formatted(dataset.dataset)
    layout = getattr(dataset, "format", None)
    return isinstance(layout, Mapping) and layout.get("type") is not None


def _problem_of(picture: Any) -> str:
    """Return why a picture has a form that cannot be used; "" if it can be used."""
    if isinstance(picture, Image.Image):
        return ""
    if not isinstance(picture, Tensor):
        return f"got {type(picture).__name__}; {PICTURE_NEEDED}"
    if picture.dtype != uint8 or picture.ndim != 3 or len(picture) not in (1, 3):
        return f"got {picture.dtype} {tuple(picture.shape)}; {PICTURE_NEEDED}"
    return ""


def _to_pil(picture: Image.Image | Tensor) -> Image.Image:
    """Turn a picture into Pillow's; a tensor is uint8 (1 or 3, H, W)."""
    if isinstance(picture, Image.Image):
        return picture
    pixels = np.ascontiguousarray(picture.permute(1, 2, 0).numpy())  # (H, W, 1 or 3)
    if len(picture) == 1:
        pixels = pixels[..., 0]
    return Image.fromarray(pixels)


def _label_number(label: Any, item_name: str) -> int:
    """Return a label as an integer; -1 for None and for a negative one.

    Raises:
        DataError: it is not an integer.
    """
    if label is None:
        return -1
    try:
        return max(operator.index(label), -1)
    except TypeError as error:
        problem = f"its label is {repr(label)[:60]} ({type(label).__name__})"
        raise DataError(f"{item_name}: {problem}; labels are integers from 0") from error
