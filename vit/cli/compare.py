"""`vit compare`: finished runs side by side."""

from __future__ import annotations

import sys
from argparse import Namespace

from vit.cli.outputs import aligned, print_json
from vit.errors import one_line
from vit.report.comparison import compare_runs, read_finished


def run(options: Namespace) -> None:
    """Read the runs, and print the table."""
    # Everything that can fail comes before the first line of output
    runs = [read_finished(folder) for folder in options.runs]
    rows = compare_runs(runs)
    if options.json:
        records = [
            {
                "run": str(run.files.path),
                "seeds": str(run.settings["train.seed"]),
                "scores": run.usual_scores,
            }
            for run in runs
        ]
        print_json({"table": rows, "runs": records})
    else:
        print(aligned([list(rows[0]), *[[*row.values()] for row in rows]]))
        if any(cell.endswith(" *") for row in rows for cell in row.values()):
            print("* the best of its column", file=sys.stderr)
    for run in runs:
        for note in run.notes:
            print(f"note     {one_line(note)}", file=sys.stderr)
