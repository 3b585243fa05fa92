"""Where images come from, by the name in `data.source`.

The sources are CIFAR, a folder, Scenes, and a data set of the caller's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vit.config import DataConfig
from vit.data import Dataset, ImageSet, content_hash
from vit.data.folder import load_folder
from vit.data.images import hold_out, spread, spread_over_classes
from vit.errors import ConfigError, DataError, one_line
from vit.inputs import OWN, Preparation

SCENES_SEED = 0
"""The same pictures for every run, like any other data set."""

SCENES_COUNTS = {"train": 50_000, "test": 10_000}
"""Images of each split, as many as CIFAR has."""

Splits = tuple[ImageSet, ImageSet]
"""Training and test images."""


# --- the sources: (data section, (H, W), preparation) -> whole splits -----------------------------


class DataSource(NamedTuple):
    """A source of images.

    CIFAR and Scenes are always 32 x 32; the other sources' pictures are resized as requested.

    Attributes:
        title: name of the data in outputs; "" for the name of its folder.
        load: returns its images.
        fetch: downloads what is missing, before `load`; returns why the data is unavailable and
            what the user can do, "" if it is there.
    """

    title: str
    load: Callable[[DataConfig, tuple[int, int], Preparation], Splits]
    fetch: Callable[[DataConfig], str] = lambda config: ""


def _path(setting: str) -> Path:
    """Return a setting's path, with ~ for the user's home."""
    # unlike Path.expanduser, this raises nothing if the user is unknown
    return Path(os.path.expanduser(setting))


def _fetch_cifar(config: DataConfig) -> str:
    # with torchvision, which takes seconds to import
    from vit.data.cifar import fetch_cifar

    return fetch_cifar(config.source, _path(config.root), config.download)


def _load_cifar(config: DataConfig, image_size: tuple[int, int], prepared: Preparation) -> Splits:
    # with torchvision, which takes seconds to import
    from vit.data.cifar import load_cifar

    return load_cifar(config.source, _path(config.root))


def _load_folder(config: DataConfig, image_size: tuple[int, int], prepared: Preparation) -> Splits:
    root = _path(config.root)
    cache = _path(config.cache)
    return load_folder(root, image_size, config.on_bad_image, cache, prepared, config.unlabelled)


def _load_dataset(config: DataConfig, image_size: tuple[int, int], prepared: Preparation) -> Splits:
    problem = "only vit.fit(..., train=...) can hand over these images"
    raise DataError(f"data.source dataset: {problem}; do so, with resume=True")


def _load_scenes(config: DataConfig, image_size: tuple[int, int], prepared: Preparation) -> Splits:
    train_count = SCENES_COUNTS["train"]
    test_count = SCENES_COUNTS["test"]
    # draw no more than are used
    if config.limit:
        train_count = min(train_count, config.limit)
        test_count = min(test_count, config.limit)
    train = load_scenes(train_count, SCENES_SEED, "train")
    test = load_scenes(test_count, SCENES_SEED, "test")
    return train, test


def load_scenes(count: int, seed: int, split: Literal["train", "test"]) -> ImageSet:
    """Return the first `count` Scenes of a split, 32 x 32.

    Their part maps are `draw_scenes(scene_indices(count, split), seed)[2]`.

    Raises:
        ValueError: as in `scene_indices` and `draw_scenes`.
    """
    # 1,000 lines that no other data needs
    from vit.scenes import CLASS_NAMES, draw_scenes, scene_indices

    images, labels, _ = draw_scenes(scene_indices(count, split), seed)
    return ImageSet(images, labels, CLASS_NAMES, content_hash(images, labels))


SOURCES: dict[str, DataSource] = {
    "cifar10": DataSource("CIFAR-10", _load_cifar, fetch=_fetch_cifar),
    "cifar100": DataSource("CIFAR-100", _load_cifar, fetch=_fetch_cifar),
    "folder": DataSource("", _load_folder),
    "scenes": DataSource("Scenes", _load_scenes),
    "dataset": DataSource("", _load_dataset),
}


# --- from a source to the images of a run ---------------------------------------------------------


def load_data(
    config: DataConfig,
    image_size: tuple[int, int],
    dataset: Any = None,
    test_dataset: Any = None,
    prepared: Preparation = OWN,
) -> Dataset:
    """Load the images of `config.source`; apply `limit`, `val_size`, `labels` and `unlabelled`.

    Args:
        config: the data section.
        image_size: (H, W) of the model's input, which decides the size at which a folder's images
            are kept.
        dataset, test_dataset: map-style data sets that replace the source; see
            `vit.data.map_style.load_datasets`.
        prepared: how pictures of any size are cropped and resized. Anything but this package's own
            way makes the input of a model that expects it, not images to train on.

    Raises:
        DataError: the data is missing or cannot be read; the message is one line with the ways out.
        ConfigError: `val_size` holds out too many images.
    """
    if dataset is None and test_dataset is not None:
        advice = "hand over training data too (train=...); a source has test images of its own"
        raise DataError(f"test: {advice}")

    # The whole splits, from the caller's data set, or from a source
    source = config.source
    warning = None
    if dataset is not None:
        # 400 lines that no other data needs
        from vit.data.map_style import load_datasets

        source = "dataset"
        name = config.name or type(dataset).__name__
        train, test = load_datasets(dataset, test_dataset, config, image_size, name)
    else:
        name = config.name or SOURCES[source].title or Path(config.root).resolve().name
        problem = SOURCES[source].fetch(config)
        if problem and config.fallback != "scenes":
            advice = "Or give --data scenes (built in), or --data YOUR_IMAGES."
            raise DataError(f"{problem} {advice}")
        if problem:
            source = "scenes"
            warning = (
                f"{name} is not available, so this run uses the built-in Scenes images instead. "
                f"{problem}"
            )
            name = SOURCES[source].title
        train, test = SOURCES[source].load(config, image_size, prepared)

    # Which of them
    tested = [test.image_hashes] if config.unlabelled else []
    train, test = _limit(train, test, config, source)
    whole_content_hash = f"{train.content_hash}-{test.content_hash}"
    if config.val_size:
        train, test = _hold_out(train, test, config)
        tested.append(test.image_hashes)
    if config.labels < 1:
        train = _with_few_labels(train, config)
    if config.unlabelled:
        train = _without_tested(train, torch.cat(tested), name)

    # Images in both splits make a score of what was trained on
    copies = int(torch.isin(test.image_hashes, train.image_hashes).sum())
    return Dataset(
        name=name,
        source=source,
        train=train,
        test=test,
        warning=warning,
        held_out=config.val_size > 0,
        prepared=source == "folder" and prepared != OWN,
        whole_content_hash=whole_content_hash,
        copies=copies,
    )


def _limit(train: ImageSet, test: ImageSet, config: DataConfig, source: str) -> Splits:
    """Keep at most `config.limit` images of each split.

    Raises:
        DataError: none of those that are kept has a label, which others have.
    """
    if 0 < config.limit < len(train):
        train = train.subset(spread(len(train), config.limit, source))
    if 0 < config.limit < len(test):
        test = test.subset(spread(len(test), config.limit, source))
    if config.limit and not len(train.measurable()):
        raise DataError(f"data.limit: none of {config.limit:,} training images has a label")
    return train, test


def _hold_out(train: ImageSet, test: ImageSet, config: DataConfig) -> Splits:
    """Hold out `config.val_size` training images in place of the test images.

    Raises:
        ConfigError: more than half of the images with labels.
    """
    measurable = train.measurable()
    if config.val_size > len(measurable) // 2:
        kind = "training images"
        if len(measurable) < len(train):
            kind = "labelled training images"
        most = f"at most half of the {len(measurable):,} {kind}"
        raise ConfigError(f"data.val_size: {config.val_size} images cannot be held out; {most}")
    labels = train.labels[measurable]

    def choose(among: Tensor, most: int) -> Tensor:
        return spread_over_classes(labels[among], most, config.subset_seed, "holdout")

    held_out = torch.zeros(len(train), dtype=torch.bool)
    held_out[measurable] = hold_out(train.image_hashes[measurable], config.val_size, choose)
    # The files that were skipped in the training folder are listed once, with `train`
    test = replace(train.subset(held_out), skipped=test.skipped)
    return train.subset(~held_out), test


def _with_few_labels(train: ImageSet, config: DataConfig) -> ImageSet:
    """Keep `config.labels` of the labels; the other images leave, or lose theirs."""
    labelled = train.measurable()
    count = max(1, round(config.labels * len(labelled)))
    kept = spread_over_classes(train.labels[labelled], count, config.subset_seed, "labels")
    if config.unlabelled:
        return train.without_labels(labelled[~kept])
    return train.subset(labelled[kept])


def _without_tested(train: ImageSet, tested_hashes: Tensor, name: str) -> ImageSet:
    """Leave out images without labels that are tested on: only the others are to be learned.

    Args:
        train: training images, some of them without labels.
        tested_hashes: int64 (M,), of all test images, and of those held out.
        name: the data's name in messages.

    Raises:
        DataError: no image without a label is left.
    """
    has_label = train.labels >= 0
    is_tested = ~has_label & torch.isin(train.image_hashes, tested_hashes)
    if is_tested.any():
        train = train.subset(~is_tested)
        note = f"images without labels that are tested on are left out: {int(is_tested.sum()):,}"
        train = replace(train, notes=(*train.notes, note))
    if (train.labels >= 0).all():
        advice = "put them beside the class folders, or use fewer labels (data.labels)"
        problem = "there are no training images without labels"
        raise DataError(one_line(f"data.unlabelled: {name}: {problem}; {advice}"))
    return train
