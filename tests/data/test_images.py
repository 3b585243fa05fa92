"""Laws of image sets and of which images are used: hashes, seeds, copies, held-out images."""

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from tiny import noise, save_images, seeded
from torchvision.transforms.v2.functional import to_pil_image

from vit import data as data_module
from vit.config import DataConfig
from vit.data import Dataset, ImageSet, content_hash
from vit.data.images import FOLDS, hold_out, in_folds, lowest_of_classes
from vit.data.sources import load_data
from vit.errors import DataError
from vit.weights import match_classes

LABELS = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)[torch.randperm(100, generator=seeded())]


def image_set(labels: list[int], class_names: tuple[str, ...]) -> ImageSet:
    """Images whose pixels all have the image's number."""
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2)
    return tiny.image_set(images, class_names, labels)


def test_showcase_shows_every_class_even_when_they_are_not_quite_equal():
    labels = [0] * 98 + [1] * 103 + [2] * 99
    images = image_set([labels[i * 7 % 300] for i in range(300)], ("a", "b", "c"))
    for count in (3, 6, 30):
        assert images.labels[images.showcase(count)].bincount().tolist() == [count // 3] * 3


def test_content_hash_knows_pixels_labels_and_shape():
    original = image_set([0, -1, 1], ("a", "b"))
    images = original.images.clone()
    labels = original.labels.clone()
    assert content_hash(images, labels) == original.content_hash
    assert content_hash(images.view(3, 3, 4, 1), labels) != original.content_hash
    assert content_hash(images, 1 - labels) != original.content_hash
    images[2, 0, 1, 1] += 1
    assert content_hash(images, labels) != original.content_hash
    part = original.subset(torch.tensor([2, 1]))
    assert part.label_names == ["b", ""]
    assert part.content_hash == content_hash(part.images, part.labels) != original.content_hash


def test_a_large_part_of_a_set_is_no_copy_and_has_the_same_images_and_hashes(monkeypatch):
    images = image_set([number % 3 for number in range(50)], ("a", "b", "c"))
    hashes = images.image_hashes
    for indices in (torch.tensor([7, 3, 44]), torch.arange(50) % 3 > 0):
        copy = images.subset(indices)
        with monkeypatch.context() as patch:
            patch.setattr(data_module, "LARGE", 0)
            part = images.subset(indices)
        assert isinstance(part.images, data_module.Rows)
        assert torch.equal(part.images[:], copy.images)
        assert (part.content_hash, part.label_names) == (copy.content_hash, copy.label_names)
        assert torch.equal(part.image_hashes, hashes[indices])
        assert torch.equal(part.subset(torch.tensor([1, 0])).images[:], copy.images[[1, 0]])


# --- by the image alone ---------------------------------------------------------------------------

IMAGES = torch.arange(2000) ** 3


def held(images: torch.Tensor, share: float = 0.1, purpose: str = "test") -> set[int]:
    """Which of the images, each a number, are held out."""
    return set(images[hold_out(images, images % 7, share, purpose)].tolist())


def test_what_is_held_out_stays_so_whatever_happens_to_other_images():
    before = held(IMAGES)
    assert 150 < len(before) < 250
    for after in (IMAGES[1:], IMAGES[:-1], IMAGES[IMAGES % 5 > 0], IMAGES.flip(0)):
        # neither side changes: no class needs another image
        assert held(after) == before & set(after.tolist())
    assert held(IMAGES, 0.1, "val_size") != before < held(IMAGES, 0.2)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_each_class_has_an_image_on_both_sides_and_only_needs_move_one(count):
    """Small classes, of which an only image is trained on; then each image is removed in turn."""
    images = IMAGES[1 : 7 * count + 1]
    before = held(images)
    # a cube's remainders; seven images have one of 0
    for label in (0, 1, 6):
        of_class = set(images[images % 7 == label].tolist())
        assert of_class - before
        assert len(of_class) < 2 or of_class & before
    for gone in images.tolist():
        rest = images[images != gone]
        came = held(rest) - before
        # its class had no other test image
        assert len(came) <= (gone in before)
        assert all(image % 7 == gone % 7 for image in came)


def test_a_larger_choice_includes_the_smaller_and_another_seed_or_purpose_has_its_own():
    def chosen(count: int, seed: int = 3, purpose: str = "labels") -> set[int]:
        mask = lowest_of_classes(IMAGES[:100], LABELS, count, purpose, seed)
        return set(mask.nonzero()[:, 0].tolist())

    assert chosen(10) < chosen(40)
    assert [len(chosen(count)) for count in (0, 1, 10, 100)] == [0, 1, 10, 100]
    assert chosen(10) not in (chosen(10, 4), chosen(10, 3, "holdout"))


def test_folds_keep_copies_together_and_part_the_images_of_each_class():
    labels = torch.cat([LABELS, torch.tensor([3, 3, 4]), LABELS[:9]])
    hashes = torch.cat([IMAGES[:103], IMAGES[:9]])
    labels[-1] = 4  # a copy in another class
    folds = in_folds(hashes, labels, 0)
    assert torch.equal(folds[-9:], folds[:9])
    for label in range(3):
        assert folds[labels == label].bincount(minlength=FOLDS).min() >= 3
    assert folds[100] != folds[101]  # two images of a class
    # they go by content, and by seed
    turned = in_folds(hashes.flip(0), labels.flip(0), 0)
    assert torch.equal(turned, folds.flip(0))
    assert not torch.equal(in_folds(hashes, labels, 1), folds)


@pytest.mark.parametrize("sizes", [(1000, 12, 12), (5,) * 40, (1, 1, 300)])
def test_each_class_has_a_label_while_they_suffice(sizes):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    hashes = torch.arange(len(labels))
    for count in (len(sizes) // 2, len(sizes), 2 * len(sizes), len(labels) // 2):
        chosen = labels[lowest_of_classes(hashes, labels, count, "labels", 0)]
        assert len(chosen) == count
        assert len(chosen.unique()) == min(count, len(sizes))


NUMBERS = tuple(map(str, range(12)))
SORTED = [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("names", "wanted", "order"),
    [
        (("bee", "caf\u00e9"), ("cafe\u0301", "bee"), [1, 0]),
        ((), tuple(sorted(NUMBERS)), SORTED),
        ((), ("ape", "bee"), None),
        (("ape", "bee"), ("ape", "bee", "cat"), None),
        (("crane", "crane"), ("crane", "crane"), [0, 1]),
        (("crane", "crane", "ape"), ("ape", "crane", "crane"), None),
    ],
)
def test_classes_are_matched_by_name_whatever_their_order(names, wanted, order):
    assert match_classes(names, wanted) == order


# --- the images of a run --------------------------------------------------------------------------

COUNTS = {"ape": 30, "bee": 18, "cat": 12}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Sixty training images and nine test images, each of a colour of its own, which names it."""
    root = tmp_path_factory.mktemp("loading") / "images"
    number = 0
    for split, counts in (("train", COUNTS), ("test", dict.fromkeys(COUNTS, 3))):
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


def test_held_out_images_are_not_trained_on_and_the_test_images_are_not_there(root):
    data = load(root)
    assert (numbers(data.train), numbers(data.test)) == (set(range(60)), set(range(60, 69)))
    assert data.tested_on == "test images"
    whole = data.content_hash
    for count in (1, 10, 30):
        data = load(root, val_size=count)
        assert numbers(data.train) | numbers(data.test) == set(range(60))
        assert len(data.train) + len(data.test) == 60
        # by chance, but each class has some
        assert abs(len(data.test) - count) < 15
        assert len(data.test.labels.unique()) == 3
        assert data.tested_on == "held-out training images"
        assert data.content_hash == load(root, val_size=count).content_hash
        assert data.facts["whole_content_hash"] == whole != data.content_hash
    with pytest.raises(DataError, match="val_size 60 leaves none of the 60 training images"):
        load(root, val_size=60)
    # of images that a model has seen, it holds out the others
    seen = load(root).train.image_hashes[:40]
    cache = str(root.parent / "cache")
    config = DataConfig(source="folder", root=str(root), cache=cache, val_size=60)
    data = load_data(config, (4, 4), trained_on=seen)
    assert torch.equal(data.train.image_hashes, seen)


def test_a_share_of_the_labels_is_a_share_of_the_training_images_that_remain(root):
    for share in (0.001, 0.1, 0.9):
        data = load(root, labels=share)
        assert len(data.train) == max(1, round(share * 60))
        # each class has its share of them, give or take one
        for label, total in enumerate(COUNTS.values()):
            assert abs((data.train.labels == label).sum() - len(data.train) * total / 60) <= 1
        # also of a class that has no image left
        assert data.train.class_names == ("ape", "bee", "cat")
        limited = load(root, val_size=20, labels=share)
        assert len(limited.train) == max(1, round(share * (60 - len(limited.test))))
        assert not numbers(limited.train) & numbers(limited.test)


@pytest.mark.parametrize("settings", [{}, {"limit": 6}, {"val_size": 20}, {"labels": 0.5}], ids=str)
def test_the_images_of_each_class_are_counted_as_they_are_used(root, settings):
    data = load(root, **settings)
    counts = []
    for label, name in enumerate(COUNTS):
        of_class = [int((split.labels == label).sum()) for split in (data.train, data.test)]
        counts.append(f"{name}: {of_class[0]} + {of_class[1]}")
    kind = "held-out" if "val_size" in settings else "test"
    assert f"training + {kind} images of each class: {', '.join(counts)}" in data.notes


def test_scenes_stand_in_for_a_cifar_that_cannot_be_had(tmp_path):
    settings = dict(source="cifar10", root=str(tmp_path), download=False, limit=20)
    with pytest.raises(DataError, match="--data scenes"):
        load_data(DataConfig(**settings), (32, 32))
    data = load_data(DataConfig(**settings, fallback="scenes"), (32, 32))
    scenes = load_data(DataConfig(source="scenes", limit=20), (32, 32))
    assert data.content_hash == scenes.content_hash


def shared_images(data: Dataset) -> int:
    """The number of test images whose pixels are among the training images."""
    train = {pixels.numpy().tobytes() for pixels in data.train.images}
    return sum(pixels.numpy().tobytes() in train for pixels in data.test.images)


@pytest.mark.parametrize("settings", [{}, dict(val_size=12), dict(limit=40, val_size=6)], ids=str)
def test_copies_of_an_image_are_never_trained_and_measured_on(tmp_path, settings):
    """Thirty images in three classes, each twice, as a PNG and as a BMP."""
    images = noise(30, size=(4, 4))
    for number, image in enumerate(images):
        path = tmp_path / "doubled" / "abc"[number % 3]
        path.mkdir(parents=True, exist_ok=True)
        to_pil_image(image).save(path / f"{number:02}.png")
        to_pil_image(image).save(path / f"{number:02} (copy).bmp")
    # the second time from the cache
    for _ in range(2):
        data = load(tmp_path / "doubled", **settings)
        assert shared_images(data) == data.facts["test_images_in_train"] == 0
        assert 0 < len(data.test) < 36
    if not settings:
        assert [note for note in data.notes if "30 of the 60 images are copies" in note]


def test_images_that_are_in_both_splits_are_counted_in_one_line(tmp_path):
    pixels = noise(14, size=(4, 4))
    save_images(tmp_path / "root" / "train" / "a", pixels[:10])
    save_images(tmp_path / "root" / "test" / "a", pixels[8:])
    data = load(tmp_path / "root")
    assert data.facts["test_images_in_train"] == shared_images(data) == 2
    (note,) = [note for note in data.facts["notes"] if "also training images" in note]
    assert note.startswith("2 of the 6 ")


def test_pictures_in_two_classes_are_counted_and_named(tmp_path):
    pixels = noise(12, size=(4, 4))
    save_images(tmp_path / "root" / "ill", pixels[:8])
    save_images(tmp_path / "root" / "well", pixels[5:])
    (line,) = [note for note in load(tmp_path / "root").notes if "another class" in note]
    assert line.startswith("6 images")
    assert "(ill), well/0.png (well)" in line


def test_a_folders_test_images_stay_its_test_images(tmp_path):
    """The public reports' accident: one more picture, and a model was tested on what it had learned."""
    root = tmp_path / "root"
    sides = [24, 24, 9]
    for number, picture in enumerate(noise(40, size=(24, 24))):
        side = sides[number % 3]
        path = root / "ab"[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        to_pil_image(picture[:, :side, :side]).save(path)

    def split(size: tuple[int, int] = (8, 8)) -> tuple[set[int], set[int]]:
        config = DataConfig(source="folder", root=str(root), cache=str(tmp_path / "cache"))
        data = load_data(config, size)
        return tuple(set(part.image_hashes.tolist()) for part in (data.train, data.test))

    train, test = split()
    assert len(test) > 2
    afterwards = [split((16, 16))]
    # one more, one less, one of another name
    to_pil_image(noise(1, size=(9, 9), seed=1)[0]).save(root / "a" / "!.png")
    (root / "a" / "00.png").unlink()
    (root / "b" / "39.png").rename(root / "a" / "new.png")
    afterwards.append(split())
    # most are larger
    for number, picture in enumerate(noise(60, size=(50, 50), seed=2)):
        to_pil_image(picture).save(root / "a" / f"large-{number}.png")
    afterwards.append(split())
    for trained_on, tested_on in afterwards:
        assert not tested_on & train
        assert not trained_on & test
