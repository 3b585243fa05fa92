"""From a path to tensors, safely: nothing from a file is ever run, and nothing in it is believed before it is checked.

A .pth file is a pickle, a program that builds objects. It is only read with torch's restricted reader, which builds tensors
and plain values and calls nothing else, and after it has been seen what the program asks for (`vit.checkpoints.pickles`).
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import stat
import struct
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from vit.checkpoints.pickles import Seen, deed, follow
from vit.errors import one_line
from vit.load_options import CheckpointError

NO_WEIGHTS = "dynamics.safetensors"  # of a run: what was recorded of its training
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")
PLAIN = str | int | float | None
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
MOST_JSON, MOST_PICKLE, MOST_HEADER = 8 << 20, 64 << 20, 100 << 20  # bytes
MOST_ENTRIES, MOST_DEPTH, MOST_NAME = 1_000_000, 16, 1000
MOST_SHARING = 4
"""All tensors together may be so many times as large as the file: some share their values, but a file of a megabyte that
holds a thousand views of them is made to fill the memory."""

NOT_WEIGHTS = (
    (b"<", "a web page: the download failed; fetch it again"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself: `git lfs pull` fetches it"),
    (b"\x1f\x8b", "compressed by gzip: unpack it first"),
    (b"\x93NUMPY", "an array of numpy, not a checkpoint"),
    (b"\x89HDF", "an HDF5 file (TensorFlow, Keras), which is not read here"),
    (b"{", "JSON, not weights"),
)


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
        notes: for the user, of how it was found.
    """

    path: Path
    files: tuple[Path, ...]
    tensors: dict[str, Tensor]
    other: dict[str, Any]
    config: dict[str, Any]
    preprocessor: dict[str, Any]
    verified: bool
    notes: tuple[str, ...] = ()


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
        if isinstance(value, argparse.Namespace):
            value = vars(value)
        plain = isinstance(value, list | tuple) and all(isinstance(inner, PLAIN) for inner in value)
        count += len(value) if plain else 0  # one long list may stand in many places
        if depth > MOST_DEPTH or count > MOST_ENTRIES:
            raise CheckpointError(f"{where}: nested more than {MOST_DEPTH} deep, or more than {MOST_ENTRIES:,} entries")
        if isinstance(value, dict):
            # Not value.items(): an OrderedDict from a file may have an attribute of that name.
            for key, inner in dict.items(value):
                walk(inner, _join(name, key, where), depth + 1)
        elif isinstance(value, list | tuple) and not plain:
            for index, inner in enumerate(value):
                walk(inner, _join(name, index, where), depth + 1)
        elif name in tensors or name in other:
            raise CheckpointError(f"{where}: two values are called {shown(name)}")
        elif isinstance(value, Tensor):
            tensors[name] = value
        else:
            other[name] = value if plain or isinstance(value, PLAIN) else type(value).__name__

    walk(tree, "", 0)
    return tensors, other


def _join(name: str, key: Any, where: str | Path) -> str:
    """The name of what stands under `key` in what is called `name`."""
    # The text of other keys could be of any length, or take for ever to write.
    simple = isinstance(key, PLAIN | bytes) or (isinstance(key, tuple) and all(isinstance(k, PLAIN) for k in key))
    joined = f"{name}.{key}" if name else str(key)
    if not simple or len(joined) > MOST_NAME:
        what = f"more than {MOST_NAME:,} characters" if simple else f"a {type(key).__name__}"
        raise CheckpointError(
            f"{where}: {what} where the name of a value is expected, in {shown(name) or 'its top level'}"
        )
    return joined


def check_finite(tensor: Tensor) -> int:
    """How many values of a tensor are nan or infinite as float32; it takes memory for a small part of them at a time."""
    if not tensor.is_floating_point() and not tensor.is_complex():
        return 0
    if tensor.dtype is torch.float4_e2m1fn_x2:  # torch cannot look at them, and they have neither nan nor infinity
        return 0
    if tensor.is_contiguous():
        parts = tensor.detach().view(-1).split(1 << 16)
        return sum(int((~torch.isfinite(part if part.is_complex() else part.float())).sum()) for part in parts)
    if tensor.numel() <= 1 << 16:
        return check_finite(tensor.contiguous())
    longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
    return sum(check_finite(half) for half in tensor.tensor_split(2, longest))  # views: no copy of the whole


