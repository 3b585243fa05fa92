"""`vit report`: write a one-page report on a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vit.cli.options import PAGE, POSITIONAL, PrintsFigures, output_file, print_json, read_options
from vit.errors import one_line
from vit.metrics import summary_values
from vit.report.record import read_run
from vit.runs import RunFiles


@dataclass(frozen=True)
class ReportOptions(PrintsFigures):
    """Write one self-contained page about a run, finished or not: its results beside their baselines, the pictures in its
    folder, data and settings. It opens from disk, without a network or scripts, and includes what
    `vit evaluate RUN --out RUN/NAME` has measured."""

    run: Path = field(metadata=POSITIONAL)
    """run folder"""
    out: Path | None = None
    """page to write, .html; replaces an earlier report (default: RUN/report.html)"""


OPTIONS = (ReportOptions,)


def run(argv: Sequence[str]) -> int:
    """Write the page."""
    (options,) = read_options("vit report", argv, *OPTIONS)
    out = (
        RunFiles(options.run).report
        if options.out is None
        else output_file(options.out, PAGE, overwrite=True)
    )
    record = read_run(options.run)

    from vit.report.page import write_report

    size = write_report(options.run, out)
    if options.json:
        print_json({"report": str(out), "bytes": size, "figures": summary_values(record.summary)})
    else:
        print(f"report: {one_line(str(out))}, {size:,} bytes")
    return 0
