"""What commands print, and write as CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from vit.atomic import make_folder, replacing
from vit.errors import one_line
from vit.metrics import Scores, score_lines


def messages_to_stderr(as_json: bool) -> redirect_stdout[TextIO]:
    """Send prints to stderr if stdout is for JSON alone."""
    return redirect_stdout(sys.stderr if as_json else sys.stdout)


def print_json(value: Any) -> None:
    """Print plain values as JSON; nan and infinity, which JSON lacks, raise a ValueError."""
    print(json.dumps(value, indent=2, allow_nan=False))


def write_csv(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write a table; its names may contain any bytes."""
    make_folder(path.parent)
    with (
        replacing(path) as partial,
        partial.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        csv.writer(file).writerows(rows)


# --- Tables for a terminal -----------------------------------------------------------------------


def score_table(scores: Scores) -> str:
    """Return scores for a terminal, in columns."""
    rows = [
        (label, value, f"({remark})" if remark else "")
        for label, value, remark in score_lines(scores)
    ]
    return aligned(rows)


def aligned(table: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return a table for a terminal, with columns as wide as their longest cell, all printable.

    Args:
        table: rows of cells.
        right: numbers of the columns whose cells stand at the right.
    """
    columns = []
    for number, texts in enumerate(zip(*table, strict=True)):
        cells = [one_line(text) for text in texts]
        width = max(map(len, cells))
        pad = str.rjust if number in right else str.ljust
        columns.append([pad(cell, width) for cell in cells])
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))