def _main_file(path: Path) -> tuple[Path, Path | None]:
    """The file to read, or the index of its parts; and the folder whose config.json is about it, if any."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise CheckpointError(f"no checkpoint at {path}: {getattr(error, 'strerror', None) or error}") from error
    if stat.S_ISDIR(mode):
        try:
            named = next((path / name for name in FOLDER_FILES if (path / name).is_file()), None)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
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
        files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
        return [file for file in files if file.name != NO_WEIGHTS]
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
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", "..") or not file.isprintable():
            raise CheckpointError(f"{index} names the part {shown(repr(file))}, which is not a file beside it")
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
    total = sum(_check_tensor(path, name, tensor) for name, tensor in tensors.items())
    if total > MOST_SHARING * size:
        raise CheckpointError(
            f"{path}: its tensors claim {total:,} bytes, the file has {size:,}: it is made to fill the memory"
        )
    return {name: tensor.detach() for name, tensor in tensors.items()}, other  # without what else a file hung on them


def check_ordinary(where: str | Path, name: str, tensor: Tensor) -> None:
    """Refuse a tensor that is sparse, quantized, or of a class of its own.

    Raises:
        CheckpointError: it is.
    """
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        shape = " x ".join(map(str, tensor.shape))
        raise CheckpointError(
            f"{where}: {shown(name)} ({shape}) is no ordinary tensor: {type(tensor).__name__}, {kind}"
        )


def _check_tensor(path: Path, name: str, tensor: Tensor) -> int:
    """The size of a tensor in bytes, after seeing that it is an ordinary one and all of it is there."""
    check_ordinary(path, name, tensor)
    size = tensor.numel() * tensor.element_size()
    if tensor.device.type != "cpu" or tensor.untyped_storage().nbytes() < size:
        shape = " x ".join(map(str, tensor.shape))
        raise CheckpointError(
            f"{path}: {shown(name)} claims the shape {shape}, and the file does not hold so many values"
        )
    return size


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > MOST_HEADER:
                raise ValueError(f"its header is larger than {MOST_HEADER >> 20} MB")
            json.loads(stream.read(length), object_pairs_hook=_once)  # the library takes the last of two with one name
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
            metadata = file.metadata() or {}
    except Exception as error:  # on damaged bytes the library and torch raise nearly anything
        raise CheckpointError(f"{path} is damaged: {one_line(str(error))[:200]}") from error
    return tensors, {f"__metadata__.{key}": value for key, value in metadata.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without names that stand twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in its header")
    return found


def _read_torch(path: Path, zipped: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    seen = Seen()
    try:
        if zipped:
            follow(io.BytesIO(_check_zip(path)), seen)
        else:
            with path.open("rb") as file:
                for _ in range(4):  # torch's old format: what it is, for whom, by whom, and the values
                    follow(file, seen)
                keys = Seen()  # then which storages follow
                follow(file, keys)
                if seen.storages - keys.texts:  # torch would leave them as the memory was
                    raise ValueError("values that it names do not follow")
    except CheckpointError:
        raise
    except Exception as error:  # damage shows as nearly anything
        _refuse(path, seen)
        raise CheckpointError(f"{path} is damaged, or no checkpoint of torch: {_reason(error)}") from error
    _refuse(path, seen)
    mapped = zipped and path.suffix != ".safetensors"  # by such a name torch.load would take it for what it is not
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # of odd files torch says much; what matters is said below
            torch.serialization.safe_globals([argparse.Namespace]),
            path.open("rb") as file,
        ):
            tree = torch.load(path if mapped else file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # on damaged or hostile bytes torch raises nearly anything
        raise CheckpointError(f"{path} is damaged, or no checkpoint of torch: {_reason(error)}") from error
    return flatten(tree, path)


def _refuse(path: Path, seen: Seen) -> None:
    """Refuse a pickle that asks for more than it may have."""
    if seen.refused:
        what = "; ".join(f"{shown(name)}, which {deed(name)}" for name in list(seen.refused)[:3])
        more = f", and {len(seen.refused) - 3} more" if len(seen.refused) > 3 else ""
        advice = "nothing of it was run. Ask for the weights as .safetensors, or as a state dict alone"
        raise CheckpointError(f"{path} asks for {what}{more}; {advice}")


def _reason(error: Exception) -> str:
    """What went wrong, in torch's words without its advice to load the file unsafely."""
    said = re.sub(r".*?WeightsUnpickler error: ", "", str(error), flags=re.DOTALL)
    return shown(re.split(r"\. |\n", said.strip())[0], 160) or type(error).__name__


