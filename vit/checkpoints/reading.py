"""From a path to tensors and other values.

No code in a file is run: pickles go through torch's `weights_only=True`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import re
import stat
import threading
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from vit.errors import CheckpointError, one_line
from vit.weights import CONFIG_HASH, NAME, config_hash

NO_WEIGHTS = ("showcase.safetensors",)  # a run's test images
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
OF_THESE_WEIGHTS = (
    "format", "encoder", "decoder", "class_names", "data", "data_content_hash", "content_hash",
    "figures", "sha256", CONFIG_HASH,
)  # fmt: skip
"""The keys in config.json that transformers carries along when it saves other weights."""
PLAIN = str | int | float | None
OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
"""The beginning of torch's files before its version 1.6, which were several pickles."""
# what stands in place of weights, by its first bytes: failed downloads, files of other tools
OTHER_FILES = {
    rb"\s*<": "a web page: the download failed; fetch it again",
    rb"\s*version https://git-lfs":
        "a pointer of Git LFS, not the file itself: `git lfs pull` fetches it",
    # the first two fields are the version of the format and the name of a program
    rb"\x08[\x01-\x1f][\x12\x1a\x22\x32\x3a\x42]":
        "an ONNX program, which is not read; name the checkpoint that it was made of",
    rb"\x89HDF":
        "an HDF5 file, as Keras writes, which is not read; name weights of PyTorch",
    rb"GGUF": "a GGUF file, as llama.cpp reads, which is not read; name weights of PyTorch",
    rb"\x1f\x8b": "packed by gzip; unpack it, and name the file of weights in it",
}  # fmt: skip
# files of other tools in a ZIP archive, by the end of a name in it
OTHER_ARCHIVES = {
    "/constants.pkl":
        "a TorchScript program, which is not read, as loading it would run its code; if you trust "
        "it, torch.save(torch.jit.load(FILE).state_dict(), OTHER) writes its weights",
    "/archive_format":
        "a program of torch.export, which is not read, as it may hold code; if you trust it, "
        "torch.save(torch.export.load(FILE).state_dict, OTHER) writes its weights",
}  # fmt: skip


def _harmless_types() -> list[Any]:
    """Return the types in training files that torch may create, besides those it allows itself.

    They are the settings of MAE and DINO, the paths of submitit, and the numbers of a NumPy
    schedule.
    """
    types: list[Any] = [argparse.Namespace, np.dtype]

    # numbers, by the function that restores them under its old and its new name
    restore = np.float64(0).__reduce__()[0]
    types += [(restore, "numpy.core.multiarray.scalar"), (restore, "numpy._core.multiarray.scalar")]
    for code in "?" + np.typecodes["AllInteger"] + np.typecodes["Float"]:
        types.append(type(np.dtype(code)))

    # paths of any system, read as pure ones; Python 3.13 calls their module pathlib._local
    for kind in ("PosixPath", "WindowsPath"):
        pure = getattr(pathlib, f"Pure{kind}")
        for module in ("pathlib", "pathlib._local"):
            types += [(pure, f"{module}.{kind}"), (pure, f"{module}.Pure{kind}")]
    return types


HARMLESS = _harmless_types()
_torch_lock = threading.Lock()


@dataclass(frozen=True)
class Source:
    """The contents of a checkpoint.

    Attributes:
        path: as requested.
        tensors: all of them, on the CPU; keys of nested dicts are joined by dots.
        values: everything else under such keys: plain values as they are, anything else as the
            name of its type.
        config: the config.json next to the weights or, in our own files, in their metadata; empty
            if there is neither.
        config_place: which of them, for messages.
        preprocessor: the preprocessor_config.json next to the weights; empty if there is none.
        module: a timm model in memory, which describes itself.
        whole: the model in memory as it was given, whose heads show what they compute.
        files: of the weights; empty for a checkpoint in memory.
        verified: whether config.json holds the SHA-256 of the weights.
        notes: for the user, on how the checkpoint was read.
    """

    path: Path
    tensors: dict[str, Tensor]
    values: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    config_place: str = "config.json"
    preprocessor: dict[str, Any] = field(default_factory=dict)
    module: nn.Module | None = None
    whole: nn.Module | None = None
    files: tuple[Path, ...] = ()
    verified: bool = False
    notes: tuple[str, ...] = ()

    def error(self, problem: str) -> CheckpointError:
        """Return an error that names the checkpoint, and its class if its settings do."""
        name = str(self.path)
        classes = self.config.get("architectures")
        if isinstance(classes, list) and classes and str(classes[0]) not in name:
            name += f" ({shorten(str(classes[0]))})"
        return CheckpointError(f"{name}: {problem}")


