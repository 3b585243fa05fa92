"""What pretraining is worth: a figure of the tables in studies/results/pretraining.md.

    python -m studies.pretraining docs/results/pretraining.png

Left: accuracy by the number of labels, all trained for the same time. Right: fine-tuning of the
shipped weights beside training from scratch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit.commandline import start
from vit.figures.style import COLOURS, percent_tick, save_figure, styled, titled_figure

TABLES = Path(__file__).with_name("results") / "pretraining.md"
Table = list[dict[str, str]]
"""The rows of a table, by column."""
BLUE, ORANGE = COLOURS.series[:2]
SIDES = {
    "our pretraining, then fine-tuned": ("our pretraining", BLUE, "o"),
    "from scratch": ("from scratch", ORANGE, "s"),
    "MAE's settings, then fine-tuned": ("MAE's settings", COLOURS.quiet, "^"),
}
"""What is compared: its name -> how its rows begin, its colour and mark."""
ACCURACY = "test images"


def tables_of(page: str) -> list[Table]:
    """Return the tables of a page in Markdown."""
    tables: list[Table] = []
    columns: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = cells
            tables.append([])
        elif not cells[0].startswith("---"):
            tables[-1].append(dict(zip(columns, cells, strict=True)))
    return tables


def share(cell: str) -> float:
    """Return "**81.5%**" as 0.815."""
    return float(cell.strip("*%")) / 100


def best_by_labels(table: Table, begin: str) -> dict[int, float]:
    """Return the best accuracy on test images for each number of labels, of rows that begin so."""
    best: dict[int, float] = {}
    for row in table:
        if row["initial weights"].startswith(begin) and row[ACCURACY]:
            labels = int(row["labels"].replace(",", ""))
            best[labels] = max(share(row[ACCURACY]), best.get(labels, 0.0))
    return dict(sorted(best.items()))


@styled
def worth_figure(shipped: Table, same_time: Table) -> Figure:
    """Draw both tables.

    Args:
        shipped: what the shipped weights save.
        same_time: training for the same time, pretraining included.
    """
    figure = titled_figure(
        8.6,
        3.5,
        "What pretraining is worth: accuracy on test images",
        "6 layers of width 192 · CIFAR-10 (JPEG q75) · one seed · one CPU core",
    )
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    draw_by_labels(left, same_time)
    draw_pairs(right, shipped)
    for axes in (left, right):
        axes.tick_params(labelsize=8, labelcolor=COLOURS.ink)
    return figure


def draw_by_labels(axes: Axes, table: Table) -> None:
    """Draw a line for each side, with its values."""
    axes.set_title("Up to an hour of training, pretraining included")
    for name, (begin, colour, mark) in SIDES.items():
        best = best_by_labels(table, begin)
        axes.plot(
            list(best), list(best.values()), color=colour, marker=mark, markersize=5, label=name
        )
        # Left of the upper line and right of the others, values cross no line
        place = (7, -8)
        align = "left"
        if colour == BLUE:
            place = (-4, 5)
            align = "right"
        look: dict[str, Any] = {"fontsize": 8, "color": colour, "ha": align}
        for labels, value in best.items():
            axes.annotate(
                f"{value:.1%}", (labels, value), place, textcoords="offset points", **look
            )
    axes.set(xscale="log", xlabel="labelled images", xlim=(220, 110_000), ylim=(0.36, 0.9))
    axes.set_xticks(list(best_by_labels(table, "our")), ["475 (1%)", "4,750 (10%)", "47,500 (all)"])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(percent_tick)
    axes.legend(loc="lower right", fontsize=8)


def draw_pairs(axes: Axes, table: Table) -> None:
    """Draw a row for each pair, a dot for each of its sides."""
    axes.set_title("Shipped weights, fine-tuned for minutes")
    names = []
    for place, row in enumerate(table):
        scratch, ours = share(row["from scratch"]), share(row["from the shipped weights"])
        axes.plot([scratch, ours], [place, place], color=COLOURS.quiet, alpha=0.4, linewidth=3)
        for value, colour, mark, aside, align in (
            (scratch, ORANGE, "s", -7, "right"),
            (ours, BLUE, "o", 7, "left"),
        ):
            axes.plot(value, place, color=colour, marker=mark, markersize=6)
            look: dict[str, Any] = {"fontsize": 8, "color": colour, "va": "center", "ha": align}
            axes.annotate(
                f"{value:.1%}", (value, place), (aside, 0), textcoords="offset points", **look
            )
        names.append(f"{row['labels']} labels, {row['minutes']} min")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(0.25, 0.95), ylim=(len(names) - 0.5, -0.5))
    axes.xaxis.set_major_formatter(percent_tick)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", alpha=0)


def run(argv: Sequence[str]) -> int:
    """Write the figure to the path that is given."""
    parser = argparse.ArgumentParser(prog="python -m studies.pretraining", description=__doc__)
    parser.add_argument("out", type=Path, help="the figure to write")
    options = parser.parse_args(argv)
    _, shipped, same_time = tables_of(TABLES.read_text(encoding="utf-8"))
    save_figure(worth_figure(shipped, same_time), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(start("python -m studies.pretraining", run, sys.argv[1:]))
