"""Laws of reading: nothing in a file is run; any damage ends in one line that names the file."""

import argparse
import json
import pickle
import struct
import zipfile
from pathlib import Path, PureWindowsPath

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import save_file
from tiny import Payload

from vit.checkpoints.reading import flatten, read_checkpoint
from vit.errors import CheckpointError

TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    return str(error.value)


# --- hostile pickles ------------------------------------------------------------------------------

PLACES = ["zip", "legacy", "folder", "part", "named safetensors"]


def put(place: str, content: bytes, folder: Path) -> Path:
    """The pickle `content` in one of the ways by which a checkpoint comes in; what to load."""
    if place in ("legacy", "named safetensors"):  # a pickle as it is, under torch's name or another
        path = folder / ("model.pth" if place == "legacy" else "model.safetensors")
        path.write_bytes(content)
        return path if place == "legacy" else folder
    name = {"zip": "model.pth", "folder": "pytorch_model.bin", "part": "part-1.bin"}[place]
    torch.save(TENSORS, folder / name)
    with zipfile.ZipFile(folder / name) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(folder / name, "w") as archive:
        for member, data in members.items():
            archive.writestr(member, content if member.endswith("/data.pkl") else data)
    if place == "part":
        index = {"weight_map": dict.fromkeys(TENSORS, name)}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder / name if place == "zip" else folder