def shown(text: str, most: int = 100) -> str:
    """Text from outside as a part of a message: on one line, and not too long."""
    text = one_line(text[: most + 1])
    return text if len(text) <= most else f"{text[:most]}..."


def _check_zip(path: Path) -> bytes:
    """Refuse an archive that is not what torch writes: one that is damaged, a bomb, or another kind of file.

    Returns:
        The pickle in it.
    """
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if archive.start_dir != _directory_offset(path):  # type: ignore[attr-defined]
                raise ValueError("its directory is not where it says")
    except Exception as error:  # zipfile raises nearly anything on damaged bytes
        raise CheckpointError(f"{path} is damaged: {_reason(error)}") from error
    names = [member.filename for member in members]
    odd = next(
        (name for name in names if name.startswith("/") or ".." in re.split(r"[/\\]", name) or ":" in name), None
    )
    if odd is not None:
        raise CheckpointError(
            f"{path}: its member {shown(repr(odd))} points outside of the archive; torch writes no such file"
        )
    if len({name.lower() for name in names}) != len(names):  # readers differ about capitals
        raise CheckpointError(f"{path}: two members of the archive have one name; torch writes no such file")
    if any(
        member.compress_type or member.flag_bits & 1 or member.file_size != member.compress_size for member in members
    ):
        raise CheckpointError(
            f"{path}: its members are compressed or encrypted, which torch does not do: unpack it first"
        )
    if sum(member.file_size for member in members) > size:
        raise CheckpointError(f"{path}: its members claim more bytes than the file has")
    ends = {name.partition("/")[2].lower() for name in names}
    if "constants.pkl" in ends or any(end.startswith("code/") for end in ends):
        raise CheckpointError(
            f"{path} is a program (TorchScript), not weights; save the state_dict of its model instead"
        )
    top = names[0].partition("/")[0] if names else ""
    index = next((member for member in members if member.filename == f"{top}/data.pkl"), None)
    if index is None or sum(name.lower().endswith("data.pkl") for name in names) > 1:
        listed = shown(", ".join(names[:3])) or "empty"
        raise CheckpointError(f"{path} is an archive ({listed}), but not a checkpoint of torch")
    if index.file_size > MOST_PICKLE:
        raise CheckpointError(f"{path}: its index alone is larger than {MOST_PICKLE >> 20} MB")
    with path.open("rb") as file:  # not by zipfile: torch can be told to write no checksums
        file.seek(index.header_offset + 26)
        file.seek(sum(struct.unpack("<HH", file.read(4))), io.SEEK_CUR)  # past the name and what comes with it
        return file.read(index.file_size)


def _directory_offset(path: Path) -> int:
    """Where the directory of an archive begins by its own words, which torch follows and zipfile corrects.

    Raises:
        ValueError: it has no end, or two.
    """
    with path.open("rb") as file:
        start = max(0, file.seek(0, io.SEEK_END) - (1 << 16) - 98)  # the longest comment, and the records before it
        file.seek(start)
        tail = file.read()
    end = tail.rfind(b"PK\x05\x06")
    if tail[max(0, end - 20) : end].startswith(b"PK\x06\x07"):  # a large archive has a second record ahead of this one
        if struct.unpack_from("<Q", tail, end - 12)[0] != start + end - 76 or tail[end - 76 :][:4] != b"PK\x06\x06":
            raise ValueError("its directory has two ends")
        return struct.unpack_from("<Q", tail, end - 28)[0]
    return struct.unpack_from("<I", tail, end + 16)[0]
