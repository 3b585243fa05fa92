"""`vit compare`: finished runs side by side."""

from __future__ import annotations

import sys
from argparse import Namespace

from vit.cli.outputs import output_file, print_json, talk
from vit.errors import ConfigError, one_line
from vit.report.comparison import as_table, compare_runs, mark_best, read_finished
from vit.report.hours import draw_hours


def run(options: Namespace) -> int:
    """Read the runs, draw them if asked, and print the table."""
    if options.json and options.markdown:
        raise ConfigError("--markdown: --json prints no table; leave one out")
    if options.hours is not None:
        output_file(options.hours, option="--hours", overwrite=options.overwrite)

    # Everything that can fail comes before the first line of output
    runs = [read_finished(folder) for folder in options.runs]
    rows = compare_runs(runs)
    if options.hours is not None:
        draw_hours(runs, options.hours)

    # The table goes to stdout, notes beside it
    if options.json:
        records = [
            {"run": str(run.record.files.path), "seeds": run.seeds, "scores": run.scores}
            for run in runs
        ]
        print_json({"table": rows, "runs": records})
    else:
        marked = mark_best(rows)
        print("\n".join(as_table(marked, options.markdown)))
        if marked != rows:
            print("* the best of its column", file=sys.stderr)
    if options.hours is not None:
        with talk(options.json):
            print(f"drawn    {options.hours}")
    for finished in runs:
        for note in finished.record.notes:
            print(f"note     {one_line(note)}", file=sys.stderr)
    return 0