@pytest.mark.parametrize(
    ("place", "within"), [*((place, False) for place in PLACES), ("zip", True)]
)
def test_a_hostile_pickle_is_named_and_not_run(place, within, tmp_path, monkeypatch):
    """By itself in every place; within a namespace, which is allowed; whatever the environment says."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    (tmp_path / "in").mkdir()
    payload = Payload(tmp_path / "marker")
    content = pickle.dumps(argparse.Namespace(x=payload) if within else payload, 2)
    message = refused(put(place, content, tmp_path / "in"))
    assert "io.open, which weights do not need; nothing in it was run" in message
    assert not (tmp_path / "marker").exists()
    pickle.loads(content)  # the test of the test: it is not harmless
    assert (tmp_path / "marker").exists()


# --- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_kinds_are_recognised_by_content_whatever_the_name(name, kind, tmp_path):
    path = tmp_path / name
    save(path, kind)
    source = read_checkpoint(path)
    assert source.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(value, TENSORS[key]) for key, value in source.tensors.items())
    assert source.files == (path,)


def save(path: Path, kind: str) -> None:
    if kind == "safetensors":
        save_file(TENSORS, path)
    else:
        torch.save(TENSORS, path, _use_new_zipfile_serialization=kind == "zip")


def test_parts_are_put_together(tmp_path):
    save_file({"x": torch.ones(2)}, tmp_path / "model-1.safetensors")
    save_file({"y": torch.zeros(3)}, tmp_path / "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    places = {"x": "model-1.safetensors", "y": "model-2.safetensors"}
    index.write_text(json.dumps({"weight_map": places}))
    for path in (tmp_path, index):
        assert read_checkpoint(path).tensors.keys() == {"x", "y"}
    # a name may not lead elsewhere
    (tmp_path / "inner").mkdir()
    inner = tmp_path / "inner" / index.name
    inner.write_text(json.dumps({"weight_map": {"x": "../model-1.safetensors"}}))
    with pytest.raises(FileNotFoundError, match=r"inner/model-1\.safetensors"):
        read_checkpoint(inner)
    # one part is of another checkpoint, which was cut elsewhere
    save_file({"x": torch.ones(2), "y": torch.ones(3)}, tmp_path / "model-2.safetensors")
    assert "x is in another part too" in refused(tmp_path)
    save_file({"y": torch.ones(3)}, tmp_path / "model-2.safetensors")
    index.write_text(json.dumps({"weight_map": places | {"z": "model-2.safetensors"}}))
    assert refused(tmp_path)


def test_settings_of_another_model_are_not_taken(tmp_path):
    save_file(TENSORS, tmp_path / "mine.safetensors")
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    # nobody else's
    assert read_checkpoint(tmp_path / "mine.safetensors").config == {"hidden_size": 3}
    save_file(TENSORS, tmp_path / "other.safetensors")
    assert read_checkpoint(tmp_path / "mine.safetensors").config == {}
    assert refused(tmp_path).endswith("weights: mine.safetensors, other.safetensors")
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert read_checkpoint(tmp_path).config == {"hidden_size": 3}


def test_nested_values_are_flattened():
    tree = {"m": {"w": torch.ones(1), 3: {"x": torch.zeros(2)}}, "lr": 0.1, "odd": {1, 2}}
    tree |= {"list": [torch.ones(3), {"deep": True}], "names": ["a", "b"]}
    tensors, values = flatten(tree)
    sizes = {name: value.numel() for name, value in tensors.items()}
    assert sizes == {"m.w": 1, "m.3.x": 2, "list.0": 3}
    assert values == {"lr": 0.1, "odd": "set", "list.1.deep": True, "names": ["a", "b"]}


def test_numbers_of_numpy_and_paths_in_training_files_are_harmless(tmp_path):
    numbers = {"lr": np.float64(0.5), "epoch": np.int64(3), "loss": np.float32(1.5)}
    paths = argparse.Namespace(output_dir=Path("runs"), job_dir=PureWindowsPath("c:/runs"))
    torch.save({"model": TENSORS, "schedule": numbers, "args": paths}, tmp_path / "training.pth")
    source = read_checkpoint(tmp_path / "training.pth")
    assert {name.removeprefix("model.") for name in source.tensors} == TENSORS.keys()


# --- damage and nonsense --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a checkpoint: EOFError"),
        (b"<!DOCTYPE html><html>Not found</html>", "a web page: the download failed"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha", "a pointer of Git LFS"),
        (pickle.dumps({"weight": [1.0]}, 2), "a plain Python pickle, which is not read"),
        (b"PK\x03\x04" + bytes(100), "not a checkpoint: "),
        (struct.pack("<Q", 1 << 60) + b"{" + bytes(100), "not a checkpoint: "),
    ],
)
def test_what_is_no_checkpoint_is_refused(content, reason, tmp_path):
    (tmp_path / "x.pth").write_bytes(content)
    assert f"{tmp_path}/x.pth is " in refused(tmp_path / "x.pth")
    assert reason in refused(tmp_path / "x.pth")


def test_settings_that_cannot_be_read(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    config = tmp_path / "config.json"
    for content in (b"{", b"\xff\xfe", b"[]", b"[" * 100_000):
        config.write_bytes(content)
        assert "config.json is damaged" in refused(tmp_path)
    for value in ("0" * 64, None):
        config.write_text(json.dumps({"sha256": value}))
        assert "is damaged: its SHA-256 is not the one in config.json" in refused(tmp_path)


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_cut_off_anywhere(kind, tmp_path):
    path = tmp_path / "x"
    save(path, kind)
    whole = path.read_bytes()
    for length in {*range(0, len(whole), max(1, len(whole) // 20)), len(whole) - 1}:
        path.write_bytes(whole[:length])
        refused(path)


def test_a_storage_shorter_than_its_tensor_is_refused(tmp_path):
    torch.save({"a": torch.arange(6.0), "b": torch.ones(400)}, tmp_path / "whole.pth")
    with (
        zipfile.ZipFile(tmp_path / "whole.pth") as whole,
        zipfile.ZipFile(tmp_path / "short.pth", "w") as short,
    ):
        for item in whole.infolist():
            content = whole.read(item)
            short.writestr(item, content[:8] if item.filename.endswith("data/0") else content)
    read_checkpoint(tmp_path / "whole.pth")
    refused(tmp_path / "short.pth")
