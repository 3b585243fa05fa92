"""Files that are whole or not there: every file that somebody may need again is written through here."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PARTIAL = ".partial-"
"""How the names of temporary files begin; one that a killed process left may be removed."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to; it takes the place of `path` when the block ends well.

    Of a process killed at any point, either the old file or the new one is left, never a part of one: the content is on
    the disk before the name points to it (fsync, os.replace, fsync of the folder). When the block raises, the temporary
    file is removed and `path` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=PARTIAL, suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes it private
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        if error.errno is None or (error.filename and not os.path.basename(str(error.filename)).startswith(PARTIAL)):
            raise
        # about the file that was asked for: a full disk names none, all else one that nobody knows
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a new or changed name in `folder` survive a power cut, on systems where folders can be synced."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8) to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON in ASCII, whole or not at all; nan and infinity are refused with a ValueError."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write tensors, numbers and lists by name for `numpy.load`, whole or not at all; equal ones give equal files."""
    import numpy as np  # only commands that write arrays need it

    with replacing(path) as temporary:
        np.savez_compressed(temporary, **arrays)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
