"""Laws of a run's data: held-out images are not trained on, and are always the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny import noise, save_images
from torchvision.transforms.v2.functional import to_pil_image

from vit.config import DataConfig
from vit.data import Dataset, ImageSet
from vit.data.sources import load_data
from vit.errors import ConfigError, DataError

COUNTS = {"ape": 30, "bee": 18, "cat": 12}
TESTS = 3  # of each class


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Sixty training images and nine test images, each of a colour of its own, which names it."""
    root = tmp_path_factory.mktemp("loading") / "images"
    number = 0
    for split, counts in (("train", COUNTS), ("test", dict.fromkeys(COUNTS, TESTS))):
        for name, count in counts.items():
            colours = range(number, number + count)
            images = (np.full((4, 4, 3), colour, np.uint8) for colour in colours)
            save_images(root / split / name, images)
            number += count
    return root


def load(root: Path, **settings: object) -> Dataset:
    cache = str(root.parent / "cache")
    return load_data(DataConfig(source="folder", root=str(root), cache=cache, **settings), (4, 4))


def numbers(images: ImageSet) -> set[int]:
    """The colours of the images, which are their numbers."""
    colours = images.images[:, 0, 0, 0].tolist()
    assert len(colours) == len(set(colours)) == len(images)
    return set(colours)


def assert_stratified(images: ImageSet) -> None:
    """Each class has its share of the images, give or take one."""
    for label, total in enumerate(COUNTS.values()):
        assert abs(int((images.labels == label).sum()) - len(images) * total / 60) <= 1


@pytest.mark.parametrize("count", [1, 10, 30])
def test_held_out_images_are_not_trained_on_and_the_test_images_are_not_there(root, count):
    data = load(root)
    assert (numbers(data.train), numbers(data.test)) == (set(range(60)), set(range(60, 69)))
    assert (data.held_out, data.tested_on) == (False, "test images")
    data = load(root, val_size=count)
    train, aside = numbers(data.train), numbers(data.test)
    assert train | aside == set(range(60))
    assert (len(train), len(aside)) == (60 - count, count)
    assert_stratified(data.test)
    assert (data.held_out, data.tested_on) == (True, "held-out training images")
    assert data.content_hash == load(root, val_size=count).content_hash
    assert data.facts["whole_content_hash"] == load(root).content_hash != data.content_hash


@pytest.mark.parametrize("share", [0.001, 0.1, 0.9])
def test_a_share_of_the_labels_is_a_share_of_the_training_images(root, share):
    data = load(root, labels=share)
    full = load(root)
    count = max(1, round(share * 60))
    assert len(data.train) == count
    assert numbers(data.train) < numbers(full.train)
    assert_stratified(data.train)
    assert data.test.content_hash == full.test.content_hash
    # also of a class that has no image left
    assert data.train.class_names == ("ape", "bee", "cat")

    # with images held out, it is a share of the remaining ones
    limited = load(root, val_size=20, labels=share)
    assert len(limited.train) == max(1, round(share * 40))
    assert not numbers(limited.train) & numbers(load(root, val_size=20).test)


def test_scenes_stand_in_for_a_cifar_that_cannot_be_had(tmp_path):
    settings = dict(source="cifar10", root=str(tmp_path), download=False, limit=20)
    with pytest.raises(DataError, match="--data scenes"):
        load_data(DataConfig(**settings), (32, 32))
    data = load_data(DataConfig(**settings, fallback="scenes"), (32, 32))
    scenes = load_data(DataConfig(source="scenes", limit=20), (32, 32))
    assert (data.name, data.source, data.content_hash) == ("Scenes", "scenes", scenes.content_hash)
    assert data.warning.startswith("CIFAR-10 is not available")
    assert scenes.warning is None


def test_a_bad_image_counts_once_and_more_than_half_cannot_be_held_out(tmp_path):
    save_images(tmp_path / "root", noise(12).permute(0, 2, 3, 1).numpy())
    (tmp_path / "root" / "bad.png").write_bytes(b"bad")
    data = load(tmp_path / "root", val_size=4, on_bad_image="skip")
    assert data.facts["skipped"] == sum("left out" in note for note in data.notes) == 1
    with pytest.raises(ConfigError, match=r"^data\.val_size: "):
        load(tmp_path / "root", val_size=6, on_bad_image="skip")


# --- copies of an image ---------------------------------------------------------------------------


@pytest.fixture
def doubled(tmp_path) -> Path:
    """Thirty images of noise in three classes, each twice, as a PNG and as a BMP."""
    for number, image in enumerate(noise(30, size=(4, 4))):
        picture = to_pil_image(image)
        path = tmp_path / "doubled" / "abc"[number % 3]
        path.mkdir(parents=True, exist_ok=True)
        picture.save(path / f"{number:02}.png")
        picture.save(path / f"{number:02} (copy).bmp")
    return tmp_path / "doubled"


def shared_images(data: Dataset) -> int:
    """The number of test images whose pixels are among the training images."""
    train = {pixels.numpy().tobytes() for pixels in data.train.images}
    return sum(pixels.numpy().tobytes() in train for pixels in data.test.images)


@pytest.mark.parametrize("settings", [{}, dict(val_size=12), dict(limit=40, val_size=6)], ids=str)
def test_copies_of_an_image_are_never_trained_and_measured_on(doubled, settings):
    # the second time from the cache
    for _ in range(2):
        data = load(doubled, **settings)
        assert shared_images(data) == data.facts["test_images_in_train"] == 0
        assert 0 < len(data.test) <= 18
    if not settings:
        assert (len(data.train), len(data.test)) == (54, 6)
        assert [note for note in data.notes if "30 are copies of another image" in note]
    # those of a caller's data set, too
    items = [(image, number % 3) for number, image in enumerate(noise(30, size=(4, 4)))] * 2
    config = DataConfig(cache=str(doubled.parent / "cache"), **settings)
    assert shared_images(load_data(config, (4, 4), items)) == 0


@pytest.mark.parametrize("shared", [0, 2, 6])
def test_images_that_are_in_both_splits_are_counted_in_one_line(tmp_path, shared):
    pixels = noise(16, size=(4, 4)).permute(0, 2, 3, 1).numpy()
    save_images(tmp_path / "root" / "train" / "a", pixels[:10])
    save_images(tmp_path / "root" / "test" / "a", pixels[10 - shared : 16 - shared])
    data = load(tmp_path / "root")
    assert data.facts["test_images_in_train"] == shared_images(data) == shared
    notes = [note for note in data.notes if "training images too" in note]
    assert len(notes) == (shared > 0)
    if shared:
        assert notes[0].startswith(f"{shared} of the 6 test images")
    assert data.facts["notes"] == data.notes
