"""Reading is safe: hostile pickles are named and never run, and whatever is wrong with a file is said in one line."""

import argparse
import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vit.checkpoints import CheckpointError, load_model
from vit.checkpoints.reading import MOST_JSON, check_finite, flatten, read_checkpoint
from vit.cli import main

TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}


def refused(path: Path, names_path: bool = True) -> str:
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    message = str(error.value)
    assert error.value.exit_code == 2
    assert "\n" not in message
    assert not names_path or str(path) in message
    return message


# --- hostile pickles -------------------------------------------------------------------------------------------------


class Calls:
    """Pickled as a call of `function` with `arguments`."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def assembled(*operations: bytes) -> bytes:
    """A pickle written by hand, instruction by instruction."""
    return b"\x80\x04" + b"".join(operations) + b"."


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def hostile_pickles(marker: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that would make `marker` when loaded freely, and the global that each should be refused by."""
    touch = f"touch {marker}"
    python = f"open({str(marker)!r}, 'w')"
    by_hand = {
        "INST": (assembled(b"(", text(touch), b"ios\nsystem\n"), "os.system"),
        "OBJ": (assembled(b"(", b"cos\nsystem\n", text(touch), b"o"), "os.system"),
        "STACK_GLOBAL": (assembled(text("os"), text("system"), b"\x93", text(touch), b"\x85R"), "os.system"),
        "memo": (
            assembled(
                text("os"),
                b"q\x00",
                text("system"),
                b"q\x01",
                b"00",
                b"h\x00",
                b"h\x01",
                b"\x93",
                text(touch),
                b"\x85R",
            ),
            "os.system",
        ),
        "NEWOBJ": (
            assembled(b"csubprocess\nPopen\n", b"(", b"]", text("touch"), b"a", text(str(marker)), b"a", b"t\x81"),
            "subprocess.Popen",
        ),
        "BUILD": (
            assembled(
                b"cargparse\nNamespace\n", b")R", b"}", text("x"), b"cos\nsystem\n", text(touch), b"\x85R", b"sb"
            ),
            "os.system",
        ),
        "BINPERSID": (assembled(b"(", text("storage"), b"cos\nsystem\n", b"tQ"), "os.system"),
        "EXT1": (assembled(b"\x82\x01", text(touch), b"\x85R"), "copyreg.extension_1"),
    }
    calls = {
        "os.system": (Calls(os.system, touch), "posix.system"),
        "subprocess": (Calls(subprocess.Popen, ["touch", str(marker)]), "subprocess.Popen"),
        "eval": (Calls(eval, python), "builtins.eval"),
        "exec": (Calls(exec, python), "builtins.exec"),
        "import": (Calls(__import__, "os"), "builtins.__import__"),
        "getattr": (Calls(getattr, Calls(__import__, "os"), "system"), "builtins.getattr"),
        "open": (Calls(open, str(marker), "w"), "io.open"),
        "rmtree": (Calls(shutil.rmtree, str(marker.parent)), "shutil.rmtree"),
        "pickle in a pickle": (Calls(pickle.loads, pickle.dumps(Calls(os.system, touch))), "pickle.loads"),
        "torch.load": (Calls(torch.load, str(marker)), "torch.serialization.load"),
        "urllib": (Calls(urllib.request.urlretrieve, "file:///dev/null", str(marker)), "urllib.request.urlretrieve"),
        "beside tensors": ({"model": {"a": [1.0], "b": {"c": Calls(os.system, touch)}}}, "posix.system"),
        "Path": (Calls(Path.touch, marker), "builtins.getattr"),
    }
    return by_hand | {name: (pickle.dumps(call, protocol=2), mark) for name, (call, mark) in calls.items()}


NAMES = list(hostile_pickles(Path("marker")))


def put(place: str, content: bytes, folder: Path) -> Path:
    """The pickle `content` in one of the ways by which a checkpoint comes in; what to load."""
    if place == "legacy":  # a pickle as it is, under torch's name
        path = folder / "model.pth"
        path.write_bytes(content)
        return path
    if place == "named safetensors":
        path = folder / "model.safetensors"
        path.write_bytes(content)
        return folder
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


PLACES = ["zip", "legacy", "folder", "part", "named safetensors"]


def malicious_files(folder: Path, marker: Path) -> dict[str, Path]:
    """Checkpoints that would make `marker` when read freely: every hostile pickle in every place; what to load."""
    files = {}
    for name, (content, _) in hostile_pickles(marker).items():
        for place in PLACES:
            into = folder / f"{place}, {name}"
            into.mkdir(parents=True)
            files[into.name] = put(place, content, into)
    return files


