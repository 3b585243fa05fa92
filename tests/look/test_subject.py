"""Law: images to show are evenly spaced over classes, and batches do not fill the memory."""

import pytest
from tiny import encoder, noise, save_images

from vit.config import DataConfig
from vit.look.datasets import of_data
from vit.look.subject import ModelWithImages


@pytest.mark.parametrize(("size", "heads"), [(64, 3), (14, 12)])
def test_batches_do_not_grow_with_the_square_of_the_tokens(size, heads):
    """The weights of a layer over a batch are what fills the memory."""
    sizes = dict(image_size=(size, size), patch_size=(1, 1), embed_dim=4 * heads)
    batch = ModelWithImages(encoder(**sizes, num_heads=heads), None).batch_size
    assert batch == 1 or batch * heads * (size**2 + 1) ** 2 <= 8 << 20


def test_scenes_need_no_files():
    collection = of_data(DataConfig(source="scenes"), (8, 8), 3, both_splits=False)
    assert len(collection.images) == 3
    assert collection.title == "Scenes, test images"


def test_images_of_a_folder_are_spread_over_its_classes(tmp_path):
    for split in ("train", "test"):
        for name in ("a", "b", "c"):
            save_images(tmp_path / "many" / split / name, noise(3))
    collection = of_data(
        DataConfig(source="folder", root=str(tmp_path / "many")), (8, 8), 3, both_splits=False
    )
    assert sorted(collection.names) == ["a", "b", "c"]
    assert collection.title == "many, test images"


@pytest.mark.parametrize("split", ["", "train"])
def test_of_a_folder_without_test_images_all_can_be_shown(split, tmp_path):
    """Nobody trains on photographs that are only looked at: none is held out."""
    save_images(tmp_path / "holiday" / split, noise(9))
    collection = of_data(
        DataConfig(source="folder", root=str(tmp_path / "holiday")), (8, 8), 9, both_splits=False
    )
    assert collection.names == [str(number) for number in range(9)]
