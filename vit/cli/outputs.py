"""What commands print: JSON, tables; and no pictures among images."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from vit.config import BUILT_IN
from vit.errors import ConfigError
from vit.metrics import Scores, score_lines
from vit.runs import RunFiles


def talk(as_json: bool) -> AbstractContextManager[object]:
    """Send prints to stderr if stdout is for JSON alone."""
    if as_json:
        return redirect_stdout(sys.stderr)
    return nullcontext()


def print_json(value: Any) -> None:
    """Print plain values as JSON; nan and infinity, which JSON lacks, raise a ValueError."""
    print(json.dumps(value, indent=2, allow_nan=False))


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


# --- Tables for a terminal -----------------------------------------------------------------------


def score_table(scores: Scores) -> list[str]:
    """Return scores for a terminal, in columns."""
    rows = []
    for label, value, remark in score_lines(scores):
        if remark:
            remark = f"({remark})"
        rows.append((label, value, remark))
    return aligned(rows)


def aligned(table: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the lines of a table with columns as wide as their longest cell.

    Args:
        table: rows of cells.
        right: numbers of the columns whose cells stand at the right.
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for cells in table:
        padded = []
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            padded.append(cell.rjust(width) if number in right else cell.ljust(width))
        lines.append("  ".join(padded).rstrip())
    return lines
