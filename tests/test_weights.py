"""The project's own files: what is written is read, by others too, and the same bytes come twice."""

import json
import shutil
import warnings

import pytest
import timm
import torch
from PIL import Image
from safetensors import safe_open
from small import autoencoder, change, close, random_model, refused, same
from tiny import NORMALIZE, encoder, seeded
from transformers import AutoModel

from vit.checkpoints import load_model, save_model
from vit.look.predict import predict
from vit.pretrained import shipped_models
from vit.weights import WEIGHTS

NAMES = ("ape", "caf\u00e9", "odd \udc80 name")


@pytest.fixture
def folder(tmp_path):
    model = random_model(encoder(num_classes=3, registers=2, num_heads=1, norm_eps=1e-6))
    saved = dict(interpolation="bilinear", crop_share=0.8, data_content_hash="1-2")
    save_model(tmp_path / "run", model, NORMALIZE, NAMES, "Noise", **saved)
    return tmp_path / "run"


def test_a_copy_of_the_weights_alone_carries_its_settings(folder, tmp_path):
    whole = load_model(folder)
    shutil.copy(folder / WEIGHTS, tmp_path / "downloaded.safetensors")
    with warnings.catch_warnings(action="error"):
        alone = load_model(tmp_path / "downloaded.safetensors")
    same(whole, alone)
    assert alone.config == whole.config
    assert alone.origin.class_names == NAMES
    assert vars(alone.origin.normalize) == vars(whole.origin.normalize)
    assert alone.origin.prepared == whole.origin.prepared
    assert alone.origin.data_content_hash == "1-2"
    picture = Image.fromarray(torch.randint(0, 256, (20, 30, 3), generator=seeded()).byte().numpy())
    assert torch.equal(predict(alone, picture), predict(whole, picture))


def test_a_copy_of_an_autoencoders_weights_carries_its_settings(tmp_path):
    whole = random_model(autoencoder(norm_pix_loss=True))
    save_model(tmp_path / "run", whole, NORMALIZE)
    shutil.copy(tmp_path / "run" / WEIGHTS, tmp_path / "copy.safetensors")
    with warnings.catch_warnings(action="error"):
        alone = load_model(tmp_path / "copy.safetensors")
    same(whole, alone)
    assert alone.norm_pix_loss
    assert alone.decoder.config == whole.decoder.config


def test_a_config_beside_the_weights_precedes_their_metadata(folder):
    change(folder, mean=[0.1, 0.2, 0.3])
    assert load_model(folder).origin.normalize.mean == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("settings", ["{", "[1]", '{"format": "vit-patch-trainer/1"}'])
def test_metadata_that_are_damaged_are_refused(folder, tmp_path, settings):
    weights = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8 : 8 + length])
    header["__metadata__"]["vit-patch-trainer"] = settings
    text = json.dumps(header).encode()
    (tmp_path / "odd.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + weights[8 + length :]
    )
    assert "metadata" in refused(tmp_path / "odd.safetensors")


def test_other_libraries_read_the_weights_with_their_metadata(folder):
    ours = load_model(folder)
    images = torch.randn(2, 3, 16, 16)
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        assert file.metadata()["format"] == "pt"
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        close(ours.forward_head(ours(images)), theirs(images))
        wrapped = AutoModel.from_pretrained(folder).eval()
        close(ours(images), wrapped(images).last_hidden_state)


def test_the_same_model_is_the_same_bytes(tmp_path):
    """The library writes the keys of a file's metadata in an order that it draws anew each time."""
    model = encoder()
    contents = set()
    for number in range(8):
        save_model(tmp_path / str(number), model, NORMALIZE)
        contents.add((tmp_path / str(number) / WEIGHTS).read_bytes())
    assert len(contents) == 1


@pytest.mark.parametrize("name", shipped_models())
def test_the_shipped_weights_carry_their_settings(name, tmp_path):
    shutil.copy(shipped_models()[name] / WEIGHTS, tmp_path / "copy.safetensors")
    with warnings.catch_warnings(action="error"):
        alone = load_model(tmp_path / "copy.safetensors")
    whole = load_model(name)
    same(whole, alone)
    assert alone.encoder.config == whole.encoder.config
    assert alone.origin.class_names == whole.origin.class_names
