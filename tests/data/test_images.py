"""Laws of image sets and their subsets: hashes, classes, and that a seed fixes a choice."""

import unicodedata

import pytest
import tiny
import torch
from tiny import seeded

from vit.data import ImageSet, content_hash
from vit.data.images import match_classes, spread_over_classes

LABELS = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)[torch.randperm(100, generator=seeded())]


def image_set(labels: list[int], class_names: tuple[str, ...]) -> ImageSet:
    """Images whose pixels all have the image's number."""
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2)
    return tiny.image_set(images, class_names, labels)


def test_showcase_shows_every_class_even_when_they_are_not_quite_equal():
    labels = [0] * 98 + [1] * 103 + [2] * 99
    shuffled = [labels[i] for i in torch.randperm(300, generator=seeded()).tolist()]
    images = image_set(shuffled, ("a", "b", "c"))
    for count in (3, 6, 30):
        classes = images.labels[images.showcase(count)].tolist()
        assert classes == sorted(classes)
        assert [classes.count(label) for label in range(3)] == [count // 3] * 3
    assert sorted(images.showcase(1000).tolist()) == list(range(300))


def test_content_hash_knows_pixels_labels_and_shape():
    original = image_set([0, 1, 1], ("a", "b"))
    images = original.images.clone()
    labels = original.labels.clone()
    assert content_hash(images, labels) == original.content_hash
    assert content_hash(images.view(3, 3, 4, 1), labels) != original.content_hash
    assert content_hash(images, 1 - labels) != original.content_hash
    images[2, 0, 1, 1] += 1
    assert content_hash(images, labels) != original.content_hash


def test_subset_has_a_hash_of_its_own_and_names_its_labels():
    images = image_set([0, -1, 1], ("a", "b"))
    part = images.subset(torch.tensor([2, 1]))
    assert part.label_names == ["b", ""]
    assert part.images[:, 0, 0, 0].tolist() == [2, 1]
    assert part.content_hash == content_hash(part.images, part.labels) != images.content_hash


def test_the_only_image_of_a_class_is_not_held_out():
    labels = torch.tensor([0] * 500 + [1] + [2, 2])
    for seed in range(8):
        mask = spread_over_classes(labels, 50, seed, "holdout")
        assert not mask[500]
        assert not mask[501:].all()


def test_a_seed_fixes_a_choice_and_a_larger_one_includes_the_smaller():
    ten = spread_over_classes(LABELS, 10, 3, "labels")
    forty = spread_over_classes(LABELS, 40, 3, "labels")
    assert torch.equal(ten, spread_over_classes(LABELS, 10, 3, "labels"))
    assert not (ten & ~forty).any()
    assert not torch.equal(ten, spread_over_classes(LABELS, 10, 4, "labels"))
    assert not torch.equal(ten, spread_over_classes(LABELS, 10, 3, "holdout"))


NUMBERS = tuple(map(str, range(12)))
NFC = ("bee", "caf\u00e9")
NFD = tuple(unicodedata.normalize("NFD", name) for name in NFC)


@pytest.mark.parametrize(
    ("names", "wanted", "order"),
    [
        (("ape", "bee", "cat"), ("ape", "bee", "cat"), [0, 1, 2]),
        (("ape", "bee", "cat"), ("cat", "ape", "bee"), [2, 0, 1]),
        (NUMBERS, tuple(sorted(NUMBERS)), [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]),
        (NUMBERS, tuple(f"{number:02}" for number in range(12)), [*range(12)]),
        ((), tuple(sorted(NUMBERS)), [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]),
        (NFC, NFD, [0, 1]),
        (NFD, NFC[::-1], [1, 0]),
        ((), ("ape", "bee"), None),
        ((), ("1", "2"), None),
        (("ape", "bee"), ("ape", "cat"), None),
        (("ape", "bee"), ("ape", "bee", "cat"), None),
        (("crane", "crane"), ("crane", "crane"), [0, 1]),
        (("crane", "crane", "ape"), ("ape", "crane", "crane"), None),
        (("1", "01"), ("01", "1"), None),
    ],
)
def test_classes_are_matched_by_name_whatever_their_order(names, wanted, order):
    assert match_classes(names, wanted) == order
