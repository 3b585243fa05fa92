"""From a path to tensors and other values.

No code in a file is run: pickles go through torch's `weights_only=True`, in which nothing but
stand-ins without behaviour is added to what torch allows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from vit.errors import CheckpointError
from vit.weights import NAME, TRAINED_ON

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
OF_THESE_WEIGHTS = {
    "format", "encoder", "decoder", "class_names", "data", "data_content_hash", "content_hash",
    "figures", "sha256",
}  # fmt: skip
"""The keys in our config.json that transformers carries along when it saves other weights."""
PLAIN = str | int | float | None
WAY_OUT = (
    "who trusts the file takes the weights out, by "
    'torch.load(FILE, weights_only=False)["state_dict"] or their name in it, and saves them alone'
)
# what often stands instead of weights, by its first bytes
OTHER_FILES = {
    rb"\s*<": "a web page: the download failed; fetch it again",
    rb"\s*version https://git-lfs":
        "a pointer of Git LFS, not the file itself: `git lfs pull` fetches it",
    # torch's own files before its version 1.6 were several pickles, the first of this number
    rb"\x80(?!\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19)":
        "a plain Python pickle, which is not read; nothing in it was run; "
        "save the weights with torch.save(model.state_dict(), FILE)",
}  # fmt: skip

# what training files hold that torch's files before its version 1.6, whose names cannot be listed
# without reading them, may hold, too
USUAL = (
    "numpy.dtype", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar",
    "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib.PurePosixPath", "pathlib.PureWindowsPath",
)  # fmt: skip
_torch_lock = threading.Lock()


class Inert(type):
    """The type of classes that torch accepts to fill with items, to build and to call."""

    def __eq__(cls, other: object) -> bool:
        # torch compares dict with what it fills, and its list of types with what it calls
        return other is cls or other is dict or isinstance(other, cls)

    __hash__ = type.__hash__


class Unread(list[Any], metaclass=Inert):
    """Stands in for an object of a type that is not read.

    It accepts whatever a file does to such an object, calls it with, or puts into it, and does
    nothing. It is a list, because torch allows appending to nothing else.
    """

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def ignore(self, *args: Any) -> Unread:
        """Do nothing with what would be done to the object."""
        return self

    __call__ = __setitem__ = __setstate__ = append = extend = ignore  # type: ignore[assignment]


@dataclass(frozen=True)
class Source:
    """The contents of a checkpoint.

    Attributes:
        path: as requested, or what it is in memory.
        tensors: all of them, on the CPU; keys of nested dicts are joined by dots.
        values: everything else under such keys.
        config: the config.json next to the weights or, in our own files, in their metadata; empty
            if there is neither.
        preprocessor: the preprocessor_config.json next to the weights; empty if there is none.
        module: a library's model in memory, which describes itself: timm's, or transformers' with
            its settings in config.
        given_model: the model in memory as it was given, whose heads show what they compute.
        files: of the weights; empty for a checkpoint in memory.
    """

    path: str
    tensors: dict[str, Tensor]
    values: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    preprocessor: dict[str, Any] = field(default_factory=dict)
    module: nn.Module | None = None
    given_model: nn.Module | None = None
    files: tuple[str, ...] = ()

    @property
    def unread(self) -> dict[str, str]:
        """The types of the values that are not read, by the names of these values."""
        values = self.values.items()
        return {key: type(value).__name__ for key, value in values if isinstance(value, Unread)}

    def error(self, problem: str) -> CheckpointError:
        """Return an error that names the checkpoint, and what of it is not read."""
        types = dict.fromkeys(self.unread.values())
        if types:
            problem += f"; it holds what is not read, {first_few(types)}: {WAY_OUT}"
        return CheckpointError(f"{self.path}: {problem}")


# ---- Files ---------------------------------------------------------------------------------------


def read_checkpoint(path: Path) -> Source:
    """Read a file of weights, or a folder with one.

    Args:
        path: a .safetensors file; a torch file, recognised by its content; or a folder with one of
            `FOLDER_FILES`.
    """
    main = path
    if path.is_dir():
        main = _file_in(path)
    # the weights, all in one file or in parts, which an index names
    parts = [main]
    named: dict[str, str] = {}
    if main.name.endswith(".index.json"):
        named = _read_json(main)["weight_map"]
        parts = [main.parent / Path(place).name for place in dict.fromkeys(named.values())]

    # the settings, if it is certain that they are of these weights
    config: dict[str, Any] = {}
    preprocessor: dict[str, Any] = {}
    if main.name in FOLDER_FILES or _weights_in(main.parent) == [main]:
        config = without_ours(_read_json(main.parent / "config.json"))
        preprocessor = _read_json(main.parent / "preprocessor_config.json")
    if "sha256" in config:
        with main.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != config["sha256"]:
            raise CheckpointError(f"{main} is damaged: its SHA-256 is not the one in config.json")

    # the images that our own weights were trained on stand beside them
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    beside = main.parent / TRAINED_ON
    if "sha256" in config and beside.is_file():
        _, values = _read_file(beside)
    for part in parts:
        tensors_in_part, values_in_part = _read_file(part)
        for name in tensors_in_part.keys() & tensors:
            raise CheckpointError(f"{part}: {name} is in another part too; save all parts again")
        tensors |= tensors_in_part
        values |= values_in_part
    # without its last layers or its head, another model would load silently
    lost = sorted(named.keys() - tensors)
    if lost:
        raise CheckpointError(f"{main}: its parts lack {first_few(lost)}; save all parts again")

    # a file of ours that was copied without its config.json
    if not config and f"__metadata__.{NAME}" in values:
        config = _parse_json(values[f"__metadata__.{NAME}"], f"{main}: its metadata")
    return Source(str(path), tensors, values, config, preprocessor, files=tuple(map(str, parts)))


def _file_in(folder: Path) -> Path:
    """Return the file of weights in a folder, or the index of its parts, by the usual names."""
    for name in FOLDER_FILES:
        if (folder / name).is_file():
            return folder / name
    # what there is instead, such as a run's checkpoints or the steps that another trainer has saved
    weights = [*_weights_in(folder), *_weights_in(folder, "*/*")]
    names = [str(file.relative_to(folder)) for file in weights]
    raise CheckpointError(
        f"no model in {folder}: none of {', '.join(FOLDER_FILES)}; name one of its files of "
        f"weights: {', '.join(names[-6:]) or 'it has none'}"
    )


def _weights_in(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(file for file in folder.glob(pattern) if file.suffix in SUFFIXES)


def without_ours(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json without our keys, if transformers has carried them along.

    They describe the weights that it has loaded, not those that it has saved.
    """
    if "transformers_version" not in config or "sha256" not in config:
        return config
    return {key: value for key, value in config.items() if key not in OF_THESE_WEIGHTS}


