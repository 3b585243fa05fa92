"""Law of `origin.transform`: its pixels are to the bit those that the commands show a model.

Oracles: timm's, torchvision's and transformers' own preparation.
"""

import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from small import close, transformers_model, warned
from timm.data import create_transform, resolve_data_config
from tiny import NORMALIZE, encoder, save, seeded
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification
from transformers import AutoImageProcessor, BitImageProcessorPil

from vit.checkpoints import load_model
from vit.checkpoints.convert import convert_model
from vit.cli import main
from vit.config import DataConfig
from vit.data.sources import load_data
from vit.encoder import VisionTransformer
from vit.errors import DataError
from vit.inputs import Normalization

SIZE = (16, 12)

KINDS = {
    "bicubic": {},
    "cut": dict(interpolation="bilinear", crop_share=0.8),
    "squashed": dict(squash=True, crop_share=0.9),
    "grey": {},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Classifiers, each of a kind, and images of two classes."""
    folder = tmp_path_factory.mktemp("folder")
    for name, saved in KINDS.items():
        channels = 1 if name == "grey" else 3
        model = encoder(image_size=SIZE, channels=channels, num_classes=2)
        normalize = Normalization(NORMALIZE.mean[:channels], NORMALIZE.std[:channels])
        save(folder / name, model, normalize, ("a", "b"), **saved)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 64, 4), dtype=np.uint8)
    colour = Image.fromarray(pixels[..., :3])
    pictures = {
        "a/colour.png": colour,
        "b/grey.png": colour.convert("L"),
        "a/clear.png": Image.fromarray(pixels),
        "b/palette.png": colour.convert("P"),
        "b/ink.tiff": colour.convert("CMYK"),
        "b/fits.png": colour.crop((0, 0, 12, 16)),
        "b/large.jpg": colour.resize((640, 400)),
        "a/turned.png": colour,
    }
    exif = Image.Exif()
    for name, picture in pictures.items():
        if "turned" in name:
            exif[0x0112] = 6  # by 90 degrees
        place = folder / "images" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        picture.save(place, exif=exif)
    return folder


@pytest.fixture
def inputs(folder, tmp_path, monkeypatch):
    """The inputs of every encoder that runs, in a folder with all of that."""
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the folder cache
    inputs = []
    forward = VisionTransformer.forward

    def record(self, images, *arguments):
        inputs.append(images)
        return forward(self, images, *arguments)

    monkeypatch.setattr(VisionTransformer, "forward", record)
    return inputs


@pytest.mark.parametrize("name", ["cut", "squashed", "grey"])
def test_files_are_what_vit_embed_shows_the_model(name, inputs):
    files = sorted(Path("images").rglob("*.*"))
    assert main(["embed", name, "--data", "images", "--out", "features.npz"]) == 0
    transform = load_model(name).origin.transform
    mine = torch.stack([transform(Image.open(file)) for file in files])
    assert (mine.dtype, mine.shape[1:]) == (torch.float32, (1 if name == "grey" else 3, *SIZE))
    # the training files, then those that a run would hold out
    order = [files.index(Path("images") / file) for file in np.load("features.npz")["files"]]
    assert sorted(order) == list(range(len(files)))
    assert torch.equal(mine[order], torch.cat(inputs))


def test_tensors_are_what_vit_evaluate_shows_the_model(inputs):
    """Scenes are 32 x 32, so they are cut and resized."""
    assert main(["evaluate", "cut", "--data", "scenes", "--limit", "10", "--method", "knn"]) == 0
    data = load_data(DataConfig(source="scenes", limit=10), SIZE)
    transform = load_model("cut").origin.transform
    expected = torch.cat([transform(data.train.images), transform(data.test.images)])
    # an untrained network is shown them again
    assert torch.equal(torch.cat(inputs)[: len(expected)], expected)


def test_a_folder_is_what_vit_evaluate_shows_the_model(inputs):
    """Its cache is not that of a model with another preparation."""
    data = load_data(DataConfig(source="folder", root="images"), SIZE)
    pictures = [Image.open(Path("images", name)) for name in data.train.files + data.test.files]
    for name in ("squashed", "cut"):
        inputs.clear()
        assert main(["evaluate", name, "--data", "images", "--method", "knn"]) == 0
        transform = load_model(name).origin.transform
        shown = torch.stack([transform(picture) for picture in pictures])
        # an untrained network is shown them again
        assert torch.equal(torch.cat(inputs)[: len(pictures)], shown)


def test_it_is_a_torchvision_transform(folder):
    """In a Dataset, a DataLoader and a Compose; labels pass through, and workers can have it."""
    transform = load_model(folder / "bicubic").origin.transform
    dataset = ImageFolder(folder / "images", v2.Compose([v2.Identity(), transform]))
    images, labels = zip(*DataLoader(dataset, 2), strict=True)
    assert torch.cat(images).shape == (8, 3, *SIZE)
    assert torch.cat(labels).tolist() == [0] * 3 + [1] * 5
    picture = Image.open(folder / "images" / "b" / "fits.png")
    image, label = transform(picture, torch.tensor(1))
    assert label == 1
    assert torch.equal(pickle.loads(pickle.dumps(transform))(picture), image)


def test_inputs_and_fit_show_the_same_part_of_an_image(folder):
    origin = load_model(folder / "cut").origin
    images = torch.randint(0, 256, (2, 3, 20, 28), dtype=torch.uint8, generator=seeded(0))
    difference = origin.inputs(images) - origin.normalize(origin.fit(images))
    assert difference.abs().mean() < 1 / 255 / 0.2  # the rounding of `fit`, in both directions


def test_other_tensors_and_pictures_that_cannot_be_read_are_refused(folder, tmp_path):
    half = tmp_path / "half.png"
    half.write_bytes((folder / "images" / "a" / "colour.png").read_bytes()[:1000])
    transform = load_model(folder / "bicubic").origin.transform
    for wrong in (torch.rand(3, 20, 20), torch.zeros(4, 9, 9).byte(), Image.open(half)):
        with pytest.raises(DataError):
            transform(wrong)


# --- oracles: what the makers of a checkpoint would show it ---------------------------------------


@pytest.fixture(scope="module")
def photo():
    y, x = np.mgrid[:200, :300] / 9
    smooth = np.stack([np.sin(x), np.cos(y), np.sin(x * y / 9)], -1) * 120 + 128
    return Image.fromarray(smooth.astype(np.uint8))


@pytest.fixture(scope="module")
def smooth():
    """A picture in which half a pixel is a small step."""
    y, x = np.mgrid[:64, :96]
    waves = np.stack([np.sin(x / 20), np.cos(y / 15), np.sin((x + 2 * y) / 30)], -1) * 110 + 128
    return Image.fromarray(waves.astype(np.uint8))


@pytest.mark.parametrize(
    ("crop_pct", "interpolation", "crop_mode"),
    [(0.9, "bilinear", "center"), (1.0, "bicubic", "center"), (0.9, "bicubic", "squash")],
)
def test_timm_prepares_the_same_pixels(crop_pct, interpolation, crop_mode, photo, tmp_path):
    settings = dict(img_size=144, patch_size=48, depth=1, num_classes=3)
    theirs = timm.create_model("vit_tiny_patch16_224", pretrained=False, **settings)
    theirs.pretrained_cfg |= dict(crop_pct=crop_pct, interpolation=interpolation)
    theirs.pretrained_cfg |= dict(crop_mode=crop_mode, input_size=(3, 144, 144))
    place = tmp_path / "timm"
    timm.models.save_for_hf(theirs, place, model_args=settings, safe_serialization="both")
    expected = create_transform(**resolve_data_config({}, model=theirs))(photo)
    ours = load_model(tmp_path / "timm")
    assert torch.equal(ours.origin.transform(photo), expected)

    # and it goes with the model into other formats
    for to in ("timm", "safetensors"):
        convert_model(ours, to, tmp_path / f"as {to}")
        again = load_model(tmp_path / f"as {to}").origin
        assert torch.equal(again.transform(photo), expected)


@pytest.mark.parametrize(("key", "value"), [("crop_mode", "border"), ("interpolation", "lanczos")])
def test_what_timms_settings_say_and_is_not_done_is_a_warning(key, value):
    settings = dict(img_size=32, depth=1, num_classes=0)
    theirs = timm.create_model("vit_tiny_patch16_224", pretrained=False, **settings)
    theirs.pretrained_cfg |= {key: value}
    with pytest.warns(UserWarning, match=f"{value}.*not supported"):
        load_model(theirs)


def test_torchvision_prepares_the_same_pixels(photo):
    """What its presets of vit_b_16 say."""
    theirs = torchvision.models.VisionTransformer(56, 8, 1, 2, 16, 16, num_classes=3)
    expected = ImageClassification(crop_size=56, resize_size=64)(photo)
    ours = load_model(theirs.state_dict(), num_heads=2).origin.transform(photo)
    close(ours, expected, 0.02)


@pytest.mark.parametrize(("shape", "share"), [((32, 32), 0.875), ((32, 48), 1.0)])
def test_transformers_prepares_the_same_pixels_for_a_model_of_ours(shape, share, photo, tmp_path):
    model = encoder(image_size=shape, patch_size=(16, 16))
    save(tmp_path / "ours", model, crop_share=share)
    ours = load_model(tmp_path / "ours")
    notes = convert_model(ours, "huggingface", tmp_path / "theirs")
    assert any("squashes" in note for note in notes) == (shape[0] != shape[1])
    picture = photo if shape[0] == shape[1] else photo.resize((96, 64))
    theirs = AutoImageProcessor.from_pretrained(tmp_path / "theirs")(picture)["pixel_values"]
    difference = (
        ours.origin.transform(picture) - torch.as_tensor(np.asarray(theirs))[0]
    ).abs() * 0.25
    assert difference.mean() < 4 / 255  # a picture cut before or after it is resized


def folder_of_transformers(folder, settings):
    """A ViT of 32 x 32 pixels with this preprocessor, and transformers' own reading of it."""
    transformers_model(image_size=32).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return AutoImageProcessor.from_pretrained(folder)


SQUARE = {"size": {"height": 32, "width": 32}}
EDGE = {"size": {"shortest_edge": 32}}
VIT = {"image_processor_type": "ViTImageProcessor"} | SQUARE
BIT = {"image_processor_type": "BitImageProcessor"} | EDGE | {"crop_size": 32}
DEIT = {"image_processor_type": "DeiTImageProcessor"}
HALF = {"image_mean": 127.5, "image_std": 127.5}


@pytest.mark.parametrize("size", [{"shortest_edge": 36}, {"height": 36, "width": 36}])
def test_transformers_prepares_the_same_pixels(size, photo, tmp_path):
    settings = BIT | {"size": size, "resample": 3}
    folder_of_transformers(tmp_path, settings)
    square = photo.crop((0, 0, 200, 200))
    theirs = BitImageProcessorPil.from_pretrained(tmp_path)(square)["pixel_values"]
    expected = torch.as_tensor(np.asarray(theirs))[0]
    ours = load_model(tmp_path).origin.transform(square)
    close(ours, expected)


# the settings that are carried out, whatever the class of the preprocessor
CARRIED_OUT = {
    "squashed": VIT,
    "an old file": {"feature_extractor_type": "ViTFeatureExtractor", "size": 32, "resample": 3},
    "no class": {"size": 32},
    "nothing said": BIT | {"crop_size": None, "do_center_crop": None} | SQUARE,
    "not rescaled, by null": VIT | {"do_rescale": None} | HALF,
    "a number of Bit": BIT | {"size": 40},
    "cropped from more": BIT | {"size": {"shortest_edge": 40}, "crop_size": [32, 32]},
    "Bit without a crop": BIT | {"do_center_crop": False, "size": SQUARE["size"]},
    "ViT does not crop": VIT | {"crop_size": 16},
    "squashed, then cropped": DEIT | {"size": 40, "crop_size": 32},
    "CLIP": BIT | {"image_processor_type": "CLIPImageProcessorFast"},
    "means of the channels": VIT | {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]},
    "another factor, not normalised": VIT | {"rescale_factor": 1 / 127.5, "do_normalize": False},
    "a factor not used": VIT | {"rescale_factor": 2.0, "do_rescale": False} | HALF,
    "another class's steps": VIT | {"do_flip_channel_order": True, "rescale_offset": True},
}


