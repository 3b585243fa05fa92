"""`vit compare`: its options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vit.cli.old_options import CommandParser, picture_path
from vit.errors import one_line


def compare_parser() -> argparse.ArgumentParser:
    """The options of `vit compare`."""
    parser = CommandParser(
        prog="vit compare", allow_abbrev=False,
        description="Finished runs side by side: the settings in which they differ, and what they came to. Runs that differ in"
        " the seed alone share a row, with the mean and the standard deviation. A linear probe is shown of a run in whose"
        " folder `vit evaluate RUN --out RUN/NAME` has left its results.",
    )  # fmt: skip
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--markdown", action="store_true", help="as a Markdown table")
    parser.add_argument("--plot", metavar="FILE", help="also draw how they went: .png, .svg or .pdf")
    return parser


def run(argv: Sequence[str]) -> int:
    """Read the runs, draw them where that is asked for, and print the table."""
    options = compare_parser().parse_args(list(argv))
    plot = picture_path("--plot", options.plot) if options.plot else None

    from vit.report.comparison import as_table, compare_runs, draw_runs, read_finished

    runs = [read_finished(Path(folder)) for folder in options.runs]
    rows = compare_runs(runs)
    if plot:
        draw_runs(runs, plot)
    print("\n".join(as_table(rows, options.markdown)))
    if plot:
        print(f"drawn    {plot}")
    for record in runs:
        for note in record.notes:
            print(f"note     {one_line(note)}", file=sys.stderr)
    return 0