def _read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty if there is no file."""
    if not path.is_file():
        return {}
    return _parse_json(path.read_bytes(), str(path))


def _parse_json(text: str | bytes, place: str) -> dict[str, Any]:
    try:
        # an object, not a list or a number
        return {**json.loads(text)}
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{place} is damaged: {error}") from error


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and other values of one file, recognised by its content."""
    with path.open("rb") as file:
        start = file.read(100)
    try:
        # in safetensors, JSON follows the length of its header, which may be any 8 bytes
        if start[8:9] == b"{":
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, {f"__metadata__.{key}": value for key, value in metadata.items()}
        if path.suffix == ".npz":
            return _read_numpy(path)
        if path.suffix == ".npy":
            return {}, {path.stem: np.load(path)}
        # Pass the open file, because torch trusts the name .safetensors. Do not map it: torch would
        # then let a tensor that is longer than its storage read the bytes behind it. One thread at
        # a time, because what is ignored and allowed meanwhile holds in all threads.
        with (
            _torch_lock,
            warnings.catch_warnings(action="ignore"),
            torch.serialization.safe_globals([argparse.Namespace]),
            path.open("rb") as file,
        ):
            try:
                types = torch.serialization.get_unsafe_globals_in_checkpoint(file)
            except ValueError:  # it is older, or no checkpoint
                types = [*USUAL]
            file.seek(0)
            # nothing that torch does not know is looked up: a class of this name stands in for it
            stand_ins: list[Any] = [(type(name, (Unread,), {}), name) for name in types]
            with torch.serialization.safe_globals(stand_ins):
                return flatten(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # the libraries raise nearly anything on damaged bytes
        # torch's own message is long, and advises loading the file unsafely
        problem = (
            f"damaged, or not a checkpoint: {type(error).__name__}; nothing in it was run "
            "(--debug, VIT_DEBUG=1, shows what was wrong)"
        )
        for magic, content in OTHER_FILES.items():
            if re.match(magic, start):
                problem = content
        # a type that weights do not need, which torch names, in an older file or from the system
        forbidden = re.search(r"GLOBAL (\S+)", str(error))
        if forbidden:
            problem = (
                f"not read: it asks for {forbidden[1]}, which weights do not need; nothing in it "
                f"was run; {WAY_OUT}"
            )
        raise CheckpointError(f"{path} is {problem}") from error


def _read_numpy(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the arrays of an .npz file in torch's layout: Flax's layers are transposed.

    Folders in a name are joined by dots. For a layer of attention heads, a value called `.heads` is
    their number.
    """
    tensors = {}
    values = {}
    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            array = arrays[name]
            layer, _, kind = name.replace("/", ".").rpartition(".")
            if array.dtype.kind not in "fiub":
                continue
            tensor = torch.from_numpy(array)

            # A kernel has the inputs first, (p, q, C, D) or (..., D); queries, keys and values have
            # the heads after them, (D, heads, values), as have their biases, (heads, values).
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


# ---- Nested values -------------------------------------------------------------------------------


def flatten(tree: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, on the CPU, and other values of nested dicts, lists and namespaces.

    The keys on the way to a value, joined by dots, are its name.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for name, value in _leaves(tree, ""):
        if isinstance(value, Tensor):
            value = value.detach()
            tensors[name] = value if value.is_meta else value.cpu()
        else:
            values[name] = value
    return tensors, values


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
    for key, value in tree.items():
        yield from _leaves(value, f"{name}.{key}" if name else str(key))


# ---- Words -------------------------------------------------------------------------------------


def first_few(names: Iterable[str]) -> str:
    """Return at most four names as a part of a sentence."""
    names = [*names]
    text = ", ".join(names[:4])
    if len(names) > 4:
        text += f" and {len(names) - 4} more"
    return text


def size_text(value: Any) -> str:
    """Return a size as 16 x 16, anything else unchanged."""
    if isinstance(value, tuple | list):
        return " x ".join(map(str, value))
    return str(value)
