"""What commands write: JSON on stdout, and files that are refused before anything is computed.

Nothing here imports torch, so that a program can refuse a file at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from vit.config import BUILT_IN
from vit.errors import ConfigError
from vit.runs import RunFiles

PAGE = (".html", ".htm")
PICTURE = (".png", ".svg", ".pdf")
"""The suffixes of files to write."""


def talk(as_json: bool) -> AbstractContextManager[object]:
    """Send prints to stderr if stdout is for JSON alone."""
    if as_json:
        return redirect_stdout(sys.stderr)
    return nullcontext()


def print_json(value: Any) -> None:
    """Print plain values as JSON; nan and infinity, which JSON lacks, raise a ValueError."""
    print(json.dumps(value, indent=2, allow_nan=False))


def require_free(paths: Iterable[Path], overwrite: bool, option: str = "--out") -> None:
    """Refuse to replace existing files unless `overwrite`; `option` names them or their folder."""
    for path in paths:
        if os.path.lexists(path) and not overwrite:
            advice = "name another file, remove it first, or add --overwrite"
            raise ConfigError(f"{option}: {path} already exists; {advice}")


def require_folder(folder: Path, option: str = "--out") -> None:
    """Refuse a folder, given by `option`, that cannot be written to."""
    # The folder itself need not exist
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}: {existing} is not a folder to write to; name another")


def refuse_among_images(place: Path, data: str) -> None:
    """Refuse to write pictures, by `--out`, into a folder of images: they would become some.

    Args:
        place: the folder of the pictures; it need not exist.
        data: a folder of images; the name of other data is no such place.
    """
    images = Path(os.path.realpath(os.path.expanduser(data)))
    folder = Path(os.path.realpath(place))
    if data in BUILT_IN or images not in (folder, *folder.parents):
        return
    within = [place for place in (folder, *folder.parents) if images in place.parents]
    if any(RunFiles(place).showcase.exists() for place in within):
        return
    problem = f"{place} is within the folder of the images, {data}"
    raise ConfigError(
        f"--out: {problem}, of which its pictures would become some; name another folder"
    )


def output_file(
    path: Path, suffixes: Sequence[str] = PICTURE, option: str = "--out", overwrite: bool = False
) -> Path:
    """Return the file to write, given by `option`; its name ends in one of `suffixes`."""
    # The name
    if path.suffix not in suffixes or os.path.isdir(path):
        allowed = f"name a file that ends in {' or '.join(suffixes)}"
        raise ConfigError(f"{option}: {str(path)!r} cannot be used; {allowed}")
    # The temporary file beside it has a longer name
    if len(os.fsencode(path.name)) > 240:
        raise ConfigError(f"{option}: {path.name[:40]}...: File name too long")

    # The place
    require_folder(path.parent, option)
    require_free([path], overwrite, option)
    return path