def test_all_malicious_files_are_refused(tmp_path):
    files = malicious_files(tmp_path / "in", tmp_path / "marker")
    assert len(files) == len(NAMES) * len(PLACES)
    for path in files.values():
        assert "nothing of it was run" in refused(path)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_pickle_is_named_and_not_run(name, place, tmp_path, capsys):
    marker = tmp_path / "safe" / "marker"
    marker.parent.mkdir()
    (tmp_path / "in").mkdir()
    content, mark = hostile_pickles(marker)[name]
    path = put(place, content, tmp_path / "in")
    message = refused(path, names_path=False)
    assert mark in message.replace("nt.system", "posix.system")
    assert "nothing of it was run" in message
    with pytest.raises(CheckpointError):
        load_model(path)
    assert main(["checkpoint", "inspect", str(path)]) == 2
    out = tmp_path / "out"
    assert main(["checkpoint", "convert", str(path), "--to", "timm", "--out", str(out)]) == 2
    assert not out.exists()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(line.startswith("vit: error: ") for line in said)
    assert not marker.exists()
    assert marker.parent.exists()


def test_hostile_pickles_would_run_if_read_freely(tmp_path):
    """The test of the test: these are not harmless."""
    ran = 0
    for name, (content, _) in hostile_pickles(tmp_path / "marker").items():
        if name not in ("import", "getattr", "rmtree", "torch.load", "EXT1", "NEWOBJ", "BINPERSID"):
            pickle.loads(content)
            for _ in range(200):  # a started program takes its time
                if (tmp_path / "marker").exists():
                    break
                threading.Event().wait(0.01)
            ran += (tmp_path / "marker").exists()
            (tmp_path / "marker").unlink(missing_ok=True)
    assert ran >= 10


@pytest.mark.parametrize(
    ("content", "deed"),
    [
        (Calls(os.system, "true"), "which runs a shell command"),
        (Calls(subprocess.run, "true"), "which starts other programs"),
        (Calls(eval, "1"), "which runs any Python code"),
        (Calls(getattr, 1, "real"), "which reaches any function of Python"),
        (Calls(open, "x"), "which reads, writes or deletes files"),
        (Calls(pickle.loads, b""), "which loads another pickle"),
        (Calls(argparse.ArgumentParser), "is code of another package"),
    ],
)
def test_what_a_global_could_do_is_said(content, deed, tmp_path):
    torch.save({"a": torch.ones(1), "b": content}, tmp_path / "x.pth")
    assert deed in refused(tmp_path / "x.pth")


def test_numpy_and_whole_models_are_told_apart(tmp_path):
    import numpy as np

    torch.save({"a": torch.ones(1), "best": np.float64(3)}, tmp_path / "numpy.pth")
    assert "harmless as such" in refused(tmp_path / "numpy.pth")
    torch.save(torch.nn.Linear(2, 3), tmp_path / "whole.pth")
    message = refused(tmp_path / "whole.pth")
    assert "torch.nn.modules.linear.Linear, which is a whole model, code and all, instead of its weights" in message


@pytest.mark.parametrize("value", ["1", "true"])
def test_the_environment_opens_nothing(value, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", value)
    torch.save(Calls(os.system, f"touch {tmp_path / 'marker'}"), tmp_path / "x.pth")
    refused(tmp_path / "x.pth")
    assert not (tmp_path / "marker").exists()


def test_a_namespace_is_allowed_for_one_call(tmp_path):
    torch.save({"model": TENSORS, "args": argparse.Namespace(lr=0.1, name="x")}, tmp_path / "x.pth")
    source = read_checkpoint(tmp_path / "x.pth")
    assert (source.other["args.lr"], source.other["args.name"]) == (0.1, "x")
    assert argparse.Namespace not in torch.serialization.get_safe_globals()
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "x.pth", weights_only=True)
    torch.save(Calls(os.system, "true"), tmp_path / "bad.pth")
    refused(tmp_path / "bad.pth")
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors", "a.bin", "no suffix"])
@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_kinds_are_told_by_content_whatever_the_name(name, kind, tmp_path):
    path = tmp_path / name
    if kind == "safetensors":
        save_file(TENSORS, path)
    else:
        torch.save(TENSORS, path, _use_new_zipfile_serialization=kind == "zip")
    source = read_checkpoint(path)
    assert source.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(value, TENSORS[key]) for key, value in source.tensors.items())
    assert source.files == (path,)


