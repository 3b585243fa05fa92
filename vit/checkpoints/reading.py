"""From a path to tensors. No code in a file is run: pickles go through torch's `weights_only=True`."""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import re
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from vit.errors import CheckpointError, one_line
from vit.weights import CONFIG_HASH, config_hash

NO_WEIGHTS = ("showcase.safetensors",)  # a run's test images
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# types in training files: the settings of MAE and DINO, the paths of submitit, the numbers of a NumPy schedule
_SCALAR = np.float64(0).__reduce__()[0]
_NUMBERS = {
    type(np.dtype(code)) for code in "?" + np.typecodes["AllInteger"] + np.typecodes["Float"]
}
# of any system; Python 3.13 calls their module pathlib._local
_PATHS = [
    (getattr(pathlib, f"Pure{kind}"), f"{module}.{pure}{kind}")
    for kind in ("PosixPath", "WindowsPath") for pure in ("", "Pure") for module in ("pathlib", "pathlib._local")
]  # fmt: skip
HARMLESS: list[Any] = [
    argparse.Namespace, np.dtype, *_NUMBERS, *_PATHS,
    (_SCALAR, "numpy.core.multiarray.scalar"), (_SCALAR, "numpy._core.multiarray.scalar"),
]  # fmt: skip
OF_THESE_WEIGHTS = (
    "format", "encoder", "decoder", "class_names", "data", "data_content_hash", "content_hash", "figures", "sha256",
    CONFIG_HASH,
)  # fmt: skip
"""The keys in config.json that transformers carries along when it saves other weights."""
PLAIN = str | int | float | None
OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
"""The beginning of torch's files before its version 1.6, which were several pickles."""
# what a failed download leaves in place of weights
NOT_WEIGHTS = (
    (b"<", "a web page: the download failed; fetch it again"),
    (
        b"version https://git-lfs",
        "a pointer of Git LFS, not the file itself: `git lfs pull` fetches it",
    ),
)


@dataclass(frozen=True)
class Source:
    """The contents of a checkpoint.

    Attributes:
        path: as requested.
        tensors: all of them, on the CPU, read from disk when used; keys of nested dicts are joined by dots.
        other: everything else, flattened likewise: plain values as they are, anything else as the name of its type.
        config: the config.json next to the weights; empty if there is none.
        preprocessor: preprocessor_config.json, likewise.
        module: a timm model in memory, which describes itself.
        files: of the weights; empty for a checkpoint in memory.
        verified: whether config.json holds the SHA-256 of the weights.
        notes: for the user, on how it was found.
    """

    path: Path
    tensors: dict[str, Tensor]
    other: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    preprocessor: dict[str, Any] = field(default_factory=dict)
    module: nn.Module | None = None
    files: tuple[Path, ...] = ()
    verified: bool = False
    notes: tuple[str, ...] = ()

    def error(self, what: str) -> CheckpointError:
        """Return an error that names the checkpoint."""
        return CheckpointError(f"{self.path}: {what}")


