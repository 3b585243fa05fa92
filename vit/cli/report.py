"""`vit report`: write a one-page report on a run."""

from __future__ import annotations

from argparse import Namespace

from vit.cli.outputs import print_json
from vit.commandline import PAGE, output_file
from vit.errors import one_line
from vit.report.page import write_report
from vit.report.record import read_run
from vit.runs import RunFiles


def run(options: Namespace) -> None:
    """Write the page."""
    # A page in the run's folder is replaced; of a file of another kind, its suffix is refused
    out = options.out
    if out is None:
        out = RunFiles(options.run).report
    else:
        output_file(out, PAGE, overwrite=True)

    # The page, and what the run measured
    record = read_run(options.run)
    size = write_report(record, out)
    if options.json:
        print_json({"report": str(out), "bytes": size, "scores": record.usual_scores})
    else:
        print(f"report: {one_line(str(out))}, {size:,} bytes")
