"""`vit compare`: finished runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vit.cli.options import (
    POSITIONAL,
    PrintsFigures,
    WritesFiles,
    output_file,
    print_json,
    read_options,
)
from vit.errors import ConfigError, one_line
from vit.report.record import read_run


@dataclass(frozen=True)
class Compare(PrintsFigures, WritesFiles):
    """Print finished runs side by side: the settings that differ, and what the runs measured. Runs that differ only in the seed
    share a row, with mean and standard deviation. A linear probe is shown if `vit evaluate RUN --out RUN/NAME` has left its
    results in the run's folder."""

    runs: list[Path] = field(default_factory=list, metadata=POSITIONAL)
    """run folders"""
    markdown: bool = False
    """as a Markdown table"""
    hours: Path | None = None
    """also draw accuracy over hours of training, of runs that measured it meanwhile (run.val_every): .png, .svg or .pdf"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.runs:
            raise ConfigError("runs: name the folders of finished runs")


OPTIONS = (Compare,)


def run(argv: Sequence[str]) -> int:
    """Read the runs, draw them if asked, and print the table."""
    (options,) = read_options("vit compare", argv, *OPTIONS)
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
            {"run": str(run.record.files.path), "seeds": run.seeds, "figures": run.scores}
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