def read_checkpoint(path: str | Path) -> Source:
    """Read a file of weights, or a folder with one.

    Args:
        path: a .safetensors file; a torch file, recognised by its content; or a folder with model.safetensors,
            pytorch_model.bin, either of them in parts with an index, or a single file of weights.

    Raises:
        CheckpointError: it is missing, damaged, does not match its config.json, or holds more than weights.
    """
    path = Path(path)
    try:
        main, folder = _locate(path)
        config = _read_json(folder / "config.json") if folder else {}
        preprocessor = _read_json(folder / "preprocessor_config.json") if folder else {}
        notes: tuple[str, ...] = ()
        if "transformers_version" in config and not config.keys().isdisjoint(
            (CONFIG_HASH, "sha256")
        ):
            config = {key: value for key, value in config.items() if key not in OF_THESE_WEIGHTS}
            notes = (
                "transformers has saved it again: the SHA-256 and figures in config.json are of other weights",
            )
        if CONFIG_HASH in config and config[CONFIG_HASH] != config_hash(config):
            ways = f"if it was edited on purpose, remove {CONFIG_HASH} from it"
            raise CheckpointError(
                f"{path}: config.json is damaged: its SHA-256 is not the one in it; {ways}"
            )
        parts = _parts_of(main) if main.name.endswith(".index.json") else {main: None}
        if "sha256" in config:
            with main.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if len(parts) != 1 or config["sha256"] != digest:
                raise CheckpointError(
                    f"{main} is damaged: its SHA-256 is not the one in config.json"
                )
        tensors: dict[str, Tensor] = {}
        other: dict[str, Any] = {}
        for file_of_part, expected in parts.items():
            found, values = _read_file(file_of_part)
            if expected is not None and found.keys() != expected:
                name = sorted(found.keys() ^ expected)[0]
                raise CheckpointError(
                    f"{file_of_part} and {main.name} disagree about {name}: parts of different checkpoints"
                )
            tensors |= found
            other |= values
    except OSError as error:
        raise CheckpointError(
            f"cannot read {error.filename or path}: {error.strerror or error}"
        ) from error
    checked = "sha256" in config
    return Source(
        path,
        tensors,
        other,
        config,
        preprocessor,
        files=tuple(parts),
        verified=checked,
        notes=notes,
    )


def _locate(path: Path) -> tuple[Path, Path | None]:
    """Return the file to read, or the index of its parts, and the folder whose config.json describes it, if any."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"no checkpoint at {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if stat.S_ISREG(mode):  # the folder's config.json may be another model's
        return path, path.parent if path.name in FOLDER_FILES or _weights_in(path.parent) == [
            path
        ] else None
    if not stat.S_ISDIR(mode):
        raise CheckpointError(f"{path} is not a file")
    found = [path / name for name in FOLDER_FILES if (path / name).is_file()][:1] or _weights_in(
        path
    )
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:6])
        raise CheckpointError(f"{path} holds several files of weights ({names}); name one of them")
    if not found:
        states = sorted((path / "checkpoints").glob("step-*.pt"))
        if states:
            advice = f"finish it with --resume, or load the model as it is now: {states[-1]} is its last state"
            raise CheckpointError(f"no model in {path}: this run is not finished; {advice}")
        raise CheckpointError(
            f"no model in {path}: neither model.safetensors nor another file of weights"
        )
    return found[0], path


def _weights_in(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    return [file for file in files if file.name not in NO_WEIGHTS]


def _read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty if there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged: a JSON object is expected")
    return value


def _parts_of(index: Path) -> dict[Path, set[str] | None]:
    """Return the files of a checkpoint in parts, with the names of the tensors in each."""
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index} is damaged: no weight_map")
    parts: dict[Path, Any] = {}
    for tensor, file in names.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{index} names the part {shorten(repr(file))}, which is not a file next to it"
            )
        parts.setdefault(index.parent / file, set()).add(tensor)
    return parts


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and other values of one file, recognised by its content."""
    with path.open("rb") as file:
        start = file.read(100)
    if not start:
        raise CheckpointError(f"{path} is empty")
    safetensors = start[8:9] == b"{"  # after the length of the header, any bytes
    for magic, what in NOT_WEIGHTS:
        if not safetensors and start.lstrip().startswith(magic):
            raise CheckpointError(f"{path} is {what}")
    try:
        if safetensors:
            with safe_open(path, framework="pt") as opened:
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # it is no dict
                return tensors, {
                    f"__metadata__.{key}": value for key, value in (opened.metadata() or {}).items()
                }
        # Pass the open file, because torch trusts the name .safetensors. Do not map it: torch would then let a tensor that is
        # longer than its storage read the bytes behind it.
        with (
            warnings.catch_warnings(action="ignore"),
            torch.serialization.safe_globals(HARMLESS),
            path.open("rb") as file,
        ):
            tree = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # both libraries raise nearly anything on damaged bytes
        raise CheckpointError(f"{path} {_reason(error, start)}") from error
    return flatten(tree, path)


