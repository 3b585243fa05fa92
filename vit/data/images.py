"""Choose images of a data set: some held out, a fraction of every class, a few of many.

Whether an image is held out depends on the hash of its pixels alone: when others are added, removed
or renamed, it stays on its side, and copies of one image are on one side.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vit.config import BUILT_IN
from vit.data import Dataset, ImageSet
from vit.data.draws import make_generator
from vit.errors import DataError
from vit.inputs import evenly_spaced

NAMED_CLASSES = 12
"""The most classes that a note names."""
FOLDS = 5
"""Of a cross-validation."""
TEST_SHARE = 0.1
"""The fraction of a data set without test images that is held out as such."""


# --- a few of many --------------------------------------------------------------------------------


def spread(count: int, most: int, source: str = "folder") -> Tensor:
    """Return int64 (M,), M = min(count, most) of the indices of a source's images; 0: all of them.

    Evenly spaced ones are a fair choice from a built-in data set, which is shuffled. Elsewhere
    names or classes may repeat with a period: there one is drawn from each of M stretches, always
    the same one.
    """
    starts = evenly_spaced(count, most)
    if source in BUILT_IN:
        return starts
    lengths = starts.diff(append=torch.tensor([count]))
    shares = torch.rand(len(starts), generator=make_generator(0, "spread"))
    return starts + (shares * lengths).long()


# --- by the image alone ---------------------------------------------------------------------------


def places(image_hashes: Tensor, purpose: str, seed: int) -> Tensor:
    """Return float64 (N,), each image's place from 0 to below 1: random, but always the same.

    It depends on the image alone: copies have the same. Each purpose and seed draws its own.

    Args:
        image_hashes: int64 (N,), as in `ImageSet`.
    """
    salt = f"{purpose} {seed} ".encode()
    keys = image_hashes.numpy().astype("<i8")
    digests = [hashlib.sha256(salt + key.tobytes()).digest()[:8] for key in keys]
    # the first 53 bits, as many as float64 holds
    integers = np.frombuffer(b"".join(digests), "<u8") >> np.uint64(11)
    return torch.from_numpy(integers / 2**53)


def hold_out(
    image_hashes: Tensor, labels: Tensor, share: float, purpose: str, seed: int = 0
) -> Tensor:
    """Choose the images to hold out: those with a place below `share`.

    A class without such an image gives its lowest. The highest of each class always stays: a class
    is never held out as a whole.

    Args:
        image_hashes, labels: int64 (N,), as in `ImageSet`.
        share: the approximate fraction of the images; each class's fraction differs by chance.
        purpose, seed: of the random places.

    Returns:
        bool (N,).
    """
    place = places(image_hashes, purpose, seed)
    # (classes,), the first of them "no label"; a class without images keeps -1, which is no place
    classes = labels + 1
    unset = place.new_full((int(classes.max()) + 1,), -1)
    lowest = unset.scatter_reduce(0, classes, place, "amin", include_self=False)
    highest = unset.scatter_reduce(0, classes, place, "amax", include_self=False)
    # copies have one place
    return ((place < share) | torch.isin(place, lowest)) & ~torch.isin(place, highest)


def lowest_of_classes(
    image_hashes: Tensor, labels: Tensor, count: int, purpose: str, seed: int
) -> Tensor:
    """Choose images in proportion to the classes, in each class those with the lowest places.

    Each class gives at least one, while they suffice. A larger choice includes every smaller one.

    Args:
        image_hashes, labels: int64 (N,), as in `ImageSet`.
        count: from 0 to N.
        purpose, seed: of the random places.

    Returns:
        bool (N,), `count` of them True, and copies of these.
    """
    place = places(image_hashes, purpose, seed).numpy()
    # the images, class by class, each class from its lowest place on
    classes = (labels + 1).numpy()
    order = np.lexsort((place, classes))
    sizes = np.bincount(classes)
    first = np.cumsum(sizes) - sizes
    # the relative position of each in its class: 0 for the first, so that all classes begin
    share = (np.arange(len(order)) - first[classes[order]]) / sizes[classes[order]]
    chosen = order[np.lexsort((place[order], share))[:count]]
    return torch.from_numpy(np.isin(place, place[chosen]))


def in_folds(image_hashes: Tensor, labels: Tensor, seed: int) -> Tensor:
    """Deal images into FOLDS folds of about one size, those of each class into different ones.

    Args:
        image_hashes, labels: int64 (N,), as in `ImageSet`.

    Returns:
        int64 (N,), each image's fold, which is also that of its copies.
    """
    bounds = [number * len(labels) // FOLDS for number in range(1, FOLDS)]
    # a larger choice includes the smaller ones
    beyond = [~lowest_of_classes(image_hashes, labels, bound, "folds", seed) for bound in bounds]
    return torch.stack(beyond).sum(0)


# --- training and test images ---------------------------------------------------------------------


def with_test_images(
    train: ImageSet, test: ImageSet | None, image_size: tuple[int, int]
) -> tuple[ImageSet, ImageSet]:
    """Return training and test images, with notes on both at the training images.

    Args:
        train, test: with class names; without `test`, some of `train` are held out.
        image_size: (H, W) of the model's input.
    """
    notes = []
    total = len(train)
    copies = total - len(train.image_hashes.unique())
    if copies:
        notes.append(f"{copies:,} of the {total:,} images are copies of another image")
    notes += in_two_classes(train)
    if test is None:
        held_out = hold_out(train.image_hashes, train.labels, TEST_SHARE, "test")
        if not held_out.any():
            raise DataError(
                "none can be held out as a test image: each class has one image, or copies of one"
            )
        count = int(held_out.sum())
        notes.insert(0, f"no test images: {count:,} of the {total:,} images are held out")
        # what was left out is noted once, with the training images
        test = replace(train.subset(held_out), skipped=(), notes=())
        train = train.subset(~held_out)

    height, width = train.images.shape[-2:]
    size = f"{width} x {height}; the model's input is {image_size[1]} x {image_size[0]}"
    notes.append(f"images are kept at {size}")
    return replace(train, notes=(*notes, *train.notes)), test


def counts_of_classes(train: ImageSet, test: ImageSet, measured: str) -> list[str]:
    """Return a line on how many images the first classes have; none without classes.

    Args:
        train, test: with the same class names.
        measured: the kind of images in `test`, as text.
    """
    if not train.class_names:
        return []
    rows = []
    for label, class_name in enumerate(train.class_names[:NAMED_CLASSES]):
        of_class = [(split.labels == label).sum() for split in (train, test)]
        rows.append(f"{class_name}: {of_class[0]:,} + {of_class[1]:,}")
    if len(train.class_names) > NAMED_CLASSES:
        rows.append(f"{len(train.class_names) - NAMED_CLASSES:,} other classes")
    return [f"training + {measured} images of each class: {', '.join(rows)}"]


def in_two_classes(images: ImageSet) -> list[str]:
    """Return a line on the images that have a copy with another label; none without any."""
    # each image once with each of its labels
    pairs = torch.stack([images.image_hashes, images.labels]).unique(dim=1)
    hashes, counts = pairs[0].unique(return_counts=True)
    twice = torch.isin(images.image_hashes, hashes[counts > 1])
    if not twice.any():
        return []
    example = images.image_hashes == images.image_hashes[twice][0]
    named = []
    for number in example.nonzero().flatten().tolist():
        file = images.files[number] if images.files else f"item {number}"
        named.append(f"{file} ({images.label_names[number]})")
    return [
        f"{int(twice.sum()):,} images have copies in another class, e.g. {', '.join(named[:4])}"
    ]


def seen_by(trained_on: Tensor, data: Dataset) -> list[str]:
    """Return a line on the test images that a model was trained on; none if there are none.

    Args:
        trained_on: hashes of its training images, int64 (M,): `vit.weights.Origin.trained_on`.
        data: with the test images.
    """
    count = int(torch.isin(data.test.image_hashes, trained_on).sum())
    if not count:
        return []
    meaning = "this model was trained on: scores on them are not those of new images"
    return [f"{count:,} of the {len(data.test):,} {data.tested_on} are images that {meaning}"]
