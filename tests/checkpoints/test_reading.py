"""Laws of reading: nothing in a file is run; any damage ends in one line that names the file."""

import argparse
import json
import pickle
import struct
import sys
import zipfile
from collections import deque
from contextlib import suppress
from pathlib import Path, PureWindowsPath

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import save_file
from small import timm_model
from tiny import Payload
from torch import Tensor, nn

from vit.checkpoints import load_model
from vit.checkpoints.reading import read_checkpoint
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
    with pytest.raises(CheckpointError, match=r"io\.open.*weights_only=False|its parts lack"):
        load_model(put(place, content, tmp_path / "in"))
    assert not (tmp_path / "marker").exists()
    pickle.loads(content)  # the test of the test: it is not harmless
    assert (tmp_path / "marker").exists()


def called(name: str, *arguments: object, then: bytes = b"") -> bytes:
    """The pickle of a call of "MODULE NAME" with arguments; `then` is done with the result."""
    module, _, function = name.partition(" ")
    values = pickle.dumps(arguments, 2)[2:-1]
    return f"c{module}\n{function}\n".encode() + values + b"R" + then


MARK = "open('marker', 'w')"
STATE = pickle.dumps({"x": 1}, 2)[2:-1]
PARAMETER = b"ctorch.nn.parameter\nParameter\n"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
HOSTILE = {
    "eval": called("builtins eval", MARK),
    "Python 2's name": called("__builtin__ eval", MARK),
    "system": called("os system", "touch marker"),
    "import": called("builtins __import__", "hostile_module"),
    "its own module": called("hostile_module Thing"),
    "dotted name": called("builtins open.__self__.eval", MARK),
    "torch.load": called("torch.serialization load", "inner.pkl"),
    "attribute": called("builtins getattr", None, "x", then=b"X\4\0\0\0evil\x85R"),
    "state": called("hostile_module Thing", then=STATE + b"b"),
    "slots": called("hostile_module Thing", then=b"N" + STATE + b"\x86b"),
    "class changed": PARAMETER + b"N" + STATE + b"\x86b",
    "function changed": REBUILD + STATE + b"b",
    "items of a class": PARAMETER + b"K\1K\2s",
    "stand-in changed": b"cbuiltins\neval\nN" + STATE + b"\x86b",
    "rebuilder of a type": b"ctorch._tensor\n_rebuild_from_type_v2\n"
    b"(cbuiltins\neval\ncbuiltins\nstr\nK\1\x85" + STATE + b"tR",
    "type of a tensor": b"ctorch._tensor\n_rebuild_from_type_v2\n"
    b"(" + REBUILD + b"chostile_module\nThing\n)" + STATE + b"tR",
    "from NumPy": called("torch._utils _rebuild_device_tensor_from_numpy", 1, 2, "cpu", False),
    "registry": b"\x82\1",
    "stacked name": b"X\x08\0\0\0builtinsX\4\0\0\0eval\x93",
    "new": b"cbuiltins\neval\nX\x13\0\0\0" + MARK.encode() + b"\x85\x81",
    "new with keywords": b"cbuiltins\neval\n)}\x92",
    "instance": b"(S'1'\nibuiltins\neval\n",
    "object": b"(cbuiltins\neval\nX\1\0\0\0001o",
    "persistent": b"X\4\0\0\0evalQ",
    "storage of a stand-in": b"(X\7\0\0\0storagecbuiltins\neval\nX\1\0\0\0000X\3\0\0\0cpuK\1tQ",
    "memo": called("builtins eval", MARK, then=b"q\0h\0K\1\x85R"),
    "huge": called("builtins bytearray", 1 << 62),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_no_pickle_runs_imports_or_changes_anything(case, tmp_path, monkeypatch):
    """Whether it is read past or refused; weights beside it are whole, or not read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("hostile_module.py").write_text(f"{MARK}\nclass Thing: pass")
    Path("inner.pkl").write_bytes(b"chostile_module\nThing\n.")
    torch.save(TENSORS, "weights.pth")
    with zipfile.ZipFile("weights.pth") as archive:
        weights = archive.read("weights/data.pkl")
    path = put("zip", weights[:-1] + b"X\4\0\0\0evil" + HOSTILE[case] + b"s.", tmp_path)
    changeable = (nn.Parameter, Tensor, torch._utils._rebuild_tensor_v2)
    before = [dict(vars(thing)) for thing in changeable]
    tensors = TENSORS
    with suppress(CheckpointError):
        tensors = read_checkpoint(path).tensors
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    assert not Path("marker").exists()
    assert "hostile_module" not in sys.modules
    assert [dict(vars(thing)) for thing in changeable] == before


# --- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_kinds_are_recognised_by_content_whatever_the_name(name, kind, tmp_path):
    path = tmp_path / name
    save(path, kind)
    source = read_checkpoint(path)
    assert source.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(value, TENSORS[key]) for key, value in source.tensors.items())
    assert source.files == (str(path),)


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


class Settings(dict):
    """As yacs and EasyDict have them: with items and attributes."""

    frozen = False


class Slots:
    __slots__ = ("weight",)

    def __init__(self):
        self.weight = torch.ones(1)


class Made(tuple):
    def __new__(cls, *, size: int):
        return super().__new__(cls, (size,))

    def __getnewargs_ex__(self):
        return (), {"size": self[0]}


def frozen_settings() -> Settings:
    settings = Settings(a=1, weight=torch.ones(2))
    settings.frozen = True
    return settings


# what owners keep beside the weights, and whether files of torch before 1.6 are read with it, too
OWNERS: dict[str, tuple[object, bool]] = {
    "NumPy's numbers": ([np.float64(0.5), np.int64(3), np.float32(1.5)], True),
    "paths": (argparse.Namespace(output=Path("runs"), job=PureWindowsPath("c:/runs")), True),
    "array of objects": (np.array([1, "a", None], dtype=object), False),
    "queue": (deque([1, 2], 5), False),
    "settings": (frozen_settings(), False),
    "slots": (Slots(), False),
    "made with keywords": (Made(size=3), False),
    "optimizer": (torch.optim.AdamW([nn.Parameter(torch.ones(2))]), False),
}


@pytest.mark.parametrize("case", OWNERS)
def test_what_training_keeps_beside_the_weights_is_read_past(case, tmp_path):
    kept, is_read_in_old_files = OWNERS[case]
    file = {"model": TENSORS, "kept": kept, "epoch": 3}
    torch.save(file, tmp_path / "training.pth")
    source = read_checkpoint(tmp_path / "training.pth")
    assert source.tensors.keys() == {f"model.{name}" for name in TENSORS}
    assert source.values["epoch"] == 3
    assert source.unread

    torch.save(file, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    if is_read_in_old_files:
        assert read_checkpoint(tmp_path / "old.pth").tensors.keys() == source.tensors.keys()
    else:
        assert "weights_only=False" in refused(tmp_path / "old.pth")


@pytest.mark.parametrize("name", ["reg_token", "fc.weight", "blocks.0.ls1.gamma"])
def test_an_object_in_place_of_a_tensor_of_the_network_is_refused(name, tmp_path):
    state = timm_model().state_dict()
    path = tmp_path / "training.pth"
    torch.save(
        {
            "state_dict": state,
            "hooks": Slots(),
            "counts": torch.eye(2).to_sparse(),
            "trained_on": "photos",
        },
        path,
    )
    notes = load_model(path, num_heads=4).origin.report.notes
    assert any("not read" in note and "Slots" in note for note in notes)
    torch.save({"state_dict": state | {name: Slots()}}, path)
    with pytest.raises(CheckpointError, match=f"{name} is a .*Slots, not a tensor; .*_only=False"):
        load_model(path, num_heads=4)
    # nor is what such an object holds taken for weights
    torch.save({"state_dict": Settings(state)}, path)
    with pytest.raises(CheckpointError, match=r"not read, .*Settings: who trusts"):
        load_model(path, num_heads=4)


# --- damage and nonsense --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<!DOCTYPE html><html>Not found</html>", "a web page: the download failed"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha", "a pointer of Git LFS"),
        (pickle.dumps({"weight": [1.0]}, 2), "a plain Python pickle, which is not read"),
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
