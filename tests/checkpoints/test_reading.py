"""Laws of reading: nothing in a file is run; any damage ends in one line that names the file."""

import argparse
import gzip
import json
import os
import pickle
import re
import struct
import sys
import time
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PureWindowsPath

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import save_file
from tiny import Payload, seeded
from torch.distributed.checkpoint import format_utils

from vit.checkpoints.reading import count_not_finite, flatten, read_checkpoint
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


def test_a_whole_model_is_named(tmp_path):
    torch.save(torch.nn.Linear(2, 3), tmp_path / "whole.pth")
    assert "torch.nn.modules.linear.Linear" in refused(tmp_path / "whole.pth")


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


@pytest.mark.parametrize("length", [0x3C20, 0xA3C])
def test_the_length_of_a_header_may_read_as_the_start_of_a_web_page(length, tmp_path):
    save_file(TENSORS, tmp_path / "a.safetensors")
    content = (tmp_path / "a.safetensors").read_bytes()
    before = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + before].ljust(length)
    (tmp_path / "a.safetensors").write_bytes(
        length.to_bytes(8, "little") + header + content[8 + before :]
    )
    assert read_checkpoint(tmp_path / "a.safetensors").tensors.keys() == TENSORS.keys()


def save(path: Path, kind: str) -> None:
    if kind == "safetensors":
        save_file(TENSORS, path)
    else:
        torch.save(TENSORS, path, _use_new_zipfile_serialization=kind == "zip")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_path_that_is_not_utf8_is_no_damage(tmp_path):
    folder = tmp_path / os.fsdecode(b"mod\xe8le")
    folder.mkdir()
    save_file(TENSORS, tmp_path / "whole")
    (tmp_path / "whole").rename(folder / "model.safetensors")
    message = refused(folder, names_path=False)
    assert "its path is not UTF-8" in message
    assert "damaged" not in message


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
    for name in ("../model-1.safetensors", "/etc/passwd", 3):
        index.write_text(json.dumps({"weight_map": {"x": name}}))
        assert "not a file next to it" in refused(tmp_path)
    index.write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    assert "gone.safetensors" in refused(tmp_path)
    index.write_text("{}")
    assert "no weight_map" in refused(tmp_path)


def test_settings_of_another_model_are_not_taken(tmp_path):
    save_file(TENSORS, tmp_path / "mine.safetensors")
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    # nobody else's
    assert read_checkpoint(tmp_path / "mine.safetensors").config == {"hidden_size": 3}
    save_file(TENSORS, tmp_path / "other.safetensors")
    assert read_checkpoint(tmp_path / "mine.safetensors").config == {}
    assert "several files of weights (mine.safetensors, other.safetensors)" in refused(tmp_path)
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert (
        read_checkpoint(tmp_path).config
        == read_checkpoint(tmp_path / "model.safetensors").config
        == {"hidden_size": 3}
    )
    assert read_checkpoint(tmp_path / "mine.safetensors").config == {}


def test_an_unfinished_run_names_its_last_state(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for step in (3, 20):
        torch.save(TENSORS, tmp_path / "checkpoints" / f"step-{step:08d}.pt")
    save_file(TENSORS, tmp_path / "showcase.safetensors")  # its test images are no model
    message = refused(tmp_path)
    assert f"{tmp_path / 'checkpoints' / 'step-00000020.pt'} is its last state" in message
    assert "this run is not finished; finish it with --resume" in message
    last = (
        message.partition(": this run")[2].partition("now: ")[2].partition(" is its last state")[0]
    )
    assert read_checkpoint(last).tensors.keys() == TENSORS.keys()


def test_nested_values_are_flattened():
    tree = {
        "m": {"w": torch.ones(1), 3: {"x": torch.zeros(2)}},
        "lr": 0.1,
        "list": [torch.ones(3), {"deep": True}],
    }
    tree |= {"names": ["a", "b"], "none": None, "size": torch.Size([1, 2]), "odd": {1, 2}}
    tensors, other = flatten(tree)
    assert {name: value.numel() for name, value in tensors.items()} == {
        "m.w": 1,
        "m.3.x": 2,
        "list.0": 3,
    }
    assert other["lr"] == 0.1
    assert other["list.1.deep"] is True
    assert other["names"] == ["a", "b"]
    assert other["odd"] == "set"
    with pytest.raises(CheckpointError, match=r"two values are called a\.b"):
        flatten({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)})
    within: dict = {}
    within["itself"] = within
    with pytest.raises(CheckpointError, match="within itself"):
        flatten(within)


def test_not_finite_values_are_counted():
    values = torch.zeros(3, 1 << 20)
    values[0, 5], values[2, 7] = float("nan"), float("inf")
    assert count_not_finite(values) == 2
    assert count_not_finite(values.to(torch.bfloat16).T) == 2
    assert count_not_finite(torch.full((1,), float("inf")).expand(3, 1 << 18)) == 3 << 18
    assert count_not_finite(torch.full((3,), 255, dtype=torch.uint8).view(torch.float8_e4m3fn)) == 3


# --- damage and nonsense --------------------------------------------------------------------------


