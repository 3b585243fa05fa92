"""`vit compare`: finished runs side by side."""

from __future__ import annotations

import sys
from argparse import Namespace

from vit.cli.outputs import output_file, print_json
from vit.errors import one_line
from vit.report.record import read_run


def run(options: Namespace) -> int:
    """Read the runs, draw them if asked, and print the table."""
    picture = options.hours and output_file(
        options.hours, option="--hours", overwrite=options.overwrite
    )
    for folder in options.runs:  # refuse what is no run before importing torch
        read_run(folder)

    from vit.report.comparison import as_table, compare_runs, read_finished

    runs = [read_finished(folder) for folder in options.runs]
    rows = compare_runs(runs)
    if picture:
        from vit.report.hours import draw_hours  # with matplotlib, which the table does not need

        draw_hours(runs, picture)
    if options.json:
        records = [
            {"run": str(run.record.files.path), "seeds": run.seeds, "figures": run.figures}
            for run in runs
        ]
        print_json({"table": rows, "runs": records})
    else:
        print("\n".join(as_table(rows, options.markdown)))
    if picture:
        print(f"drawn    {picture}", file=sys.stderr if options.json else sys.stdout)
    for finished in runs:
        for note in finished.record.notes:
            print(f"note     {one_line(note)}", file=sys.stderr)
    return 0
