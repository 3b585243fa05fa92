"""The models of the package through timm's registry: the same features, and what timm needs to know of their input."""

import runpy
import shutil

import pytest
import timm
import torch

import vit.pretrained
import vit.timm
from vit import load_model
from vit.load_options import CheckpointError
from vit.pretrained import entry_points


@torch.no_grad()
@pytest.mark.filterwarnings("error:.*assuming")
@pytest.mark.parametrize(("entry", "folder"), entry_points().items())
def test_timm_creates_it_with_its_weights(entry, folder):
    theirs, ours = timm.create_model(entry, pretrained=True).eval(), load_model(folder)
    encoder, origin, images = ours.encoder, ours.origin, torch.randn(2, 3, 32, 32)
    tokens = encoder(images)
    torch.testing.assert_close(theirs.forward_features(images), tokens, rtol=0, atol=1e-5)
    torch.testing.assert_close(theirs(images), encoder.forward_head(tokens), rtol=0, atol=1e-5)
    assert type(theirs) is timm.models.VisionTransformer
    known = theirs.pretrained_cfg
    assert (known["architecture"], known["mean"], known["std"]) == (entry, origin.normalize.mean, origin.normalize.std)
    assert (tuple(known["input_size"]), known["interpolation"]) == ((3, 32, 32), origin.interpolation)
    assert known["num_classes"] == theirs.num_classes == encoder.config.num_classes
    assert tuple(known.get("label_names", ())) == (origin.class_names if theirs.num_classes else ())
    fresh = timm.create_model(entry)
    assert not torch.equal(fresh.blocks[0].attn.qkv.weight, theirs.blocks[0].attn.qkv.weight)


def test_timm_lists_them():
    assert set(entry_points()) <= set(timm.list_models("vit_tiny_p4_*", pretrained=True))
    assert set(vit.timm.default_cfgs) == set(entry_points())


@torch.no_grad()
def test_timm_changes_them_as_it_changes_its_own():
    """Other classes, another size, grey images, feature maps: by timm's own means."""
    kept = load_model("vit-tiny-p4-cifar10").encoder
    theirs = timm.create_model("vit_tiny_p4_cifar10", pretrained=True, num_classes=7, img_size=64, in_chans=1)
    assert theirs(torch.randn(2, 1, 64, 64)).shape == (2, 7)
    torch.testing.assert_close(theirs.patch_embed.proj.weight, kept.patch_embed.proj.weight.sum(1, keepdim=True))
    assert torch.equal(theirs.blocks[2].mlp.fc1.weight, kept.blocks[2].mlp.fc1.weight)
    maps = timm.create_model("vit_tiny_p4_cifar10", pretrained=True, features_only=True, out_indices=(1, 5))
    assert [tuple(found.shape) for found in maps(torch.randn(1, 3, 32, 32))] == [(1, 192, 8, 8)] * 2


def test_a_damaged_model_is_not_registered(tmp_path, monkeypatch):
    """timm compares no checksum, so it is compared before timm is told."""
    shutil.copytree(vit.pretrained.FOLDER, tmp_path / "models")
    monkeypatch.setattr(vit.pretrained, "FOLDER", tmp_path / "models")
    file = tmp_path / "models" / "vit-tiny-p4-cifar10" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="SHA-256"):
        runpy.run_module("vit.timm")