def test_a_missing_a_locked_and_an_odd_path(tmp_path):
    assert "no checkpoint at" in refused(tmp_path / "gone")
    assert "no checkpoint at" in refused(Path("bad\0name"), names_path=False)
    (tmp_path / "empty").mkdir()
    assert "no model in" in refused(tmp_path / "empty")
    os.mkfifo(tmp_path / "pipe.pth")
    assert "is not a file" in refused(tmp_path / "pipe.pth")  # and does not wait for a writer


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>Not found</html>", "a web page: the download failed"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n",
            "a pointer of Git LFS",
        ),
        (b'{"model_type": "vit"}', "is text, not weights; name the file of weights, or its folder"),
        (pickle.dumps({"weight": [1.0]}, 4), "is a plain Python pickle, which is not read"),
        (pickle.dumps({"weight": [1.0]}, 2), "is a plain Python pickle, which is not read"),
        (b"\x08\x0a\x12\x07pytorch\x1a\x062.14.1", "an ONNX program"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file"),
        (gzip.compress(bytes(100), mtime=0), "packed by gzip"),
        (bytes(1000), "is damaged"),
        (b"PK\x03\x04" + bytes(100), "is damaged"),
        (struct.pack("<Q", 1 << 60) + b"{" + bytes(100), "is damaged"),
        (
            struct.pack("<Q", 20) + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}',
            "is damaged",
        ),
    ],
)
def test_what_is_no_checkpoint_is_refused(content, reason, tmp_path):
    (tmp_path / "x.pth").write_bytes(content)
    assert reason in refused(tmp_path / "x.pth")


def test_a_file_of_another_kind_is_not_called_damaged(tmp_path):
    for name in ("flax_model.msgpack", "model.tflite", "table.npy"):
        (tmp_path / name).write_bytes(b"\x93NUMPY\x01\x00" + bytes(100))
        assert "is neither a file of PyTorch nor of safetensors" in refused(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("weights/model.pth", b"...")
    assert "a ZIP archive of other files (weights/model.pth)" in refused(tmp_path / "x.zip")


def test_programs_of_torch_are_called_by_their_name_and_give_their_weights(tmp_path):
    """As the messages say. torch.export takes seconds."""
    layer = torch.nn.Linear(3, 2)
    inputs = torch.ones(1, 3)
    torch.jit.trace(layer, inputs).save(tmp_path / "script.pt")
    assert "a TorchScript program" in refused(tmp_path / "script.pt")
    torch.export.save(torch.export.export(layer, (inputs,)), tmp_path / "program.pt2")
    assert "a program of torch.export" in refused(tmp_path / "program.pt2")

    torch.save(torch.jit.load(tmp_path / "script.pt").state_dict(), tmp_path / "a.pth")
    torch.save(torch.export.load(tmp_path / "program.pt2").state_dict, tmp_path / "b.pth")
    for name in ("a.pth", "b.pth"):
        tensors = read_checkpoint(tmp_path / name).tensors
        assert torch.equal(tensors["weight"], layer.weight)


def test_a_checkpoint_of_torch_distributed_names_the_command_that_joins_it(tmp_path):
    folder = tmp_path / "parts"
    torch.distributed.checkpoint.save({"model": TENSORS}, checkpoint_id=folder)
    for path in (folder, folder / ".metadata", folder / "__0_0.distcp"):
        message = refused(path)
        assert "a checkpoint of torch.distributed" in message
    assert f"`python -m {format_utils.__name__} dcp_to_torch {folder} FILE`" in message
    format_utils.dcp_to_torch_save(folder, tmp_path / "joined.pth")  # what this command calls
    tensors = read_checkpoint(tmp_path / "joined.pth").tensors
    assert {name.removeprefix("model.") for name in tensors} == TENSORS.keys()


def test_a_folder_of_saved_steps_names_them_in_their_order(tmp_path):
    """As transformers' Trainer writes them."""
    for step in (5, 10, 500):
        (tmp_path / f"checkpoint-{step}").mkdir()
        save_file(TENSORS, tmp_path / f"checkpoint-{step}" / "model.safetensors")
    (tmp_path / "runs").mkdir()
    message = refused(tmp_path)
    folders = re.findall(r"checkpoint-(\d+)", message)
    assert folders == ["5", "10", "500"]
    assert read_checkpoint(tmp_path / "checkpoint-10").tensors.keys() == TENSORS.keys()


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


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_any_flipped_bit_gives_a_line_or_a_checkpoint(kind, tmp_path):
    """Without a checksum a flipped bit may pass as another weight; else it is a CheckpointError."""
    path = tmp_path / "x"
    save(path, kind)
    whole = path.read_bytes()
    generator = seeded(0)
    outcomes = set()
    for _ in range(100):
        position, bit = (int(torch.randint(n, (), generator=generator)) for n in (len(whole), 8))
        path.write_bytes(
            whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :]
        )
        try:
            read_checkpoint(path)
            outcomes.add("read")
        except CheckpointError as error:
            outcomes.add("refused" if len(str(error).splitlines()) == 1 else str(error))
    assert outcomes == {"read", "refused"}


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


def test_threads_leave_warnings_and_allowed_types_as_they_were(tmp_path, monkeypatch):
    torch.save(TENSORS, tmp_path / "net.pth")
    running = []

    def load(*args, **kwargs):
        running.append(len(running))
        time.sleep(0.01)  # long enough for another thread to enter
        inside.append(len(running))
        running.pop()
        return real(*args, **kwargs)

    inside: list[int] = []
    real = torch.load
    monkeypatch.setattr(torch, "load", load)
    before = (list(warnings.filters), torch.serialization.get_safe_globals())
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read_checkpoint, [tmp_path / "net.pth"] * 8))
    assert inside == [1] * 8
    assert before == (list(warnings.filters), torch.serialization.get_safe_globals())
