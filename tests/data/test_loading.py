"""The data of a run: what is held out is not trained on, what has a label is, and the test images are not there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from tiny import save_images

from vit.config import DataConfig, Source
from vit.data import Dataset, ImageSet
from vit.data.sources import SOURCES, load_data
from vit.errors import ConfigError, DataError

COUNTS = {"ape": 30, "bee": 18, "cat": 12}
TESTS = 3  # of each class


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Sixty training images and nine test images, each of a colour of its own, which names it."""
    root, number = tmp_path_factory.mktemp("loading") / "images", 0
    for split in ("train", "test"):
        for name, count in COUNTS.items():
            count = count if split == "train" else TESTS
            colours = range(number, number + count)
            save_images(
                root / split / name, (np.full((4, 4, 3), colour, np.uint8) for colour in colours)
            )
            number += count
    return root


def load(root: Path, **settings: object) -> Dataset:
    return load_data(
        DataConfig(source="folder", root=str(root), cache=str(root.parent / "cache"), **settings),
        (4, 4),
    )


def numbers(images: ImageSet) -> set[int]:
    found = images.images[:, 0, 0, 0].tolist()
    assert len(found) == len(set(found)) == len(images)
    return set(found)


def classes(images: ImageSet) -> list[int]:
    counts = Counter(images.labels.tolist())
    return [counts[label] for label in range(3)]


@pytest.mark.parametrize("count", [1, 10, 30])
def test_held_out_images_are_not_trained_on_and_the_test_images_are_not_there(root, count):
    data = load(root)
    assert (numbers(data.train), numbers(data.test)) == (set(range(60)), set(range(60, 69)))
    assert (data.held_out, data.tested_on) == (False, "test images")
    data = load(root, val_size=count)
    train, aside = numbers(data.train), numbers(data.test)
    assert train | aside == set(range(60))
    assert (len(train), len(aside)) == (60 - count, count)
    for found, whole in zip(classes(data.test), COUNTS.values(), strict=True):
        assert abs(found - count * whole / 60) <= 1
    assert (data.held_out, data.tested_on) == (True, "held-out training images")
    assert "held-out" in data.description
    assert data.content_hash != load(root).content_hash


@pytest.mark.parametrize("share", [0.001, 0.1, 0.9])
def test_a_share_of_the_labels_is_a_share_of_the_training_images(root, share):
    data, whole = load(root, labels=share), load(root)
    count = max(1, round(share * 60))
    assert len(data.train) == count
    assert numbers(data.train) < numbers(whole.train)
    for found, of_class in zip(classes(data.train), COUNTS.values(), strict=True):
        assert abs(found - count * of_class / 60) <= 1
    assert data.test.content_hash == whole.test.content_hash
    assert data.train.class_names == ("ape", "bee", "cat")  # also of a class that has no image left
    both, aside = (
        load(root, val_size=20, labels=share),
        load(root, val_size=20),
    )  # of what is not held out
    assert both.test.content_hash == aside.test.content_hash
    assert numbers(both.train) < numbers(aside.train)
    assert len(both.train) == max(1, round(share * 40))


@pytest.mark.parametrize("settings", [dict(val_size=20), dict(labels=0.5)], ids=str)
def test_subset_seed_draws_which(root, settings):
    one, again, other = (load(root, subset_seed=seed, **settings) for seed in (0, 0, 1))
    assert one.content_hash == again.content_hash != other.content_hash
    assert (
        one.facts["whole_content_hash"]
        == other.facts["whole_content_hash"]
        == load(root).content_hash
    )
    assert classes(one.train) == classes(other.train)


@pytest.mark.parametrize(("val_size", "limit"), [(31, 0), (6, 10)])
def test_more_than_half_cannot_be_held_out(root, val_size, limit):
    with pytest.raises(
        ConfigError, match=r"^data\.val_size: \d+ .*at most half of the \d+ training images$"
    ):
        load(root, val_size=val_size, limit=limit)
    assert len(load(root, val_size=5, limit=10).train) == 5


def test_the_folder_of_nobody_is_none():
    with pytest.raises(DataError, match=r"^~nobody-here/pictures: no such folder"):
        load_data(DataConfig("folder", "~nobody-here/pictures"), (32, 32))


def test_scenes_stand_in_for_a_cifar_that_cannot_be_had(tmp_path):
    assert set(SOURCES) == set(get_args(Source))
    settings = dict(source="cifar10", root=str(tmp_path), download=False, limit=20)
    with pytest.raises(DataError, match=r"CIFAR10 is not in .* Or give --data scenes"):
        load_data(DataConfig(**settings), (32, 32))
    data = load_data(DataConfig(**settings, fallback="scenes"), (32, 32))
    scenes = load_data(DataConfig(source="scenes", limit=20), (32, 32))
    assert (data.name, data.source, data.content_hash) == ("Scenes", "scenes", scenes.content_hash)
    assert data.warning.startswith(
        "CIFAR-10 is not available, so this run uses the built-in Scenes images instead. "
    )
    assert scenes.warning is None