@pytest.mark.parametrize("case", CARRIED_OUT)
def test_what_a_preprocessor_says_is_carried_out(case, smooth, tmp_path):
    """Without a warning, and `convert` passes it on."""
    theirs = folder_of_transformers(tmp_path / "hf", CARRIED_OUT[case])
    expected = theirs(smooth, return_tensors="pt")["pixel_values"][0]
    with warnings.catch_warnings(action="error"):
        ours = load_model(tmp_path / "hf")
    scale = ours.origin.normalize.std[0] * 255
    pixels = ours.origin.inputs(v2.functional.pil_to_tensor(smooth)[None])[0]
    for found in (ours.origin.transform(smooth), pixels):
        difference = (found - expected) * scale
        assert difference.abs().max() < 4  # of 255, where a picture is cut before it is resized
    convert_model(ours, "huggingface", tmp_path / "again")
    again = load_model(tmp_path / "again").origin
    assert ((again.transform(smooth) - ours.origin.transform(smooth)) * scale).abs().max() < 1e-3


# what is not done here, and a part of the warning
WARNED_OF = {
    "another filter": (VIT | {"resample": 0}, "nearest"),
    "padded": (BIT | {"crop_size": 48}, "not done here.*crop_size"),
    "padded at the end": (VIT | {"do_pad": True, "pad_size": 32}, "not done here.*do_pad"),
    "not resized": (BIT | {"do_resize": False}, "not done here.*do_resize"),
    "other shares": (BIT | {"size": {"height": 40, "width": 64}}, "not done here.*64"),
    "a longest side": (
        BIT | {"size": {"shortest_edge": 32, "longest_edge": 40}},
        "not done here.*longest_edge",
    ),
    "another class": ({"image_processor_type": "MobileViTImageProcessor"} | SQUARE, "MobileViT"),
}


@pytest.mark.parametrize("case", WARNED_OF)
def test_what_a_preprocessor_says_and_is_not_done_is_a_warning(case, tmp_path):
    settings, part = WARNED_OF[case]
    folder_of_transformers(tmp_path, settings)
    with pytest.warns(UserWarning, match=part):
        load_model(tmp_path)


def test_another_size_than_the_models_is_a_warning_until_an_option_says_it(tmp_path):
    folder_of_transformers(tmp_path, VIT | {"size": 64})
    assert "(image_size 64" in warned(tmp_path)
    assert "image_size" not in warned(tmp_path, image_size=64)
