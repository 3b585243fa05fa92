"""Where images come from, by the name in `data.source`.

The sources are CIFAR, a folder, Scenes, and a data set of the caller's.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from vit.config import DataConfig, user_path
from vit.data import Dataset, ImageSet
from vit.data.folder import load_folder
from vit.data.images import (
    counts_of_classes,
    hold_out,
    lowest_of_classes,
    spread,
    with_test_images,
)
from vit.errors import DataError
from vit.inputs import OWN, Preparation
from vit.weights import NO_IMAGES, class_key

logger = logging.getLogger(__name__)

SCENES_SEED = 0
"""The same images for every run, like any other data set."""

SCENES_COUNTS = (50_000, 10_000)
"""Images of the training and the test split, as many as CIFAR has."""
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "scenes": "Scenes"}
"""Names of the data in outputs; that of a folder is its own."""


def load_data(
    config: DataConfig,
    image_size: tuple[int, int],
    dataset: Any = None,
    test_dataset: Any = None,
    prepared: Preparation = OWN,
    trained_on: Tensor = NO_IMAGES,
) -> Dataset:
    """Load the images of `config.source`; apply `limit`, `val_size` and `labels`.

    Args:
        config: the data section.
        image_size: (H, W) of the model's input, which decides the size at which a folder's images
            are kept.
        dataset, test_dataset: map-style data sets that replace the source; see
            `vit.data.map_style.load_datasets`.
        prepared: how images of any size are cropped and resized. Any way but this package's own
            gives the input of a model that expects it, not images to train on.
        trained_on: hashes of a model's training images, int64 (M,). If some are among the training
            images here, `val_size` holds out some of the others, which that model has not seen.
    """
    # The whole splits, from the caller's data set, or from a source; none imports what another
    # needs, of which torchvision takes seconds
    source = config.source
    root = user_path(config.root)
    name = config.name or TITLES.get(source) or class_key(root.resolve().name)
    warning = None
    if dataset is not None:
        source = "dataset"
    elif source == "dataset" or test_dataset is not None:
        raise DataError(
            "pass these images in Python: vit.fit(..., train=...), and optionally test=..."
        )
    if source.startswith("cifar"):
        from vit.data.cifar import fetch_cifar

        problem = fetch_cifar(source, root, config.download)
        if problem:
            if config.fallback == "stop":
                advice = "use --data scenes (built in) or --data YOUR_IMAGES"
                raise DataError(f"{name} {problem}; put it there by hand, or {advice}")
            source = "scenes"
            warning = f"{name} {problem}, so this run draws the built-in Scenes images instead."
            logger.warning("%s", warning)
            name = TITLES[source]
    if source == "dataset":
        from vit.data.map_style import load_datasets

        name = config.name or type(dataset).__name__
        splits = load_datasets(dataset, test_dataset, config, image_size, name)
    elif source == "folder":
        cache = user_path(config.cache, "data.cache")
        splits = load_folder(root, image_size, config.on_bad_image, cache, prepared)
    elif source == "scenes":
        # no more than are used
        counts = [min(count, config.limit or count) for count in SCENES_COUNTS]
        train = load_scenes(counts[0], "train")
        test = load_scenes(counts[1], "test")
    else:
        from vit.data.cifar import load_cifar

        train, test = load_cifar(source, root)
    # splits of the user's, of which the second may be missing
    is_own = source in ("dataset", "folder")
    if is_own:
        train, test = with_test_images(*splits, image_size)

    # Which of them
    train, test = (
        split.subset(spread(len(split), config.limit, source))
        if 0 < config.limit < len(split)
        else split
        for split in (train, test)
    )
    whole_content_hash = f"{train.content_hash}-{test.content_hash}"
    tested_on = "test images"
    if config.val_size:
        tested_on = "held-out training images"
        held_out = ~torch.isin(train.image_hashes, trained_on)
        unseen = int(held_out.sum())
        problem = ""
        if not unseen:
            problem = f"the model was trained on all {len(train):,} training images"
        elif min(config.val_size, unseen) >= len(train):
            left = f"none of the {len(train):,} training images"
            problem = f"val_size {config.val_size:,} leaves {left}"
        if problem:
            raise DataError(f"{name}: {problem}; leave val_size out, to use the test images")
        # as many as requested, or all that it has not seen if these are fewer
        if config.val_size < unseen:
            hashes = train.image_hashes[held_out]
            share = config.val_size / unseen
            held_out[held_out.clone()] = hold_out(hashes, train.labels[held_out], share, "val_size")
        # the files that were skipped in the training folder are listed once, with `train`
        test = replace(train.subset(held_out), skipped=test.skipped, notes=())
        train = train.subset(~held_out)
    if config.labels < 1:
        count = max(1, round(config.labels * len(train)))
        chosen = lowest_of_classes(train.image_hashes, train.labels, count, "labels", 0)
        train = train.subset(chosen)
    # of the images that are left, as the run uses no others
    if is_own:
        measured = "held-out" if config.val_size else "test"
        of_classes = counts_of_classes(train, test, measured)
        train = replace(train, notes=(*train.notes, *of_classes))
    return Dataset(
        name=name,
        source=source,
        train=train,
        test=test,
        warning=warning,
        tested_on=tested_on,
        is_chosen=config.val_size > 0 or (is_own and splits[1] is None),
        prepared=source == "folder" and prepared != OWN,
        whole_content_hash=whole_content_hash,
        # with images in both splits, a score measures what was trained on
        copies=int(torch.isin(test.image_hashes, train.image_hashes).sum()),
    )


def load_scenes(count: int, split: Literal["train", "test"]) -> ImageSet:
    """Return the first `count` Scenes of a split, 32 x 32.

    Their part maps are `draw_scenes(scene_indices(count, split), SCENES_SEED)[2]`.
    """
    # which no other data needs
    from vit.scenes import CLASS_NAMES, draw_scenes, scene_indices

    images, labels, _ = draw_scenes(scene_indices(count, split), SCENES_SEED)
    return ImageSet.in_memory(images, labels, CLASS_NAMES)
