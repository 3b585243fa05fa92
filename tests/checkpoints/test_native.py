"""Checkpoints: what is loaded is what was saved, or an error of one line."""

import json
from pathlib import Path

import pytest
import torch
from small import change, refused
from torch import nn

from vit.checkpoints import CheckpointError, load_model, save_model
from vit.checkpoints.formats.native import native_hints
from vit.checkpoints.native import CONFIG, WEIGHTS, content_hash, write_weights
from vit.checkpoints.reading import read_checkpoint
from vit.cli import main
from vit.config import ModelConfig
from vit.data.augment import Normalization
from vit.mae import MaskedAutoencoder, build_autoencoder
from vit.masking import make_mask

SMALL = dict(image_size=8, patch_size=4, embed_dim=8, depth=2, num_heads=2)
SMALL |= dict(decoder_dim=8, decoder_depth=1, decoder_heads=2)
CASES = {
    "plain": (True, dict()),
    "identity, no qkv bias": (False, dict(registers=3, qkv="identity", qkv_bias=False, mlp_ratio=2.5, layer_scale=0.1)),
    "no class token, non-square": (False, dict(class_token=False, image_size=(8, 12), patch_size=(4, 3))),
    "swiglu, qk-norm, learned positions": (True, dict(mlp="swiglu", qk_norm=True, drop_path=0.2, pos_embed="learned")),
}
NORMALIZE = Normalization([0.1, 1 / 3, 0.7], [0.3, 0.2, 1 / 7])


def save_small(folder: Path, norm_pix_loss: bool = True, **settings) -> MaskedAutoencoder:
    """Save a model whose every parameter is drawn anew, so that none is what a fresh model has."""
    torch.manual_seed(0)
    config = ModelConfig(**SMALL | settings)
    model = build_autoencoder(config.vit_config(), config.decoder_config(), norm_pix_loss)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.5)
    save_model(folder, model, NORMALIZE, ("plane", "naïve ship"), "CIFAR-10")
    return model.eval()


@torch.no_grad()
def test_a_folder_of_the_first_version_loads_with_its_names(tmp_path):
    """Its encoder's tensors had `encoder.` in front."""
    saved = save_small(tmp_path)
    write_weights(tmp_path, dict(saved.state_dict()), json.loads((tmp_path / CONFIG).read_text()))
    for loaded in (load_model(tmp_path), load_model(tmp_path, norm_pix_loss=True)):
        assert loaded.state_dict().keys() == saved.state_dict().keys()
        assert all(torch.equal(value, saved.state_dict()[name]) for name, value in loaded.state_dict().items())
        assert loaded.origin.report.used["encoder.norm.weight"] == "norm.weight"


def loading_fails(folder: Path, **asked) -> str:
    message = refused(folder, **asked)
    assert str(folder) in message
    return message


@torch.no_grad()
@pytest.mark.parametrize(("norm_pix_loss", "settings"), CASES.values(), ids=CASES)
def test_loaded_model_is_the_saved_one_to_the_bit(tmp_path, norm_pix_loss, settings):
    saved = save_small(tmp_path / "new" / "folder", norm_pix_loss, **settings)
    loaded = load_model(str(tmp_path / "new" / "folder"))
    assert isinstance(loaded, MaskedAutoencoder)
    ours, theirs = saved.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [p.requires_grad for p in saved.parameters()] == [p.requires_grad for p in loaded.parameters()]

    assert loaded.encoder.config == saved.encoder.config
    assert loaded.decoder.config == saved.decoder.config
    embed = saved.encoder.patch_embed
    images = torch.randn(2, 3, *embed.image_size)
    mask = make_mask("random", 2, embed.grid_size, 0.5, torch.Generator().manual_seed(0))
    assert torch.equal(loaded(images, mask), saved(images, mask))
    assert torch.equal(loaded.targets(images), saved.targets(images))

    origin = loaded.origin  # what travels with the weights
    assert (origin.normalize.mean, origin.normalize.std) == (NORMALIZE.mean, NORMALIZE.std)
    assert origin.class_names == ("plane", "naïve ship")
    assert (origin.data, origin.details["data"]) == ("CIFAR-10", "CIFAR-10")
    assert origin.report.notes == origin.report.problems == []
    assert not any(module.training for module in loaded.modules())


def test_content_hash_tells_weights_apart_and_not_their_precision_on_disk(tmp_path):
    model = save_small(tmp_path / "first")
    for name, dtype in (("whole", torch.float32), ("half", torch.float16)):
        save_model(tmp_path / name, model, NORMALIZE, dtype=dtype)
    marks = {content_hash(model), *(content_hash(load_model(tmp_path / name)) for name in ("whole", "half"))}
    assert len(marks) == 1
    with torch.no_grad():
        model.encoder.blocks[0].attn.qkv.bias[3] += 0.01
    assert content_hash(model) not in marks
    assert content_hash(model.encoder) != content_hash(model)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_missing_file_is_named(tmp_path, name):
    save_small(tmp_path)
    (tmp_path / name).unlink()
    assert name in loading_fails(tmp_path)


def test_foreign_format_is_refused(tmp_path):
    save_small(tmp_path)
    for content in ('{"format": "vit-patch-trainer/2"}', '{"model_type": "vit"}'):
        (tmp_path / CONFIG).write_text(content)
        for asked in ({}, {"part": "encoder"}):
            assert "not of the format vit-patch-trainer/1" in loading_fails(tmp_path, **asked)


@pytest.mark.parametrize("part", ["encoder", "autoencoder"])
def test_another_version_of_our_format_is_refused_by_all_that_read_it(part, tmp_path, capsys):
    whole = save_small(tmp_path)
    save_model(tmp_path, whole.encoder if part == "encoder" else whole, NORMALIZE)
    change(tmp_path, format="vit-patch-trainer/2")
    said = "is not of the format vit-patch-trainer/1, which this version reads, but of vit-patch-trainer/2"
    assert said in loading_fails(tmp_path)
    assert main(["checkpoint", "inspect", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
    with pytest.raises(CheckpointError, match=said):
        native_hints(read_checkpoint(tmp_path))


@pytest.mark.parametrize("key", ["sha256", "encoder", "decoder", "norm_pix_loss", "mean", "std", "class_names"])
def test_missing_key_is_named(tmp_path, key):
    save_small(tmp_path)
    change(tmp_path, without=key)
    assert repr(key) in loading_fails(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        dict(decoder=dict(dim=8, depth=2, num_heads=2)),
        dict(decoder=dict(dim=12, depth=1, num_heads=2)),
        dict(decoder=dict(dim=9, depth=1, num_heads=2)),
        dict(decoder=dict(dim=8, depth=1, num_heads=2, width=3)),
        dict(encoder=[1, 2]),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_the_weights_are_refused(tmp_path, changes):
    save_small(tmp_path)
    change(tmp_path, **changes)
    loading_fails(tmp_path)
