"""`vit report`: its options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vit.cli.options import CommandParser, page_path
from vit.errors import one_line
from vit.runs import RunFiles


def report_parser() -> argparse.ArgumentParser:
    """The options of `vit report`."""
    parser = CommandParser(
        prog="vit report", allow_abbrev=False,
        description="Write one self-contained page about a run, finished or not: what came out, how it went, how it fills in"
        " and where it looks, its data and settings, and how to repeat it. It opens from disk, without a network or scripts."
        " What `vit evaluate RUN --out RUN/NAME` has measured is taken in.",
    )  # fmt: skip
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--out", metavar="PAGE.html", help="file to write (default: RUN/report.html)")
    return parser


def run(argv: Sequence[str]) -> int:
    """Check the options and write the page."""
    options = report_parser().parse_args(list(argv))
    folder = Path(options.run)
    out = RunFiles(folder).report if options.out is None else page_path(options.out)

    from vit.report.page import write_report

    size = write_report(folder, out)
    print(f"report: {one_line(str(out))}, {size:,} bytes")
    return 0
