"""`origin.transform`: to the bit what the commands show a model, as torchvision's pipelines hand images on."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from vit.checkpoints import load_model, save_model
from vit.cli import main
from vit.config import DataConfig, ViTConfig
from vit.data import load_data
from vit.data.augment import Normalization
from vit.data.images import DataError
from vit.encoder import VisionTransformer

SIZE = (16, 12)
NORMALIZE = Normalization([0.4, 0.5, 0.6], [0.2, 0.3, 0.25])


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A classifier of each interpolation, a grey one, and images of all kinds in two classes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the folder cache
    torch.manual_seed(0)
    config = dict(image_size=SIZE, patch_size=(4, 4), embed_dim=16, depth=1, num_heads=2, num_classes=2)
    for name in ("bicubic", "bilinear"):
        save_model(tmp_path / name, VisionTransformer(ViTConfig(**config)), NORMALIZE, ("a", "b"), interpolation=name)
    grey = VisionTransformer(ViTConfig(**config, channels=1))
    save_model(tmp_path / "grey", grey, Normalization([0.5], [0.2]), ("a", "b"))
    pixels = np.random.default_rng(0).integers(0, 256, (40, 64, 4), dtype=np.uint8)
    for name, mode in (
        ("colour.png", "RGB"),
        ("grey.png", "L"),
        ("clear.png", "RGBA"),
        ("palette.png", "P"),
        ("ink.tiff", "CMYK"),
    ):
        path = tmp_path / "images" / "ab"[len(name) % 2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels if mode == "RGBA" else pixels[..., :3]).convert(mode)
        picture.save(path)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.fromarray(pixels[..., :3]).save(tmp_path / "images" / "a" / "turned.png", exif=exif)
    Image.fromarray(pixels[:16, :12, :3]).save(tmp_path / "images" / "b" / "fits.png")
    return tmp_path


@pytest.fixture
def seen(monkeypatch):
    """The inputs of every encoder that runs."""
    seen, forward = [], VisionTransformer.forward

    def record(self, images, *rest):
        seen.append(images)
        return forward(self, images, *rest)

    monkeypatch.setattr(VisionTransformer, "forward", record)
    return seen


@pytest.mark.parametrize("name", ["bicubic", "bilinear", "grey"])
def test_files_are_what_vit_attention_shows_the_model(name, place, seen):
    files = sorted((place / "images").rglob("*.*"))
    assert main(["attention", name, *map(str, files), "--out", "look"]) == 0
    transform = load_model(name).origin.transform
    mine = torch.stack([transform(Image.open(file)) for file in files])
    assert torch.equal(mine, torch.cat(seen))
    assert (mine.dtype, mine.shape[1:]) == (torch.float32, (1 if name == "grey" else 3, *SIZE))


@pytest.mark.parametrize("name", ["bicubic", "bilinear", "grey"])
def test_tensors_are_what_vit_evaluate_shows_the_model(name, place, seen):
    """Scenes are 32 x 32, so they are cut and resized."""
    assert main(["evaluate", name, "--data", "scenes", "--limit", "10", "--method", "knn"]) == 0
    data, transform = load_data(DataConfig(source="scenes", limit=10), SIZE), load_model(name).origin.transform
    assert torch.equal(torch.cat([transform(data.train.images), transform(data.test.images)]), torch.cat(seen))
    one = transform(data.test.images[0])
    assert torch.equal(one, transform(data.test.images)[0])
    assert torch.equal(transform(tv_tensors.Image(data.test.images[0])), one)
    grey = data.test.images[:, :1]
    torch.testing.assert_close(transform(grey), transform(grey.expand(-1, 3, -1, -1)), rtol=0, atol=0.03)


def test_it_is_a_torchvision_transform(place):
    """In a Dataset, a DataLoader with workers, and a Compose; labels pass through."""
    transform = load_model("bicubic").origin.transform
    dataset = ImageFolder(place / "images", v2.Compose([v2.Identity(), transform]))
    images, labels = zip(*DataLoader(dataset, 2, num_workers=1), strict=True)
    assert (torch.cat(images).shape, torch.cat(labels).tolist()) == ((7, 3, *SIZE), [0] * 4 + [1] * 3)
    image, label = transform(Image.open(place / "images" / "b" / "fits.png"), torch.tensor(1))
    assert label == 1
    assert torch.equal(pickle.loads(pickle.dumps(transform))(Image.open(place / "images" / "b" / "fits.png")), image)
    assert "bicubic" in repr(transform)


def test_a_large_jpeg_stays_as_it_is_and_is_within_rounding_of_its_file(place):
    ramp = np.linspace(0, 255, 600).astype(np.uint8)
    Image.fromarray(np.stack([ramp[:, None].repeat(800, 1)] * 3, -1)).save(place / "large.jpg")
    origin, picture = load_model("bicubic").origin, Image.open(place / "large.jpg")
    mine = origin.transform(picture)
    assert picture.size == (800, 600)
    assert (mine - origin.normalize(origin.read_images([place / "large.jpg"]))[0]).abs().max() < 0.05


@pytest.mark.parametrize(
    "wrong", [torch.rand(3, 20, 20), torch.zeros(20, 20, dtype=torch.uint8), torch.zeros(4, 9, 9).byte()]
)
def test_other_tensors_are_refused(wrong, place):
    with pytest.raises(DataError, match="images are uint8, B x 3 x height x width"):
        load_model("bicubic").origin.transform(wrong)


def test_a_picture_that_cannot_be_read_is_refused(place):
    whole = (place / "images" / "a").glob("*.png")
    file = place / "half.png"
    file.write_bytes(next(whole).read_bytes()[:1000])
    for picture in (Image.open(file), Image.new("F", (20, 20))):
        with pytest.raises(DataError):
            load_model("bicubic").origin.transform(picture)
