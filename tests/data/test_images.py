"""Laws of image sets and their subsets: hashes, classes, and that a seed fixes a choice."""

import unicodedata
from dataclasses import replace

import pytest
import tiny
import torch
from tiny import seeded

from vit import data as data_module
from vit.data import ImageSet, content_hash
from vit.data.images import (
    evenly_spaced,
    hold_out,
    spread_over_classes,
    with_test_images,
)
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
    assert sorted(images.showcase(1000).tolist()) == list(range(300))


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
    assert part.images[:, 0, 0, 0].tolist() == [2, 1]
    assert part.content_hash == content_hash(part.images, part.labels) != original.content_hash


def test_a_seed_fixes_a_choice_and_a_larger_one_includes_the_smaller():
    ten = spread_over_classes(LABELS, 10, 3, "labels")
    forty = spread_over_classes(LABELS, 40, 3, "labels")
    assert torch.equal(ten, spread_over_classes(LABELS, 10, 3, "labels"))
    assert not (ten & ~forty).any()
    assert not torch.equal(ten, spread_over_classes(LABELS, 10, 4, "labels"))
    assert not torch.equal(ten, spread_over_classes(LABELS, 10, 3, "holdout"))
    # the only image of a class is not held out
    alone = torch.tensor([0] * 500 + [1] + [2, 2])
    assert not spread_over_classes(alone, 50, 3, "holdout")[500]


# --- images to hold out ---------------------------------------------------------------------------


def evenly(among: torch.Tensor, most: int) -> torch.Tensor:
    return evenly_spaced(len(among), most)


@pytest.mark.parametrize(("count", "held_out"), [(2, 1), (19, 1), (20, 2), (25_000, 1000)])
def test_without_copies_held_out_images_are_evenly_spaced(count, held_out):
    images = torch.arange(count)[:, None].view(torch.uint8).view(count, 2, 2, 2)
    dataset = ImageSet(images, torch.arange(count), (), "")
    train, test = with_test_images(dataset, None, "", "folder", (2, 2))
    numbers = torch.arange(held_out) * count // held_out
    assert torch.equal(test.labels, numbers)
    assert sorted([*train.labels.tolist(), *numbers.tolist()]) == list(range(count))


# which image each is, in their order; how many are held out of 100
COPIES = {
    "pairs side by side": (torch.arange(100) // 2, 10),
    "one folder twice": (torch.arange(100) % 50, 10),
    "ten of each, side by side": (torch.arange(100) // 10, 10),
    "ten of each, in turn": (torch.arange(100) % 10, 10),
    "a third is blank": (torch.arange(100) * (torch.arange(100) % 3 > 0), 6),
    "all but one are blank": (torch.arange(100) == 50, 1),
}


@pytest.mark.parametrize("case", COPIES)
def test_copies_of_an_image_are_on_one_side(case):
    originals, count = COPIES[case]
    held_out = hold_out(originals.long() * 7919, 10, evenly)
    assert not set(originals[held_out].tolist()) & set(originals[~held_out].tolist())
    assert int(held_out.sum()) == count


def test_copies_of_the_only_image_are_held_out_like_others():
    assert hold_out(torch.zeros(5, dtype=torch.int64), 2, evenly).tolist() == [1, 0, 1, 0, 0]


def test_a_large_part_of_a_set_is_no_copy_and_has_the_same_images_and_hashes(monkeypatch):
    images = image_set([number % 3 for number in range(50)], ("a", "b", "c"))
    hashes = images.image_hashes
    assert len(hashes.unique()) == 50
    subsets = [torch.tensor([7, 3, 44]), torch.arange(50) % 3 > 0]
    copies = [images.subset(indices) for indices in subsets]
    monkeypatch.setattr(data_module, "LARGE", 0)
    for indices, copy in zip(subsets, copies, strict=True):
        part = images.subset(indices)
        assert isinstance(part.images, data_module.Rows)
        assert torch.equal(part.images[:], copy.images)
        assert torch.equal(part.labels, copy.labels)
        assert part.content_hash == copy.content_hash
        assert torch.equal(part.image_hashes, hashes[indices])
        assert torch.equal(part.subset(torch.tensor([1, 0])).images[:], copy.images[[1, 0]])

    # with known hashes, it need not be read to have a hash of its own
    monkeypatch.setattr(data_module, "HASHED", 0)
    known = replace(images, known_hashes=hashes)
    found = [known.subset(torch.tensor(rows)) for rows in ([3, 1], [3, 1], [1, 3], [3, 0])]
    assert found[0].content_hash == found[1].content_hash
    assert len({part.content_hash for part in found}) == 3


# --- classes by name ------------------------------------------------------------------------------

NUMBERS = tuple(map(str, range(12)))
NFC = ("bee", "caf\u00e9")
NFD = tuple(unicodedata.normalize("NFD", name) for name in NFC)


@pytest.mark.parametrize(
    ("names", "wanted", "order"),
    [
        (("ape", "bee", "cat"), ("cat", "ape", "bee"), [2, 0, 1]),
        (NUMBERS, tuple(sorted(NUMBERS)), [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]),
        ((), tuple(sorted(NUMBERS)), [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]),
        (NFD, NFC[::-1], [1, 0]),
        ((), ("ape", "bee"), None),
        (("ape", "bee"), ("ape", "cat"), None),
        (("ape", "bee"), ("ape", "bee", "cat"), None),
        (("crane", "crane"), ("crane", "crane"), [0, 1]),
        (("crane", "crane", "ape"), ("ape", "crane", "crane"), None),
    ],
)
def test_classes_are_matched_by_name_whatever_their_order(names, wanted, order):
    assert match_classes(names, wanted) == order