# ---- Files ---------------------------------------------------------------------------------------


def read_checkpoint(path: str | Path) -> Source:
    """Read a file of weights, or a folder with one.

    Args:
        path: a .safetensors file; a torch file, recognised by its content; or a folder with
            model.safetensors, pytorch_model.bin, either of them in parts with an index, or a single
            file of weights.

    Raises:
        CheckpointError: it is missing, damaged, does not match its config.json, or holds more than
            weights.
    """
    path = Path(path)
    try:
        # the settings, if it is certain that they are of these weights
        main, folder = _locate(path)
        config: dict[str, Any] = {}
        preprocessor: dict[str, Any] = {}
        notes: tuple[str, ...] = ()
        if folder is not None:
            config, notes = _read_config(folder, path)
            preprocessor = _read_json(folder / "preprocessor_config.json")

        # the weights, all in one file or with the names of each part's tensors in an index
        parts: dict[Path, set[str] | None] = {main: None}
        if main.name.endswith(".index.json"):
            parts = _parts_of(main)
        if "sha256" in config:
            _check_weights(main, len(parts), config["sha256"])
        tensors: dict[str, Tensor] = {}
        values: dict[str, Any] = {}
        for file, expected in parts.items():
            tensors_in_file, values_in_file = _read_file(file)
            if expected is not None and tensors_in_file.keys() != expected:
                name = sorted(tensors_in_file.keys() ^ expected)[0]
                raise CheckpointError(
                    f"{file} and {main.name} disagree about {name}: parts of different checkpoints"
                )
            tensors |= tensors_in_file
            values |= values_in_file

        # a file of ours that was copied without its config.json
        config_place = "config.json"
        if not config and f"__metadata__.{NAME}" in values:
            config_place = "the settings in its metadata"
            config = _parse_json(values[f"__metadata__.{NAME}"], f"{main}: {config_place}")
    except OSError as error:
        raise CheckpointError(
            f"cannot read {error.filename or path}: {error.strerror or error}"
        ) from error
    return Source(
        path,
        tensors,
        values,
        config,
        config_place,
        preprocessor,
        files=tuple(parts),
        verified="sha256" in config,
        notes=notes,
    )


def _locate(path: Path) -> tuple[Path, Path | None]:
    """Return the file to read, and the folder whose config.json describes it, if any does.

    The file may be the index of a checkpoint in parts.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"no checkpoint at {path}: {reason}") from error

    # A file. The config.json beside it may be another model's if there are other weights.
    if stat.S_ISREG(mode):
        if path.name in FOLDER_FILES or _weights_in(path.parent) == [path]:
            return path, path.parent
        return path, None

    # a folder: the first of the usual names, else its only file of weights
    if not stat.S_ISDIR(mode):
        raise CheckpointError(f"{path} is not a file")
    for name in FOLDER_FILES:
        if (path / name).is_file():
            return path / name, path
    files = _weights_in(path)
    if len(files) == 1:
        return files[0], path
    if files:
        names = ", ".join(file.name for file in files[:6])
        raise CheckpointError(f"{path} holds several files of weights ({names}); name one of them")

    # parts that torch.distributed has written
    if (path / ".metadata").is_file():
        raise CheckpointError(f"{path} {_sharded(path)}")

    # a run that has not written its model yet has states
    states = sorted((path / "checkpoints").glob("step-*.pt"))
    if states:
        raise CheckpointError(
            f"no model in {path}: this run is not finished; finish it with --resume, "
            f"or load the model as it is now: {states[-1]} is its last state"
        )

    # the output of another trainer has a folder per saved step
    folders = [child for child in path.iterdir() if child.is_dir() and _holds_weights(child)]
    if folders:
        names = ", ".join(str(folder) for folder in sorted(folders, key=_by_numbers)[-4:])
        raise CheckpointError(f"no model in {path} itself; it has folders that hold one: {names}")
    raise CheckpointError(
        f"no model in {path}: neither model.safetensors nor another file of weights"
    )


def _holds_weights(folder: Path) -> bool:
    """Return whether a folder holds weights, as far as the names of its files tell."""
    usual = (*FOLDER_FILES, ".metadata")
    return any((folder / name).is_file() for name in usual) or bool(_weights_in(folder))


def _by_numbers(path: Path) -> list[int | str]:
    """Return a key that sorts checkpoint-9 before checkpoint-10."""
    parts: list[int | str] = []
    for part in re.split(r"(\d+)", path.name):
        if part.isdecimal():
            parts.append(int(part))
        else:
            parts.append(part)
    return parts


def _sharded(folder: Path) -> str:
    """Say what the parts in a folder are, and which command joins them."""
    return (
        "is a checkpoint of torch.distributed, in parts; `python -m "
        f"torch.distributed.checkpoint.format_utils dcp_to_torch {folder} FILE` joins them"
    )


def _weights_in(folder: Path) -> list[Path]:
    """Return a folder's files of weights, by their suffixes."""
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    return [file for file in files if file.name not in NO_WEIGHTS]


