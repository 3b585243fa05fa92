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

from vit.checkpoints.network import count_not_finite
from vit.checkpoints.reading import flatten, read_checkpoint
from vit.errors import CheckpointError

TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}


def refused(path: Path, names_path: bool = True) -> str:
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    message = str(error.value)
    assert error.value.exit_code == 2
    assert not names_path or str(path) in message
    return message


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
    ("place", "protocol", "within"),
    [*((place, 2, False) for place in PLACES), ("zip", 2, True), ("zip", 4, False)],
)
def test_a_hostile_pickle_is_named_and_not_run(place, protocol, within, tmp_path):
    """By itself in every place; within a namespace, which is allowed; of an unknown protocol."""
    (tmp_path / "in").mkdir()
    payload = Payload(tmp_path / "marker")
    content = pickle.dumps(argparse.Namespace(x=payload) if within else payload, protocol)
    message = refused(put(place, content, tmp_path / "in"), names_path=False)
    assert protocol == 4 or "io.open" in message
    assert "nothing in it was run" in message
    assert not (tmp_path / "marker").exists()
    pickle.loads(content)  # the test of the test: it is not harmless
    assert (tmp_path / "marker").exists()


def test_the_environment_opens_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save(Payload(tmp_path / "marker"), tmp_path / "x.pth")
    refused(tmp_path / "x.pth")
    assert not (tmp_path / "marker").exists()


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
    index.write_text(
        json.dumps({"weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}})
    )
    for path in (tmp_path, index):
        assert {name: tuple(t.shape) for name, t in read_checkpoint(path).tensors.items()} == {
            "x": (2,),
            "y": (3,),
        }
    index.write_text(
        json.dumps({"weight_map": {"x": "model-2.safetensors", "y": "model-2.safetensors"}})
    )
    assert "disagree about x" in refused(tmp_path)
    # a name may not lead elsewhere
    (tmp_path / "inner").mkdir()
    index.rename(tmp_path / "inner" / index.name)
    index = tmp_path / "inner" / index.name
    index.write_text(json.dumps({"weight_map": {"x": "../model-1.safetensors"}}))
    with pytest.raises(FileNotFoundError, match=r"inner/model-1\.safetensors"):
        read_checkpoint(index)


def test_settings_of_another_model_are_not_taken(tmp_path):
    save_file(TENSORS, tmp_path / "mine.safetensors")
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    # nobody else's
    assert read_checkpoint(tmp_path / "mine.safetensors").config == {"hidden_size": 3}
    save_file(TENSORS, tmp_path / "other.safetensors")
    assert read_checkpoint(tmp_path / "mine.safetensors").config == {}
    assert "name one of its files: mine.safetensors, other.safetensors" in refused(tmp_path)
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert (
        read_checkpoint(tmp_path).config
        == read_checkpoint(tmp_path / "model.safetensors").config
        == {"hidden_size": 3}
    )
    assert read_checkpoint(tmp_path / "mine.safetensors").config == {}


def test_nested_values_are_flattened():
    tree = {"m": {"w": torch.ones(1), 3: {"x": torch.zeros(2)}}, "lr": 0.1, "odd": {1, 2}}
    tree |= {"list": [torch.ones(3), {"deep": True}], "names": ["a", "b"]}
    tensors, values = flatten(tree)
    sizes = {name: value.numel() for name, value in tensors.items()}
    assert sizes == {"m.w": 1, "m.3.x": 2, "list.0": 3}
    assert values == {"lr": 0.1, "odd": "set", "list.1.deep": True, "names": ["a", "b"]}
    with pytest.raises(CheckpointError, match=r"two values are called a\.b"):
        flatten({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)})


def test_not_finite_values_are_counted():
    values = torch.zeros(3, 1 << 20)
    values[0, 5], values[2, 7] = float("nan"), float("inf")
    assert count_not_finite(values) == 2
    assert count_not_finite(values.to(torch.bfloat16).T) == 2
    assert count_not_finite(torch.full((1,), float("inf")).expand(3, 1 << 18)) == 3 << 18
    assert count_not_finite(torch.full((3,), 255, dtype=torch.uint8).view(torch.float8_e4m3fn)) == 3


# --- damage and nonsense --------------------------------------------------------------------------


def test_a_folder_without_a_model_names_what_it_holds(tmp_path):
    assert "it is empty" in refused(tmp_path)
    (tmp_path / "config.yaml").touch()
    assert refused(tmp_path).endswith("name one of its files: config.yaml")
    (tmp_path / "checkpoints").mkdir()
    for step in (3, 20):
        torch.save(TENSORS, tmp_path / "checkpoints" / f"step-{step:08d}.pt")
    last = refused(tmp_path).rpartition(", ")[2]
    assert read_checkpoint(tmp_path / last).tensors.keys() == TENSORS.keys()
    with pytest.raises(FileNotFoundError):
        read_checkpoint(tmp_path / "gone")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a checkpoint: EOFError"),
        (b"<!DOCTYPE html><html>Not found</html>", "a web page: the download failed"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n",
            "a pointer of Git LFS",
        ),
        (pickle.dumps({"weight": [1.0]}, 4), "a plain Python pickle, which is not read"),
        (pickle.dumps({"weight": [1.0]}, 2), "a plain Python pickle, which is not read"),
        (bytes(1000), "not a checkpoint: "),
        (b"PK\x03\x04" + bytes(100), "not a checkpoint: "),
        (struct.pack("<Q", 1 << 60) + b"{" + bytes(100), "not a checkpoint: "),
        (
            struct.pack("<Q", 20) + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}',
            "not a checkpoint: ",
        ),
    ],
)
def test_what_is_no_checkpoint_is_refused(content, reason, tmp_path):
    (tmp_path / "x.pth").write_bytes(content)
    assert reason in refused(tmp_path / "x.pth")


