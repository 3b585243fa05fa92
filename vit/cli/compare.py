"""`vit compare`: finished runs side by side."""

from __future__ import annotations

import sys
from argparse import Namespace

from vit.cli.outputs import print_json
from vit.errors import one_line
from vit.report.comparison import as_table, compare_runs, mark_best, read_finished


def run(options: Namespace) -> int:
    """Read the runs, and print the table."""
    # Everything that can fail comes before the first line of output
    runs = [read_finished(folder) for folder in options.runs]
    rows = compare_runs(runs)

    # The table goes to stdout, notes beside it
    if options.json:
        records = [
            {"run": str(run.record.files.path), "seeds": run.seed, "scores": run.scores}
            for run in runs
        ]
        print_json({"table": rows, "runs": records})
    else:
        marked = mark_best(rows)
        print("\n".join(as_table(marked)))
        if marked != rows:
            print("* the best of its column", file=sys.stderr)
    for finished in runs:
        for note in finished.record.notes:
            print(f"note     {one_line(note)}", file=sys.stderr)
    return 0