def test_parts_are_put_together(tmp_path):
    save_file({"x": torch.ones(2)}, tmp_path / "model-1.safetensors")
    save_file({"y": torch.zeros(3)}, tmp_path / "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}}))
    for path in (tmp_path, index):
        assert {name: tuple(t.shape) for name, t in read_checkpoint(path).tensors.items()} == {"x": (2,), "y": (3,)}
    index.write_text(json.dumps({"weight_map": {"x": "model-2.safetensors", "y": "model-2.safetensors"}}))
    assert "disagree about x" in refused(tmp_path)
    for name in ("../model-1.safetensors", "/etc/passwd", "sub/x", "", "..", 3):
        index.write_text(json.dumps({"weight_map": {"x": name}}))
        assert "not a file beside it" in refused(tmp_path)
    index.write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    assert "gone.safetensors" in refused(tmp_path)
    index.write_text("{}")
    assert "no weight_map" in refused(tmp_path)


def test_settings_of_another_model_are_not_taken(tmp_path):
    save_file(TENSORS, tmp_path / "mine.safetensors")
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    assert read_checkpoint(tmp_path / "mine.safetensors").config == {"hidden_size": 3}  # nobody else's
    save_file(TENSORS, tmp_path / "other.safetensors")
    assert read_checkpoint(tmp_path / "mine.safetensors").config == {}
    assert "several files of weights (mine.safetensors, other.safetensors)" in refused(tmp_path)
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert (
        read_checkpoint(tmp_path).config == read_checkpoint(tmp_path / "model.safetensors").config == {"hidden_size": 3}
    )
    assert read_checkpoint(tmp_path / "mine.safetensors").config == {}


def test_an_unfinished_run_names_its_last_state(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for step in (3, 20):
        torch.save(TENSORS, tmp_path / "checkpoints" / f"step-{step:08d}.pt")
    save_file(TENSORS, tmp_path / "dynamics.safetensors")  # what was recorded of its training is no model
    assert f"{tmp_path / 'checkpoints' / 'step-00000020.pt'} is its last state" in refused(tmp_path)


def test_nested_values_are_flattened():
    tree = {"m": {"w": torch.ones(1), 3: {"x": torch.zeros(2)}}, "lr": 0.1, "list": [torch.ones(3), {"deep": True}],
            "names": ["a", "b"], "none": None, "size": torch.Size([1, 2]), "odd": {1, 2}}  # fmt: skip
    tensors, other = flatten(tree)
    assert {name: value.numel() for name, value in tensors.items()} == {"m.w": 1, "m.3.x": 2, "list.0": 3}
    assert other["lr"] == 0.1
    assert other["list.1.deep"] is True
    assert other["names"] == ["a", "b"]
    assert other["odd"] == "set"
    with pytest.raises(CheckpointError, match=r"two values are called a\.b"):
        flatten({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)})
    within: dict = {}
    within["itself"] = within
    with pytest.raises(CheckpointError, match="nested more than"):
        flatten(within)


def test_not_finite_values_are_counted():
    values = torch.zeros(3, 1 << 20)
    values[0, 5], values[2, 7] = float("nan"), float("inf")
    assert check_finite(values) == 2
    assert check_finite(values.to(torch.bfloat16).T) == 2
    assert check_finite(torch.ones(3, dtype=torch.long)) == 0
    assert check_finite(torch.full((1,), float("inf")).expand(3, 1 << 18)) == 3 << 18
    assert check_finite(torch.full((3,), 255, dtype=torch.uint8).view(torch.float8_e4m3fn)) == 3
    assert check_finite(torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)) == 0


# --- damage and nonsense ---------------------------------------------------------------------------------------------


def test_a_missing_a_locked_and_an_odd_path(tmp_path):
    assert "no checkpoint at" in refused(tmp_path / "gone")
    assert "no checkpoint at" in refused(Path("bad\0name"), names_path=False)
    (tmp_path / "empty").mkdir()
    assert "no model in" in refused(tmp_path / "empty")
    os.mkfifo(tmp_path / "pipe.pth")
    assert "is not a file" in refused(tmp_path / "pipe.pth")  # and does not wait for a writer


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>Not found</html>", "a web page: the download failed"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "a pointer of Git LFS"),
        (b"\x1f\x8b\x08" + bytes(100), "compressed by gzip"),
        (b"\x93NUMPY\x01\x00" + bytes(100), "an array of numpy"),
        (b'{"a": 1}', "JSON, not weights"),
        (b"cos\nsystem\n(S'true'\ntR.", "neither safetensors nor a checkpoint of torch"),
        (bytes(1000), "neither safetensors nor a checkpoint of torch"),
        (b"\x80\x02.", "is damaged"),
        (struct.pack("<Q", 1 << 60) + b"{" + bytes(100), "neither safetensors"),
    ],
)
def test_what_is_no_checkpoint_is_called_by_its_name(content, said, tmp_path):
    (tmp_path / "x.pth").write_bytes(content)
    assert said in refused(tmp_path / "x.pth")


