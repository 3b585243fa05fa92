"""Law: images to show are evenly spaced over classes, and batches do not fill the memory."""

import pytest
import torch
from PIL import Image
from tiny import NORMALIZE

from vit.checkpoints import load_model, save_model
from vit.config import ViTConfig
from vit.encoder import VisionTransformer
from vit.errors import DataError
from vit.look.datasets import of_data
from vit.look.subject import Collection, ModelWithImages, short_name


def saved(folder, size, heads):
    sizes = dict(image_size=(size, size), patch_size=(1, 1), embed_dim=4 * heads, depth=1)
    model = VisionTransformer(ViTConfig(**sizes, num_heads=heads))
    save_model(folder, model, NORMALIZE)
    return load_model(folder)


def pictures(folder, count):
    """Files of one colour each, by their number."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (8, 8), (number, 9, 9)).save(folder / f"{number}.png")


@pytest.mark.parametrize(("size", "heads"), [(64, 3), (14, 12)])
def test_batches_do_not_grow_with_the_square_of_the_tokens(size, heads, tmp_path):
    """The weights of a layer over a batch are what fills the memory."""
    model = saved(tmp_path, size, heads)

    images = torch.zeros(40, 3, size, size, dtype=torch.uint8)
    collection = Collection(images, [""] * 40, "", [""] * 40, [-1] * 40)
    sizes = [len(batch) for batch in ModelWithImages(model, collection).batches()]
    assert sum(sizes) == 40
    tokens = size**2 + 1
    assert all(batch == 1 or batch * heads * tokens**2 <= 8 << 20 for batch in sizes)


def test_scenes_need_no_files(tmp_path):
    subject = ModelWithImages(saved(tmp_path, 8, 1), of_data("scenes", (8, 8), "data", 3))
    assert subject.pixels.shape == (3, 3, 8, 8)
    assert "Scenes, test images" in subject.caption


def test_images_of_a_folder_are_spread_over_its_classes(tmp_path):
    for split in ("train", "test"):
        for name in ("a", "b", "c"):
            pictures(tmp_path / "many" / split / name, 3)
    collection = of_data(str(tmp_path / "many"), (8, 8), "data", 3)
    assert sorted(collection.names) == ["a", "b", "c"]
    assert collection.title == "many, test images"


@pytest.mark.parametrize("split", ["", "train"])
def test_of_a_folder_without_test_images_all_can_be_shown(split, tmp_path):
    """Nobody trains on photographs that are only looked at: none is held out."""
    pictures(tmp_path / "holiday" / split, 9)
    collection = of_data(str(tmp_path / "holiday"), (8, 8), "data", 9)
    assert collection.names == [str(number) for number in range(9)]


def test_an_image_that_cannot_be_read_is_left_out_on_request(tmp_path):
    pictures(tmp_path / "some", 3)
    (tmp_path / "some" / "1.png").write_text("no image")
    model = saved(tmp_path / "model", 8, 1)
    words = (str(tmp_path / "some"), (8, 8), "data", 3)
    with pytest.raises(DataError, match=r"1\.png"):
        next(ModelWithImages(model, of_data(*words)).batches())
    subject = ModelWithImages(model, of_data(*words, on_bad_image="skip"))
    assert (subject.names, len(subject.pixels)) == (["0", "2"], 2)


def test_short_names(tmp_path):
    names = {"timm/vit_tiny": "timm/vit_tiny"}
    names |= {f"{tmp_path}/run": "run", f"{tmp_path}/run/snapshots/step-7": "run, step-7"}
    assert [short_name(source) for source in names] == list(names.values())