def _reason(error: Exception, start: bytes) -> str:
    """Say in a line what is wrong with a file, which begins with `start`; torch's long message advises loading it unsafely."""
    message = str(error)
    if asked := re.search(r"GLOBAL (\S+)", message):
        advice = (
            "nothing in it was run. Ask for the weights as .safetensors, or as a state dict alone"
        )
        return f"asks for {asked[1]}, which weights do not need; {advice}"
    if start[:1] == b"\x80" and not start.startswith(OLD_TORCH):
        ways = "save the weights with torch.save(model.state_dict(), FILE)"
        return f"is a plain Python pickle, which is not read; nothing in it was run; {ways}"
    if all(byte >= 32 or byte in b"\t\n\r" for byte in start):
        return "is text, not weights; name the file of weights, or its folder"
    reason = re.split(
        r"\. |\n", re.sub(r".*WeightsUnpickler error:", "", message, flags=re.DOTALL).strip()
    )[0]
    refused = "Unpickl" in type(error).__name__
    what = (
        "is damaged, or holds more than weights" if refused else "is damaged, or not a checkpoint"
    )
    return f"{what}: {shorten(reason, 160) or type(error).__name__}{'; nothing in it was run' if refused else ''}"


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the values within nested dicts, lists and namespaces by name; a list of plain values is one value."""
    tree = vars(tree) if isinstance(tree, argparse.Namespace) else tree
    several = isinstance(tree, list | tuple) and not all(isinstance(inner, PLAIN) for inner in tree)
    if isinstance(tree, dict) or several:
        for key, inner in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, tree


def flatten(
    tree: Any, where: str | Path = "the state dict"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and other values of nested dicts, lists and namespaces, with keys joined by dots.

    Raises:
        CheckpointError: two values have the same name, or a tensor is sparse or quantized.
    """
    tensors: dict[str, Tensor] = {}
    other: dict[str, Any] = {}
    try:
        for name, value in _leaves(tree, ""):
            if name in tensors or name in other:
                raise CheckpointError(f"{where}: two values are called {shorten(name)}")
            if not isinstance(value, Tensor):
                other[name] = (
                    value if isinstance(value, list | tuple | PLAIN) else type(value).__name__
                )
            elif value.layout is not torch.strided or value.is_quantized:
                raise CheckpointError(
                    f"{where}: {shorten(name)} is not an ordinary tensor but sparse or quantized"
                )
            else:
                tensors[name] = (
                    value.detach() if value.device.type == "meta" else value.detach().cpu()
                )
    except RecursionError as error:
        raise CheckpointError(f"{where}: nested too deep, or within itself") from error
    return tensors, other


def not_weights(name: str, tensor: Tensor) -> str:
    """Return why a tensor cannot hold weights, "" if it can."""
    if tensor.device.type == "meta":
        return f"{name} is on the device meta: it has a shape and no values"
    if (
        not tensor.is_floating_point() or tensor.dtype is torch.float4_e2m1fn_x2
    ):  # the last, torch cannot convert
        return f"{name} holds {str(tensor.dtype).removeprefix('torch.')}, not weights"
    return ""


def not_finite(name: str, tensor: Tensor) -> str:
    """Say how many values of a tensor are nan or infinite, "" if none."""
    count = count_not_finite(tensor)
    if not count:
        return ""
    advice = "the training that made it diverged, or the file is damaged"
    return f"{name} holds {count} values that are nan or infinite; {advice}"


def count_not_finite(tensor: Tensor) -> int:
    """Count the values of a tensor that are nan or infinite as float32, a small part at a time."""
    if (
        not (tensor.is_floating_point() or tensor.is_complex())
        or tensor.dtype is torch.float4_e2m1fn_x2
    ):
        return 0
    parts = tensor.detach().reshape(-1).split(1 << 16)
    return sum(
        int((~torch.isfinite(part if part.is_complex() else part.float())).sum()) for part in parts
    )


def shorten(text: str, most: int = 100) -> str:
    """Shorten text from outside for a message, on one line."""
    text = one_line(text[: most + 1])
    return text if len(text) <= most else f"{text[:most]}..."