def test_tar_archives_are_refused(tmp_path):
    with tarfile.open(tmp_path / "x.pth", "w") as archive:
        archive.addfile(tarfile.TarInfo("../../outside"), io.BytesIO())
    assert "a tar archive" in refused(tmp_path / "x.pth")


def safetensors_bytes(header: dict | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head) if length is None else length) + head + data


@pytest.mark.parametrize(
    "content",
    [
        safetensors_bytes({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 8]}}, bytes(8)),
        safetensors_bytes({"a": {"dtype": "F32", "shape": [2**63, 2**63], "data_offsets": [0, 8]}}, bytes(8)),
        safetensors_bytes({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, bytes(8)),
        safetensors_bytes({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 80]}}, bytes(8)),
        safetensors_bytes({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(4)),
        safetensors_bytes({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(80)),
        safetensors_bytes({"a": {"dtype": "X99", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        safetensors_bytes(
            {
                "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            },
            bytes(8),
        ),
        safetensors_bytes(
            b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}',
            bytes(2),
        ),
        safetensors_bytes(b"{not json" + b" " * 50),
        safetensors_bytes(b"{}" + b" " * 50, length=20),
    ],
    ids=range(11),
)
def test_broken_safetensors_are_refused(content, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(content)
    assert "damaged" in refused(tmp_path / "x.safetensors")


def rewritten(folder: Path, change) -> Path:
    """A checkpoint of torch whose archive is written again by `change(archive, members)`."""
    torch.save(TENSORS, folder / "from.pth")
    with zipfile.ZipFile(folder / "from.pth") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(folder / "x.pth", "w") as archive:
        change(archive, members)
    (folder / "from.pth").unlink()
    return folder / "x.pth"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_odd_archives_are_refused(tmp_path):
    def every(archive, members):
        for name, data in members.items():
            archive.writestr(name, data)

    assert read_checkpoint(rewritten(tmp_path, every)).tensors.keys() == TENSORS.keys()

    def compressed(archive, members):
        every(archive, members)
        archive.writestr("from/data/bomb", bytes(1 << 24), zipfile.ZIP_DEFLATED)

    for change, said in (
        (compressed, "compressed or encrypted"),
        (lambda a, m: (every(a, m), a.writestr("../../etc/cron.d/x", "x")), "points outside"),
        (lambda a, m: (every(a, m), a.writestr("/etc/passwd", "x")), "points outside"),
        (lambda a, m: (every(a, m), a.writestr("from/data.pkl", "x")), "two members"),
        (lambda a, m: (every(a, m), a.writestr("from/DATA.PKL", "x")), "two members"),
        (lambda a, m: (every(a, m), a.writestr("from/constants.pkl", "x")), "TorchScript"),
        (lambda a, m: (every(a, m), a.writestr("from/code/model.py", "x")), "TorchScript"),
        (lambda a, m: a.writestr("readme.txt", "x"), "not a checkpoint of torch"),
        (lambda a, m: None, "not a checkpoint of torch"),
    ):
        assert said in refused(rewritten(tmp_path, change))


def test_tensors_that_claim_what_is_not_there_are_refused(tmp_path):
    path = tmp_path / "x.pth"
    torch.save({"a": torch.ones(1).expand(10**6, 10**6)}, path)
    assert "a claims the shape 1000000 x 1000000" in refused(path)
    big = torch.ones(1000)
    torch.save({f"view{i}": big for i in range(100)}, path)
    assert "made to fill the memory" in refused(path)
    torch.save({"one": big, "tied": big}, path)  # weights may be shared
    assert read_checkpoint(path).tensors.keys() == {"one", "tied"}
    torch.save({"a": torch.eye(3).to_sparse()}, path)
    assert "a (3 x 3) is no ordinary tensor: Tensor, sparse_coo" in refused(path)
    torch.save({"a": torch.ones(3, device="meta")}, path)
    assert "refused" not in refused(path)
    torch.save({"a": torch._empty_affine_quantized([3], scale=0.1, zero_point=0, dtype=torch.qint8)}, path)
    assert "a (3) is no ordinary tensor: Tensor, quantized" in refused(path)


def test_settings_that_cannot_be_read(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    config = tmp_path / "config.json"
    for content in (b"", b"{", b"\xff\xfe", b"[]", b"3", b"[" * 100_000, b'{"a": "' + bytes(MOST_JSON) + b'"}'):
        config.write_bytes(content)
        assert "config.json" in refused(tmp_path, names_path=False)
    for value in ("", "0" * 64, 3, None, ["x"]):
        config.write_text(json.dumps({"sha256": value}))
        assert "is damaged: its SHA-256 is not the one in config.json" in refused(tmp_path, names_path=False)


# --- pickles that torch's own reader would build, and should not -----------------------------------------------------


def value(size: int = 4, stride: int = 1, legacy: bool = False) -> bytes:
    """A float32 tensor in a pickle, its values in the storage 0."""
    number = struct.pack("<i", size)
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"J" + number
    storage += b"NtQ" if legacy else b"tQ"
    shape = b"K\x00(J" + number + b"t(K" + bytes([stride]) + b"t\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + shape + b"tR"


def entry(name: str, content: bytes) -> bytes:
    """A pickle of a dict with one entry."""
    return b"\x80\x02}" + text(name) + content + b"s."


EXPENSIVE = {
    "a key deeper than the stack": (b"\x80\x02})" + b"\x85" * 2_000_000 + b"K\x01s.", "tuples nested"),
    "a key too deep to write": (b"\x80\x02})" + b"\x85" * 5000 + b"K\x01s.", "tuples nested"),
    "a key of 2^40 parts": (b"\x80\x02}K\x01" + b"q\x00h\x00\x86" * 40 + b"K\x01s.", "more than 10,000,000 values"),
    "lists of 2^40 parts": (entry("a", b"N" + b"q\x00](h\x00h\x00e" * 40), "more than 10,000,000 values"),
    "one list in many places": (
        entry("a", b"](](" + b"N" * 300_000 + b"eq\x01" + b"h\x01" * 100_000 + b"e"),
        "more than 10,000,000 values",
    ),
    "3 GB of zeros": (entry("a", b"cbuiltins\nbytearray\n\x8a\x04\xff\xff\xff\x7f\x85R"), "as much memory as the file says"),
    "memory as it was": (entry("a", b"ctorch\nFloatTensor\nK\x09\x85R"), "torch.FloatTensor"),
    "a slow encoding": (
        entry("a", b"c_codecs\nencode\n(" + text("".join(map(chr, range(0x4E00, 0x9E00))) * 3) + text("punycode") + b"tR"),
        "_codecs.encode",
    ),
    "a tensor with methods of its own": (
        entry("a", b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nNNNtR"),
        "torch._tensor._rebuild_from_type_v2",
    ),
    "a name of a megabyte": (entry("a" * 1_000_000, value()), "more than 1,000 characters"),
    "a name that is a tensor": (b"\x80\x02}" + value() + b"Ns.", "a Tensor where the name"),
    "a name of two lines": (entry("a\nb", value(1000, 0)), "a b claims the shape 1000"),
    "a name that is no text": (
        b"\x80\x02}X\x04\x00\x00\x00\xed\xa0\x80x" + value(1000, 0) + b"s.",
        r"\ud800x claims the shape 1000",
    ),
    "within itself": (b"\x80\x02}q\x00" + text("a") + b"h\x00s.", "nested more than 16 deep"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPENSIVE)
def test_a_pickle_that_would_fill_the_memory_or_take_for_ever_is_refused_at_once(name, tmp_path):
    content, said = EXPENSIVE[name]
    path = put("zip", content, tmp_path)
    start = time.perf_counter()
    assert said in refused(path)
    assert time.perf_counter() - start < 10


def test_attributes_of_a_dict_do_not_stand_in_for_its_methods(tmp_path):
    start = b"\x80\x02ccollections\nOrderedDict\n)R}" + text("items") + b"K\x05sb"
    path = put("zip", start + text("a.weight") + value() + b"s.", tmp_path)
    assert read_checkpoint(path).tensors.keys() == {"a.weight"}


def test_values_that_do_not_follow_are_not_made_up_from_memory(tmp_path):
    torch.save({}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    ahead = (tmp_path / "x.pt").read_bytes().split(b".", 3)[:3]  # before the values
    keys = pickle.dumps([], protocol=2)
    (tmp_path / "x.pt").write_bytes(b".".join([*ahead, entry("a", value(64, legacy=True)) + keys + bytes(500)]))
    assert "values that it names do not follow" in refused(tmp_path / "x.pt")


def test_an_archive_with_two_directories_is_refused(tmp_path):
    """zipfile and torch would follow different ones."""
    torch.save(TENSORS, tmp_path / "x.pth")
    whole = (tmp_path / "x.pth").read_bytes()
    assert zipfile.is_zipfile(io.BytesIO(whole[:64] + whole))
    (tmp_path / "x.pth").write_bytes(whole[:64] + whole)
    assert "is damaged" in refused(tmp_path / "x.pth")


def test_shards_with_names_that_no_system_takes(tmp_path):
    for name in ("a\\u0000b", "\\ud800", "a\\nb"):
        (tmp_path / "model.safetensors.index.json").write_text(
            f'{{"weight_map": {{"x": "{name}"}}}}'.replace("\\\\", "\\")
        )
        assert "not a file beside it" in refused(tmp_path)


@pytest.mark.parametrize("kind", ["zip", "legacy"])
def test_any_changed_instruction_gives_a_line_or_a_checkpoint(kind, tmp_path):
    """The archive around the pickle is whole, so that damage comes through to the reader; checksums do not help."""
    tree = {"model": TENSORS, "args": argparse.Namespace(lr=0.1), "step": [1, (2, "x")], "half": torch.ones(3).half()}
    torch.save(tree, tmp_path / "x", _use_new_zipfile_serialization=kind == "zip")
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "x") as archive:
            whole = archive.read("x/data.pkl")
    else:
        whole = (tmp_path / "x").read_bytes()
    generator = torch.Generator().manual_seed(1)
    outcomes = set()
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(int(torch.randint(1, 4, (), generator=generator))):
            where, byte = (int(torch.randint(n, (), generator=generator)) for n in (len(whole), 256))
            changed[where] = byte
        path = put(kind, bytes(changed), tmp_path)
        try:
            read_checkpoint(path)
            outcomes.add("read")
        except CheckpointError as error:
            outcomes.add("refused" if len(str(error).splitlines()) == 1 else str(error))
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_cut_off_anywhere(kind, tmp_path):
    path = tmp_path / "x"
    save_file(TENSORS, path) if kind == "safetensors" else torch.save(
        TENSORS, path, _use_new_zipfile_serialization=kind == "zip"
    )
    whole = path.read_bytes()
    for length in {*range(0, len(whole), max(1, len(whole) // 40)), len(whole) - 1}:
        path.write_bytes(whole[:length])
        refused(path)


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_any_flipped_bit_gives_a_line_or_a_checkpoint(kind, tmp_path):
    """Without a checksum a flipped bit may pass as another weight; it never ends in anything but CheckpointError."""
    path = tmp_path / "x"
    save_file(TENSORS, path) if kind == "safetensors" else torch.save(
        TENSORS, path, _use_new_zipfile_serialization=kind == "zip"
    )
    whole = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    outcomes = set()
    for _ in range(300):
        where, bit = (int(torch.randint(n, (), generator=generator)) for n in (len(whole), 8))
        path.write_bytes(whole[:where] + bytes([whole[where] ^ 1 << bit]) + whole[where + 1 :])
        try:
            read_checkpoint(path)
            outcomes.add("read")
        except CheckpointError as error:
            outcomes.add("refused" if len(str(error).splitlines()) == 1 else str(error))
    assert outcomes == {"read", "refused"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zip", "safetensors"])
def test_reading_takes_no_more_memory_than_the_file(kind, tmp_path):
    program = textwrap.dedent("""
        import sys
        from vit.checkpoints.reading import read_checkpoint
        def peak():
            return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
        read_checkpoint(sys.argv[1])
        before = peak()
        total = sum(float(t.sum()) for t in read_checkpoint(sys.argv[2]).tensors.values())
        print(peak() - before)
    """)
    paths = []
    for name, count in (("small", 1), ("large", 25 << 20)):
        tensors = {"a": torch.ones(count), "b": torch.ones(7)}
        paths.append(tmp_path / name)
        save_file(tensors, paths[-1]) if kind == "safetensors" else torch.save(tensors, paths[-1])
    done = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.1 * paths[1].stat().st_size
