"""From a path to tensors, safely: nothing from a file is ever run, and nothing in it is believed before it is checked.

A .pth file is a pickle, a program that builds objects. It is only read with torch's restricted reader, which builds tensors
and plain values and calls nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickletools
import re
import stat
import warnings
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import safe_open
from torch import Tensor

from vit.errors import UserError, one_line

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
MOST_JSON, MOST_PICKLE = 8 << 20, 256 << 20  # bytes
MOST_ENTRIES, MOST_DEPTH = 1_000_000, 16
MOST_SHARING = 4
"""All tensors together may be so many times as large as the file: some share their values, but a file of a megabyte that
holds a thousand views of them is made to fill the memory."""

# What a global could do that torch's reader refuses: the first pattern that fits.
DEEDS = (
    (r"(os|posix|nt)\.(system|popen|spawn\w*|exec\w*|posix_spawn\w*|startfile)|pty\.\w+|commands\.\w+", "runs a shell command"),
    (r"(subprocess|_posixsubprocess|multiprocessing|asyncio)\..*", "starts other programs"),
    (r"(__builtin__|builtins)\.(eval|exec|execfile|compile)|(code|codeop|runpy|timeit|pdb|bdb|cProfile|profile)\..*",
     "runs any Python code"),
    (r"(__builtin__|builtins)\.(__import__|getattr|setattr|globals|vars|map|filter|apply)|(importlib|operator|functools|types"
     r"|sys|inspect|pkgutil)\..*", "reaches any function of Python, and by that runs any code"),
    (r"(os|posix|nt|shutil|pathlib|tempfile|io|_io|glob|fileinput)\..*|(__builtin__|builtins)\.open",
     "reads, writes or deletes files"),
    (r"(pickle|_pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve)\..*|torch\.(load|serialization\..*|jit\..*|hub\..*)",
     "loads another pickle or program without any limits"),
    (r"(socket|urllib\d?|http|httplib|requests|ftplib|smtplib|webbrowser|ssl|aiohttp|httpx)(\..*)?", "talks to the network"),
    (r"(ctypes|cffi|mmap)\..*", "runs machine code"),
    (r"torch\.nn\..*", "is a whole model, code and all, instead of its weights"),
    (r"numpy\..*", "is a value of numpy: harmless as such, but not read here"),
)  # fmt: skip
ALLOWED = re.compile(r"collections\.(OrderedDict|Counter)|argparse\.Namespace|torch\.(?!load|serialization|jit|hub).*")
NOT_WEIGHTS = (
    (b"<", "a web page: the download failed; fetch it again"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself: `git lfs pull` fetches it"),
    (b"\x1f\x8b", "compressed by gzip: unpack it first"),
    (b"\x93NUMPY", "an array of numpy, not a checkpoint"),
    (b"\x89HDF", "an HDF5 file (TensorFlow, Keras), which is not read here"),
    (b"{", "JSON, not weights"),
)


class CheckpointError(UserError):
    """A checkpoint that cannot be used; the message is one line: what, where, what to do."""


@dataclass(frozen=True)
class Source:
    """What stands in a checkpoint.

    Attributes:
        path: as it was asked for.
        files: of the weights.
        tensors: all of them, on the CPU, read from the disk when they are used; nested dicts are flattened, their keys joined
            by dots.
        other: what is no tensor, flattened likewise: plain values as they are, anything else as the name of its type.
        config: config.json beside the weights; empty where there is none.
        preprocessor: preprocessor_config.json, likewise.
        verified: whether config.json has a SHA-256, and the weights are those.
    """

    path: Path
    files: tuple[Path, ...]
    tensors: dict[str, Tensor]
    other: dict[str, Any]
    config: dict[str, Any]
    preprocessor: dict[str, Any]
    verified: bool


def read_checkpoint(path: str | Path) -> Source:
    """Read a file of weights, or a folder with one.

    Args:
        path: a .safetensors file; one of torch's, by its content, whatever its name; a folder with model.safetensors,
            pytorch_model.bin, either of them in parts with an index, or a single file of weights.

    Raises:
        CheckpointError: it is not there, damaged, of another kind, or would do more than hold weights.
    """
    path = Path(path)
    main, folder = _main_file(path)
    config = _json(folder / "config.json") if folder else {}
    preprocessor = _json(folder / "preprocessor_config.json") if folder else {}
    files = _parts(main) if main.name.endswith(".index.json") else {main: None}
    verified = False
    if "sha256" in config:
        if len(files) != 1 or config["sha256"] != _sha256(main):
            raise CheckpointError(f"{main} is damaged: its SHA-256 is not the one in config.json")
        verified = True
    tensors: dict[str, Tensor] = {}
    other: dict[str, Any] = {}
    for file, expected in files.items():
        found, values = _read_file(file)
        if expected is not None and found.keys() != expected:
            name = sorted(found.keys() ^ expected)[0]
            raise CheckpointError(f"{file} and {main.name} disagree about {name}: parts of different checkpoints")
        tensors |= found
        other |= values
    return Source(path, tuple(files), tensors, other, config, preprocessor, verified)


def flatten(tree: Any, where: str | Path = "the state dict") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the other values of nested dicts, lists and namespaces, their keys joined by dots.

    Raises:
        CheckpointError: too deep (or within itself), too large, or two values with one name.
    """
    tensors: dict[str, Tensor] = {}
    other: dict[str, Any] = {}
    count = 0

    def walk(value: Any, name: str, depth: int) -> None:
        nonlocal count
        count += 1
        if depth > MOST_DEPTH or count > MOST_ENTRIES:
            raise CheckpointError(f"{where}: nested more than {MOST_DEPTH} deep, or more than {MOST_ENTRIES:,} entries")
        if isinstance(value, argparse.Namespace):
            value = vars(value)
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{name}.{key}" if name else str(key), depth + 1)
        elif isinstance(value, list | tuple) and not all(isinstance(v, str | int | float | None) for v in value):
            for index, inner in enumerate(value):
                walk(inner, f"{name}.{index}" if name else str(index), depth + 1)
        elif name in tensors or name in other:
            raise CheckpointError(f"{where}: two values are called {name}")
        elif isinstance(value, Tensor):
            tensors[name] = value
        else:
            plain = value is None or isinstance(value, str | int | float | list | tuple)
            other[name] = value if plain else type(value).__name__

    walk(tree, "", 0)
    return tensors, other


