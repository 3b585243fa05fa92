"""The project's own files: what is written is read, by others too, and the same bytes come twice."""

import json
import os
import shutil
import unicodedata
import warnings
from functools import partial

import pytest
import torch
from small import autoencoder, random_model, refused
from tiny import NORMALIZE, encoder, same, save

from vit.checkpoints import load_model
from vit.errors import RunError
from vit.pretrained import shipped_models
from vit.training.run_folder import RunFolder
from vit.weights import WEIGHTS, architecture, class_key

NAMES = ("ape", "caf\u00e9", "odd \udc80 name")


@pytest.fixture
def folder(tmp_path):
    model = random_model(encoder(num_classes=3, registers=2, num_heads=1, norm_eps=1e-6))
    saved = dict(interpolation="bilinear", crop_share=0.8, data_content_hash="1-2")
    save(tmp_path / "run", model, NORMALIZE, NAMES, "Noise", **saved)
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["run", "autoencoder", *shipped_models()])
def test_a_copy_of_the_weights_alone_carries_its_settings(name, folder, tmp_path):
    path = {"run": folder, "autoencoder": tmp_path / "autoencoder"} | shipped_models()
    save(tmp_path / "autoencoder", random_model(autoencoder(norm_pix_loss=True)))
    shutil.copy(path[name] / WEIGHTS, tmp_path / "downloaded.safetensors")
    with warnings.catch_warnings(action="error"):
        alone = load_model(tmp_path / "downloaded.safetensors")
    whole = load_model(path[name])
    same(whole, alone)
    assert architecture(alone) == architecture(whole)
    for key in ("class_names", "prepared", "data_content_hash"):
        assert getattr(alone.origin, key) == getattr(whole.origin, key)
    assert vars(alone.origin.normalize) == vars(whole.origin.normalize)
    if name == "run":
        assert (alone.origin.class_names, alone.origin.data_content_hash) == (NAMES, "1-2")


def test_metadata_that_are_damaged_are_refused(folder, tmp_path):
    weights = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8 : 8 + length])
    header["__metadata__"]["vit-patch-trainer"] = "{"
    text = json.dumps(header).encode()
    (tmp_path / "odd.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + weights[8 + length :]
    )
    assert "metadata" in refused(tmp_path / "odd.safetensors")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "iso8859-1"])
def test_a_class_is_called_the_same_in_every_locale(monkeypatch, encoding):
    def read_there(name: bytes) -> str:
        return class_key(name.decode(encoding, "surrogateescape"))

    encode = partial(str.encode, encoding=encoding, errors="surrogateescape")
    monkeypatch.setattr(os, "fsencode", encode)
    for name in ("ape", "\u043a\u043e\u0442", "cafe\u0301", "\U0001f436"):
        assert read_there(name.encode()) == unicodedata.normalize("NFC", name)
        # as in a file that was written elsewhere
        assert class_key(name) == unicodedata.normalize("NFC", name)
    # what is no UTF-8 stays as the locale has it
    assert read_there(b"\xe9t\xe9") == b"\xe9t\xe9".decode(encoding, "surrogateescape")


def test_another_model_in_a_folder_leaves_none_of_the_images_of_the_one_before(tmp_path):
    save(tmp_path, encoder(), trained_on=torch.arange(3))
    save(tmp_path, encoder())
    assert len(load_model(tmp_path).origin.trained_on) == 0


def test_a_run_whose_folder_another_has_taken_leaves_that_ones_images(tmp_path):
    save(tmp_path / "other", encoder(), trained_on=torch.arange(3))
    with RunFolder(tmp_path / "run") as folder:
        folder.begin("")
        folder.path.rename(tmp_path / "renamed")
        (tmp_path / "other").rename(folder.path)
        with pytest.raises(RunError, match="replaced"):
            save(folder.path, encoder(), trained_on=torch.arange(5))
    assert load_model(folder.path).origin.trained_on.tolist() == [0, 1, 2]


def test_the_same_model_is_the_same_bytes(tmp_path):
    """The library writes the keys of a file's metadata in an order that it draws anew each time."""
    model = encoder()
    contents = set()
    for number in range(8):
        save(tmp_path / str(number), model)
        contents.add((tmp_path / str(number) / WEIGHTS).read_bytes())
    assert len(contents) == 1
