"""Laws of fetching: from one commit, and nothing that would run; failures are one line.

The hub is a folder on this machine.
"""

import shutil
from fnmatch import fnmatchcase

import pytest
import torch
from small import refused, timm_folder
from tiny import NORMALIZE, Payload, encoder, same, save

from vit.checkpoints import load_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TIMM = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder of ORGANISATION/NAME, of which huggingface_hub would fetch one commit."""

    def snapshot_download(repository, revision, allow_patterns):
        assert revision in (None, "v2", COMMIT)
        snapshot = tmp_path / "cache" / repository / COMMIT
        snapshot.mkdir(parents=True, exist_ok=True)
        for file in (tmp_path / "hub" / repository).iterdir():
            if any(fnmatchcase(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, snapshot)
        revisions.append(revision)
        return str(snapshot)

    revisions = []
    monkeypatch.setattr("vit.checkpoints.hub.snapshot_download", snapshot_download)
    (tmp_path / "hub" / "me").mkdir(parents=True)
    return revisions


def test_a_models_weights_and_settings_are_fetched_and_nothing_else(hub, tmp_path):
    model = encoder()
    save(tmp_path / "hub" / "me" / "tiny", model, NORMALIZE, (), "some | images *")
    (tmp_path / "hub" / "me" / "tiny" / "secret.bin").write_text("not asked for")
    for name in ("hf/me/tiny", "hf/me/tiny@v2"):
        got = load_model(name)
        same(got, model)
        assert got.origin.normalize.mean == NORMALIZE.mean
        assert got.origin.source == name
    assert hub == [None, "v2"]
    assert not any("secret" in path.name for path in (tmp_path / "cache").rglob("*"))


def test_hostile_pickles_from_a_hub_do_not_run(hub, tmp_path):
    for name in ("me/bin", TIMM):
        (tmp_path / "hub" / name).mkdir(parents=True)
        state = {"a": torch.ones(1), "b": Payload(tmp_path / "marker")}
        torch.save(state, tmp_path / "hub" / name / "pytorch_model.bin")
    assert "io.open" in refused("hf/me/bin")
    assert hub == [None, COMMIT]  # the pickle is of the same commit
    refused(TIMM)
    assert not (tmp_path / "marker").exists()


def test_timm_names_are_fetched_from_the_hub(hub, tmp_path):
    theirs = timm_folder(tmp_path / "hub" / TIMM, "vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    ours = load_model(TIMM, image_size=32, patch_size=4, num_classes=0)
    assert ours.origin.normalize.mean == [0.5, 0.5, 0.5]
    assert torch.equal(ours.blocks[3].attn.qkv.weight, theirs.blocks[3].attn.qkv.weight)
    assert ours.config.num_heads == 3
    assert ours(torch.randn(1, 3, 32, 32)).shape == (1, 65, 192)
    assert "no plain vision transformer" in refused("timm/resnet18.a1_in1k")


def test_a_cache_with_settings_alone_says_that_the_weights_are_not_there(hub, tmp_path):
    """As huggingface_hub returns it without a network."""
    for name in ("me/settings", TIMM):
        (tmp_path / "hub" / name).mkdir(parents=True)
        (tmp_path / "hub" / name / "config.json").write_text("{}")
    for name in ("hf/me/settings", TIMM):
        message = refused(name)
        assert "is in the cache" in message
        assert "the hub cannot be reached, or its repository has none" in message