def check_finite(tensor: Tensor) -> int:
    """How many values of a tensor are nan or infinite; it takes memory for a small part of them at a time."""
    if not tensor.is_floating_point() and not tensor.is_complex():
        return 0
    parts = tensor.detach().reshape(-1).split(1 << 16)
    return sum(int((~torch.isfinite(part)).sum()) for part in parts)


def _main_file(path: Path) -> tuple[Path, Path | None]:
    """The file to read, or the index of its parts; and the folder whose config.json is about it, if any."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise CheckpointError(f"no checkpoint at {path}: {getattr(error, 'strerror', None) or error}") from error
    if stat.S_ISDIR(mode):
        named = next((path / name for name in FOLDER_FILES if (path / name).is_file()), None)
        if named is not None:
            return named, path
        found = _weights_in(path)
        if len(found) == 1:
            return found[0], path
        if not found:
            states = sorted((path / "checkpoints").glob("step-*.pt")) if (path / "checkpoints").is_dir() else []
            hint = f"; its run has not ended, {states[-1]} is its last state" if states else ""
            raise CheckpointError(f"no model in {path}: neither model.safetensors nor another file of weights{hint}")
        names = ", ".join(file.name for file in found[:6])
        raise CheckpointError(f"{path} holds several files of weights ({names}); name one of them")
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path} is not a file")
    folder = path.parent
    own = path.name in FOLDER_FILES or _weights_in(folder) == [path]  # else config.json may be another model's
    return path, folder if own else None


def _weights_in(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    except OSError as error:
        raise CheckpointError(f"cannot read {folder}: {error.strerror}") from error


def _json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    try:
        if not path.is_file():
            return {}
        if path.stat().st_size > MOST_JSON:
            raise CheckpointError(f"{path} is larger than {MOST_JSON >> 20} MB: not settings of a model")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {one_line(str(error))}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged: a JSON object is expected")
    return value


def _parts(index: Path) -> dict[Path, set[str] | None]:
    """The files of a checkpoint in parts, and the names of the tensors in each."""
    names = _json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index} is damaged: no weight_map")
    parts: dict[Path, set[str] | None] = {}
    for tensor, file in names.items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
            raise CheckpointError(f"{index} names the part {file!r}, which is not a file beside it")
        part = parts.setdefault(index.parent / file, set())
        assert part is not None
        part.add(tensor)
    return parts


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and other values of one file, by its content."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(f"{path} is not a file")
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(512)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    if not start:
        raise CheckpointError(f"{path} is empty")
    if start[:2] == b"PK":
        tensors, other = _read_torch(path, zipped=True)
    elif start[8:9] == b"{" and int.from_bytes(start[:8], "little") < size:
        tensors, other = _read_safetensors(path)
    elif start[:1] == b"\x80":
        tensors, other = _read_torch(path, zipped=False)
    else:
        what = next((why for magic, why in NOT_WEIGHTS if start.lstrip().startswith(magic)), None)
        if start[257:262] == b"ustar":
            what = "a tar archive: unpack it first"
        raise CheckpointError(f"{path} is {what or 'neither safetensors nor a checkpoint of torch, or it is damaged'}")
    total = 0
    for name, tensor in tensors.items():
        total += _check_tensor(path, name, tensor)
    if total > MOST_SHARING * size:
        raise CheckpointError(
            f"{path}: its tensors claim {total:,} bytes, the file has {size:,}: it is made to fill the memory"
        )
    return tensors, other


def _check_tensor(path: Path, name: str, tensor: Tensor) -> int:
    """The size of a tensor in bytes, after seeing that it is an ordinary one and all of it is there."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided or tensor.is_quantized:
        raise CheckpointError(f"{path}: {name} is no ordinary tensor ({type(tensor).__name__}, {tensor.layout})")
    size = tensor.numel() * tensor.element_size()
    if tensor.device.type != "cpu" or tensor.untyped_storage().nbytes() < size:
        shape = " x ".join(map(str, tensor.shape))
        raise CheckpointError(f"{path}: {name} claims the shape {shape}, and the file does not hold so many values")
    return size


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
            metadata = file.metadata() or {}
    except Exception as error:  # on damaged bytes the library and torch raise nearly anything
        raise CheckpointError(f"{path} is damaged: {one_line(str(error))[:200]}") from error
    return tensors, {f"__metadata__.{key}": value for key, value in metadata.items()}