def _read_config(folder: Path, path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the config.json of a checkpoint, and notes on it.

    Args:
        folder: which holds it.
        path: of the checkpoint, for the message.

    Raises:
        CheckpointError: its own SHA-256 is another.
    """
    config = _read_json(folder / "config.json")
    notes: tuple[str, ...] = ()

    # Saved again by transformers, it keeps our keys, which tell of other weights.
    hashed = "sha256" in config or CONFIG_HASH in config
    if "transformers_version" in config and hashed:
        config = {key: value for key, value in config.items() if key not in OF_THESE_WEIGHTS}
        notes = (
            "transformers has saved it again: the SHA-256 and figures in config.json are "
            "of other weights",
        )
    if CONFIG_HASH in config and config[CONFIG_HASH] != config_hash(config):
        raise CheckpointError(
            f"{path}: config.json is damaged: its SHA-256 is not the one in it; "
            f"if it was edited on purpose, remove {CONFIG_HASH} from it"
        )
    return config, notes


def _read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty if there is no file."""
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    return _parse_json(text, str(path))


def _parse_json(text: str, place: str) -> dict[str, Any]:
    """Return a JSON object; `place` is for the message."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{place} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{place} is damaged: a JSON object is expected")
    return value


def _parts_of(index: Path) -> dict[Path, set[str] | None]:
    """Return the files of a checkpoint in parts, with the names of the tensors in each."""
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index} is damaged: no weight_map")
    parts: dict[Path, Any] = {}
    for tensor, file in names.items():
        # a name with a folder in it could lead anywhere
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{index} names the part {shorten(repr(file))}, which is not a file next to it"
            )
        parts.setdefault(index.parent / file, set()).add(tensor)
    return parts


def _check_weights(main: Path, count: int, expected: Any) -> None:
    """Refuse a file of weights, in `count` parts, whose SHA-256 is not the `expected` one."""
    with main.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # config.json has the hash of a single file
    if count != 1 or digest != expected:
        raise CheckpointError(f"{main} is damaged: its SHA-256 is not the one in config.json")


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and other values of one file, recognised by its content."""
    with path.open("rb") as file:
        start = file.read(100)
    if not start:
        raise CheckpointError(f"{path} is empty")

    try:
        # in safetensors, JSON follows the length of its header, which may be any 8 bytes
        if start[8:9] == b"{":
            return _read_safetensors(path)
        names = _names_in_archive(path)
        if names and all(name.endswith(".npy") for name in names):
            return _read_numpy(path)
        _refuse_other_file(path, start, names)
        tree = _read_torch(path)
    except CheckpointError:
        raise
    except Exception as error:  # both libraries raise nearly anything on damaged bytes
        raise CheckpointError(f"{path} {_reason(error, start, path.suffix)}") from error
    return flatten(tree, path)


def _names_in_archive(path: Path) -> list[str]:
    """Return the names in a ZIP archive, as torch's own files are; none for another file."""
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def _refuse_other_file(path: Path, start: bytes, names: list[str]) -> None:
    """Refuse a file that another tool has written, by what it is.

    Args:
        path: of the file.
        start: its first bytes.
        names: in it, if it is a ZIP archive.
    """
    if path.suffix == ".distcp" or path.name == ".metadata":
        raise CheckpointError(f"{path} {_sharded(path.parent)}")
    for magic, content in OTHER_FILES.items():
        if re.match(magic, start):
            raise CheckpointError(f"{path} is {content}")
    for end, content in OTHER_ARCHIVES.items():
        if any(name.endswith(end) for name in names):
            raise CheckpointError(f"{path} is {content}")
    if names and not any(name.endswith("data.pkl") for name in names):
        raise CheckpointError(
            f"{path} is a ZIP archive of other files ({shorten(', '.join(names))}); "
            "unpack it, and name the file of weights in it"
        )


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the metadata of a safetensors file."""
    # the library takes no other path, and its error reads as if the file were damaged
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{path}: its path is not UTF-8; rename it") from error
    tensors = {}
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  # it is no dict
            tensors[name] = file.get_tensor(name)
        metadata = file.metadata() or {}
    return tensors, {f"__metadata__.{key}": value for key, value in metadata.items()}


def _read_numpy(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the arrays of an .npz file as torch has them: Flax's layers are turned round.

    Folders in a name are joined by dots. Of a layer of attention heads, a value called `.heads` is
    their number.
    """
    tensors = {}
    values = {}
    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            array = arrays[name]
            layer, _, kind = name.replace("/", ".").rpartition(".")
            # big_vision's bfloat16, which NumPy does not know
            if array.dtype == np.dtype("V2"):
                tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
            elif array.dtype.kind in "fiub":
                tensor = torch.from_numpy(array)
            else:
                continue

            # A kernel has the inputs first, (p, q, C, D) or (..., D); queries, keys and values have
            # heads behind, (D, heads, values), as their biases have, (heads, values).
            if kind == "kernel" and tensor.ndim == 4:
                tensor = tensor.permute(3, 2, 0, 1)
            elif kind == "kernel" and tensor.ndim == 3 and not layer.endswith(".out"):
                values[f"{layer}.heads"] = tensor.shape[1]
                tensor = tensor.flatten(1).T
            elif kind == "kernel" and tensor.ndim >= 2:
                tensor = tensor.flatten(0, -2).T
            elif kind == "bias":
                tensor = tensor.flatten()
            if kind in ("kernel", "scale"):
                kind = "weight"
            tensors[f"{layer}.{kind}".lstrip(".")] = tensor
    return tensors, values


def _read_torch(path: Path) -> Any:
    """Return what torch.save has written, if it holds no more than weights and harmless types."""
    # Pass the open file, because torch trusts the name .safetensors. Do not map it: torch would
    # then let a tensor that is longer than its storage read the bytes behind it. One thread at a
    # time, because what is ignored and allowed meanwhile is so in all.
    with (
        _torch_lock,
        warnings.catch_warnings(action="ignore"),
        torch.serialization.safe_globals(HARMLESS),
        path.open("rb") as file,
    ):
        return torch.load(file, map_location="cpu", weights_only=True)


def _reason(error: Exception, start: bytes, suffix: str) -> str:
    """Say in a line what is wrong with a file, which begins with `start` and has this suffix.

    torch's own message is long, and advises loading the file unsafely.
    """
    # a type outside of what weights need: torch names it
    message = str(error)
    forbidden = re.search(r"GLOBAL (\S+)", message)
    if forbidden:
        return (
            f"asks for {forbidden[1]}, which weights do not need; nothing in it was run. "
            "Ask for the weights as .safetensors, or as a state dict alone"
        )

    # neither of torch's two formats
    if start[:1] == b"\x80" and not start.startswith(OLD_TORCH):
        return (
            "is a plain Python pickle, which is not read; nothing in it was run; "
            "save the weights with torch.save(model.state_dict(), FILE)"
        )
    if all(byte >= 32 or byte in b"\t\n\r" for byte in start):
        return "is text, not weights; name the file of weights, or its folder"

    # anything else, in the first sentence of the library's message
    message = re.sub(r".*WeightsUnpickler error:", "", message, flags=re.DOTALL).strip()
    sentence = re.split(r"\. |\n", message)[0]
    reason = shorten(sentence, 160) or type(error).__name__
    if suffix.lower() not in (*SUFFIXES, ".npz"):
        return f"is neither a file of PyTorch nor of safetensors: {reason}; nothing in it was run"
    if "Unpickl" in type(error).__name__:
        return f"is damaged, or holds more than weights: {reason}; nothing in it was run"
    return f"is damaged, or not a checkpoint: {reason}"


# ---- Nested values -------------------------------------------------------------------------------


def flatten(
    tree: Any, file: str | Path = "the state dict"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and other values of nested dicts, lists and namespaces.

    Args:
        tree: the outermost of them; the keys on the way to a value, joined by dots, are its name.
        file: what holds it, for messages.

    Raises:
        CheckpointError: two values have the same name, or a tensor is sparse or quantized.
    """
    # plain values stay; of anything else, the type is enough to recognise a format
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    try:
        for name, value in _leaves(tree, ""):
            if name in tensors or name in values:
                raise CheckpointError(f"{file}: two values are called {shorten(name)}")
            if isinstance(value, list | tuple | PLAIN):
                values[name] = value
            elif not isinstance(value, Tensor):
                values[name] = type(value).__name__
            else:
                tensors[name] = _ordinary_tensor(value, name, file)
    except RecursionError as error:
        raise CheckpointError(f"{file}: nested too deep, or within itself") from error
    return tensors, values


def _ordinary_tensor(tensor: Tensor, name: str, file: str | Path) -> Tensor:
    """Return a tensor on the CPU, unless it is on the device meta; names are for the message."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise CheckpointError(
            f"{file}: {shorten(name)} is not an ordinary tensor but sparse or quantized"
        )
    tensor = tensor.detach()
    if tensor.device.type == "meta":
        return tensor
    return tensor.cpu()


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the values within nested dicts, lists and namespaces with their names.

    A list of plain values is one value.
    """
    # anything with values in it, as a dict
    if isinstance(tree, argparse.Namespace):
        tree = vars(tree)
    if isinstance(tree, list | tuple) and not all(isinstance(item, PLAIN) for item in tree):
        tree = dict(enumerate(tree))
    if not isinstance(tree, dict):
        yield name, tree
        return

    prefix = f"{name}." if name else ""
    for key, value in tree.items():
        yield from _leaves(value, f"{prefix}{key}")


# ---- Values and words ----------------------------------------------------------------------------


def not_weights(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the tensors that cannot hold weights: name -> why."""
    problems = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "meta":
            problems[name] = f"{name} is on the device meta: it has a shape and no values"
        # torch converts every kind of floating point but this one
        elif not tensor.is_floating_point() or tensor.dtype is torch.float4_e2m1fn_x2:
            kind = str(tensor.dtype).removeprefix("torch.")
            problems[name] = f"{name} holds {kind}, not weights"
    return problems


def not_finite(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the tensors with values that are nan or infinite: name -> how many."""
    problems = {}
    for name, tensor in tensors.items():
        count = count_not_finite(tensor)
        if count:
            problems[name] = (
                f"{name} holds {count} values that are nan or infinite; "
                "the training that made it diverged, or the file is damaged"
            )
    return problems


def count_not_finite(tensor: Tensor) -> int:
    """Count the values of a tensor that are nan or infinite as float32, a small part at a time."""
    is_number = tensor.is_floating_point() or tensor.is_complex()
    if not is_number or tensor.dtype is torch.float4_e2m1fn_x2 or tensor.device.type == "meta":
        return 0
    # in parts, because each copy as float32 needs memory
    count = 0
    for part in tensor.detach().reshape(-1).split(1 << 16):
        if not part.is_complex():
            part = part.float()
        count += int((~torch.isfinite(part)).sum())
    return count


def shorten(text: str, most: int = 100) -> str:
    """Shorten text from outside for a message, on one line."""
    text = one_line(text[: most + 1])
    if len(text) <= most:
        return text
    return f"{text[:most]}..."


def first_few(names: list[str]) -> str:
    """Return at most four names as a part of a sentence."""
    text = ", ".join(names[:4])
    if len(names) > 4:
        text += f" and {len(names) - 4} more"
    return text


def size_text(value: Any) -> str:
    """Return a size as 16 x 16, anything else as it is."""
    if isinstance(value, tuple | list):
        return " x ".join(map(str, value)) or "of a single number"
    return str(value)