def test_settings_that_cannot_be_read(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    config = tmp_path / "config.json"
    for content in (b"", b"{", b"\xff\xfe", b"[]", b"[" * 100_000):
        config.write_bytes(content)
        assert "config.json" in refused(tmp_path, names_path=False)
    for value in ("", "0" * 64, 3, None, ["x"]):
        config.write_text(json.dumps({"sha256": value}))
        assert "is damaged: its SHA-256 is not the one in config.json" in refused(
            tmp_path, names_path=False
        )


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_cut_off_anywhere(kind, tmp_path):
    path = tmp_path / "x"
    save(path, kind)
    whole = path.read_bytes()
    for length in {*range(0, len(whole), max(1, len(whole) // 20)), len(whole) - 1}:
        path.write_bytes(whole[:length])
        refused(path)


# --- training files -------------------------------------------------------------------------------


def test_numbers_of_numpy_and_paths_in_training_files_are_harmless(tmp_path):
    schedule = {"lr": np.float64(0.5), "epoch": np.int64(3), "loss": np.float32(1.5)}
    places = argparse.Namespace(output_dir=Path("runs"), job_dir=PureWindowsPath("c:/runs"))
    torch.save({"model": TENSORS, "schedule": schedule, "args": places}, tmp_path / "training.pth")
    source = read_checkpoint(tmp_path / "training.pth")
    assert {name.removeprefix("model.") for name in source.tensors} == TENSORS.keys()


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
@pytest.mark.parametrize("kind", ["PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"])
def test_paths_of_another_system_or_python_are_harmless(module, kind, tmp_path):
    content = pickle.dumps({"output_dir": Path("runs")}, 2)
    written = f"{Path.__module__}\n{type(Path()).__name__}\n".encode()
    assert written in content
    put("zip", content.replace(written, f"{module}\n{kind}\n".encode()), tmp_path)
    assert "Path" in read_checkpoint(tmp_path / "model.pth").values["output_dir"]


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