def _read_torch(path: Path, zipped: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if zipped:
        _check_zip(path)
    mapped = zipped and path.suffix != ".safetensors"  # by such a name torch.load would take it for what it is not
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # of odd files torch says much; what matters is said below
            torch.serialization.safe_globals([argparse.Namespace]),
            path.open("rb") as file,
        ):
            tree = torch.load(path if mapped else file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # on damaged or hostile bytes torch raises nearly anything
        refused = _refused_globals(path, zipped)
        if named := re.search(r"GLOBAL ([\w.]+) was not", str(error)):
            refused = [*dict.fromkeys([*refused, named[1]])]
        if refused:
            what = "; ".join(f"{name}, which {_deed(name)}" for name in refused[:3])
            more = f", and {len(refused) - 3} more" if len(refused) > 3 else ""
            advice = "nothing of it was run. Ask for the weights as .safetensors, or as a state dict alone"
            raise CheckpointError(f"{path} asks for {what}{more}; {advice}") from error
        reason = one_line(str(error)).split(". ")[0][:160] or type(error).__name__
        raise CheckpointError(f"{path} is damaged, or no checkpoint of torch: {reason}") from error
    return flatten(tree, path)


def _check_zip(path: Path) -> None:
    """Refuse an archive that is not what torch writes: one that is damaged, a bomb, or another kind of file."""
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except Exception as error:  # zipfile raises nearly anything on damaged bytes
        raise CheckpointError(f"{path} is damaged: {one_line(str(error))[:160]}") from error
    names = [member.filename for member in members]
    odd = next(
        (name for name in names if name.startswith("/") or ".." in re.split(r"[/\\]", name) or ":" in name), None
    )
    if odd is not None:
        raise CheckpointError(f"{path}: its member {odd!r} points outside of the archive; torch writes no such file")
    if len(set(names)) != len(names):
        raise CheckpointError(f"{path}: two members of the archive have one name; torch writes no such file")
    if any(
        member.compress_type or member.flag_bits & 1 or member.file_size != member.compress_size for member in members
    ):
        raise CheckpointError(
            f"{path}: its members are compressed or encrypted, which torch does not do: unpack it first"
        )
    if sum(member.file_size for member in members) > size:
        raise CheckpointError(f"{path}: its members claim more bytes than the file has")
    ends = {name.partition("/")[2] for name in names}
    if "constants.pkl" in ends or any(end.startswith("code/") for end in ends):
        raise CheckpointError(
            f"{path} is a program (TorchScript), not weights; save the state_dict of its model instead"
        )
    if "data.pkl" not in ends:
        raise CheckpointError(
            f"{path} is an archive ({', '.join(names[:3]) or 'empty'}), but not a checkpoint of torch"
        )
    if any(member.file_size > MOST_PICKLE for member in members if member.filename.endswith("/data.pkl")):
        raise CheckpointError(f"{path}: its index alone is larger than {MOST_PICKLE >> 20} MB")


def _deed(name: str) -> str:
    """What a global could do, as the end of a sentence."""
    known = next((what for pattern, what in DEEDS if re.fullmatch(pattern, name)), None)
    return (
        known
        or "is code of another package, called with what the file says (a whole model, say, instead of its weights)"
    )


def _refused_globals(path: Path, zipped: bool) -> list[str]:
    """The functions and classes that a pickle asks for and may not have, without running any of it."""
    found: dict[str, None] = {}
    try:
        if zipped:
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith("/data.pkl"):
                        with archive.open(name) as member:
                            found |= dict.fromkeys(_globals_in(member))
        else:
            with path.open("rb") as file:
                for _ in range(8):  # a legacy file is some pickles in a row, then the tensors' values
                    found |= dict.fromkeys(_globals_in(file))
    except Exception:  # the end of the pickles, or damage: what was found until there counts
        return [name for name in found if not ALLOWED.fullmatch(name)]
    return [name for name in found if not ALLOWED.fullmatch(name)]


def _globals_in(stream: BinaryIO | Any) -> Iterator[str]:
    """The globals of one pickle, read as a list of instructions; none is followed."""
    strings: list[str] = []
    memo: dict[str, str] = {}
    for operation, argument, _ in pickletools.genops(stream):
        if operation.name in ("GLOBAL", "INST"):
            module, _, name = str(argument).partition(" ")
            # Old protocols have Python 2's names; the reader takes them for Python 3's, and so does who reads the message.
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
            yield f"{module}.{name}"
        elif operation.name == "STACK_GLOBAL":
            yield ".".join(strings[-2:])
        elif operation.name.startswith("EXT"):
            yield f"copyreg.extension_{argument}"
        elif operation.name == "MEMOIZE":
            memo[str(len(memo))] = strings[-1] if strings else ""
        elif operation.name.endswith("PUT"):
            memo[str(argument)] = strings[-1] if strings else ""
        elif operation.name.endswith("GET"):
            strings.append(memo.get(str(argument), ""))
        elif isinstance(argument, str):
            strings.append(argument)
