"""The shape that all sources share."""

import torch

from vit.data.images import ImageSet, content_hash


def image_set(labels: list[int], class_names: tuple[str, ...]) -> ImageSet:
    images = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2)
    targets = torch.tensor(labels)
    return ImageSet(images, targets, class_names, content_hash(images, targets))


def test_showcase_shows_every_class_even_when_they_are_not_quite_equal():
    labels = [0] * 98 + [1] * 103 + [2] * 99
    shuffled = [labels[i] for i in torch.randperm(300, generator=torch.Generator().manual_seed(0)).tolist()]
    some = image_set(shuffled, ("a", "b", "c"))
    for count in (3, 6, 30):
        shown = some.labels[some.showcase(count)].tolist()
        assert shown == sorted(shown)
        assert [shown.count(label) for label in range(3)] == [count // 3] * 3
    assert sorted(some.showcase(1000).tolist()) == list(range(300))


def test_content_hash_knows_pixels_labels_and_shape():
    some = image_set([0, 1, 1], ("a", "b"))
    images, labels = some.images.clone(), some.labels.clone()
    assert content_hash(images, labels) == some.content_hash
    assert content_hash(images.view(3, 3, 4, 1), labels) != some.content_hash
    assert content_hash(images, 1 - labels) != some.content_hash
    images[2, 0, 1, 1] += 1
    assert content_hash(images, labels) != some.content_hash


def test_subset_has_a_hash_of_its_own_and_names_its_labels():
    some = image_set([0, -1, 1], ("a", "b"))
    part = some.subset(torch.tensor([2, 1]))
    assert part.label_names == ["b", ""]
    assert part.images[:, 0, 0, 0].tolist() == [2, 1]
    assert part.content_hash == content_hash(part.images, part.labels) != some.content_hash
