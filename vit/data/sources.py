"""Where images come from, by the name in `data.source`: CIFAR, a folder, Scenes, or a data set of the caller's."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vit.config import DataConfig
from vit.data import Dataset
from vit.data.folder import load_folder
from vit.data.images import (
    CifarUnavailable,
    ImageSet,
    content_hash,
    evenly_spaced,
    spread_at_random,
    spread_over_classes,
)
from vit.errors import ConfigError, DataError
from vit.inputs import OWN, Preparation

SCENES_SEED = 0  # the same pictures for every run, like any other data set

# --- the sources: (data section, (H, W), preparation) -> training and test images, whole -----------------------------------


class DataSource(NamedTuple):
    """A source of images. CIFAR and Scenes are always 32 x 32; the other sources' pictures are resized as requested."""

    title: str  # name of the data in outputs; "" for the name of its folder
    load: Callable[[DataConfig, tuple[int, int], Preparation], tuple[ImageSet, ImageSet]]
    pictures: bool = False  # whether it holds pictures of any size, to be decoded


def _cifar(
    config: DataConfig, image_size: tuple[int, int], prepared: Preparation
) -> tuple[ImageSet, ImageSet]:
    from vit.data.cifar import load_cifar  # with torchvision, which takes seconds to import

    return load_cifar(config.source, Path(os.path.expanduser(config.root)), config.download)


def _folder(
    config: DataConfig, image_size: tuple[int, int], prepared: Preparation
) -> tuple[ImageSet, ImageSet]:
    root, cache = (Path(os.path.expanduser(path)) for path in (config.root, config.cache))
    return load_folder(root, image_size, config.on_bad_image, cache, prepared)


def _dataset(
    config: DataConfig, image_size: tuple[int, int], prepared: Preparation
) -> tuple[ImageSet, ImageSet]:
    raise DataError(
        "data.source dataset: only vit.fit(..., dataset=...) can hand over these images; do so, with resume=True"
    )


def _scenes(
    config: DataConfig, image_size: tuple[int, int], prepared: Preparation
) -> tuple[ImageSet, ImageSet]:
    train_count, test_count = 50_000, 10_000
    if config.limit:  # draw no more than are used
        train_count = min(train_count, config.limit)
        test_count = min(test_count, config.limit)
    return load_scenes(train_count, SCENES_SEED, "train"), load_scenes(
        test_count, SCENES_SEED, "test"
    )


def load_scenes(count: int, seed: int, split: Literal["train", "test"]) -> ImageSet:
    """Return the first `count` Scenes of a split, 32 x 32.

    Their part maps are `draw_scenes(scene_indices(count, split), seed)[2]`.

    Raises:
        ValueError: as in `scene_indices` and `draw_scenes`.
    """
    from vit.scenes import (  # 850 lines that no other data needs
        CLASS_NAMES,
        draw_scenes,
        scene_indices,
    )

    images, labels, _ = draw_scenes(scene_indices(count, split), seed)
    return ImageSet(images, labels, CLASS_NAMES, content_hash(images, labels))


SOURCES: dict[str, DataSource] = {
    "cifar10": DataSource("CIFAR-10", _cifar),
    "cifar100": DataSource("CIFAR-100", _cifar),
    "folder": DataSource("", _folder, pictures=True),
    "scenes": DataSource("Scenes", _scenes),
    "dataset": DataSource("", _dataset),
}


def load_data(
    config: DataConfig,
    image_size: tuple[int, int],
    dataset: Any = None,
    test_dataset: Any = None,
    prepared: Preparation = OWN,
) -> Dataset:
    """Load the images of `config.source`, and apply `limit`, `val_size` and `labels`.

    Args:
        config: the data section.
        image_size: (H, W) of the model's input, which decides the size at which a folder's images are kept.
        dataset, test_dataset: map-style data sets that replace the source; see `vit.data.map_style.load_datasets`.
        prepared: how pictures of any size are cropped and resized. Anything but this package's own way makes the input of
            a model that expects it, not images to train on.

    Raises:
        DataError: the data is missing or cannot be read; the message is one line with the ways out.
        ConfigError: `val_size` holds out too many images.
    """
    # The images, or Scenes if CIFAR is unavailable
    if dataset is None and test_dataset is not None:
        raise DataError(
            "test_dataset: hand over training data too (dataset=...); a source has test images of its own"
        )
    source, warning = config.source, None
    name = config.name or SOURCES[source].title or Path(config.root).resolve().name
    try:
        if dataset is None:
            train, test = SOURCES[source].load(config, image_size, prepared)
        else:
            from vit.data.map_style import load_datasets  # with torch's DataLoader

            source, name = "dataset", config.name or type(dataset).__name__
            train, test = load_datasets(dataset, test_dataset, config, image_size, name)
    except CifarUnavailable as error:
        if config.fallback != "scenes":
            ways = "Or give --data scenes (built in), or --data YOUR_IMAGES."
            raise DataError(f"{error} {ways}") from error
        source, wanted, name = "scenes", name, SOURCES["scenes"].title
        warning = f"{wanted} is not available, so this run uses the built-in {name} images instead. {error}"
        train, test = SOURCES[source].load(config, image_size, prepared)

    # Limit both splits
    spread = spread_at_random if source == "dataset" else evenly_spaced
    if 0 < config.limit < len(train):
        train = train.subset(spread(len(train), config.limit))
    if 0 < config.limit < len(test):
        test = test.subset(spread(len(test), config.limit))
    whole_content_hash = f"{train.content_hash}-{test.content_hash}"

    # Hold out training images in place of the test images
    if config.val_size:
        if config.val_size > len(train) // 2:
            most = f"at most half of the {len(train):,} training images"
            raise ConfigError(f"data.val_size: {config.val_size} images cannot be held out; {most}")
        aside = spread_over_classes(train.labels, config.val_size, config.subset_seed, "holdout")
        train, test = (
            train.subset(~aside),
            replace(train.subset(aside), skipped=test.skipped),
        )  # each file once

    # Keep only the images whose labels may be used
    if config.labels < 1:
        count = max(1, round(config.labels * len(train)))
        train = train.subset(spread_over_classes(train.labels, count, config.subset_seed, "labels"))
    pictures = SOURCES[source].pictures and prepared != OWN
    return Dataset(
        name, source, train, test, warning, config.val_size > 0, pictures, whole_content_hash
    )
