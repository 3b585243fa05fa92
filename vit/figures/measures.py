"""Measures by layer, over seeds or by head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vit.figures.style import (
    COLOURS,
    legend_below,
    legend_columns,
    panel_axes,
    styled,
    text_width,
    titled_figure,
    wrapped,
)

SERIES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ((0, (6, 1)), "v"))
"""Line and mark of each series: distinct in black and white too. The colours are the style's."""
HATCHES = ("", "///", "...", "xxx", "", "\\\\\\")
"""Hatch of each part of a bar."""


@dataclass(frozen=True)
class Panel:
    """A panel of a figure.

    Attributes:
        title: what is measured.
        values: what is drawn; see the function that draws it.
        unit: of the value axis.
        lines: reference lines, name -> value.
        share: whether values are shares, written in percent.
        limits: of the value axis; None, or None above, to fit the values.
        log: whether that axis is logarithmic, in `arms_figure`.
    """

    title: str
    values: Any
    unit: str = ""
    lines: Mapping[str, float] = field(default_factory=dict)
    share: bool = False
    limits: tuple[float, float | None] | None = None
    log: bool = False


@styled
def layers_figure(
    panels: Sequence[Panel],
    title: str,
    subtitle: str,
    places: Sequence[str] | None = None,
    axis: str = "layer, from 0",
    dots: str = "",
) -> Figure:
    """Draw measures from layer to layer: lines for the means over seeds, bands for their range, or a dot per value.

    Panels with the same series, or the same reference lines, share one legend below them.

    Args:
        panels: up to three per row; four in two rows of two. Values: by name, (seeds, layers), nan where there is none.
        places: names along the horizontal axis, at most 13 of them written; None for 0, 1, ....
        axis: its label.
        dots: what a row of the values is, if not a seed: each value is a dot, of this name.
    """
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    rows = -(-len(panels) // columns)
    width = max(3.4 * columns, 6.2) + 0.2
    room = (width - 0.4) / columns - 0.6  # inches for a title
    most = max(len(wrapped(panel.title, room * 72, 9)) for panel in panels)
    # One legend, below all panels, for what they share.
    marks = [dots] if dots else []
    first = panels[0]
    names: list[str] = []
    if len(panels) > 1 and all(list(panel.values) == list(first.values) for panel in panels):
        names = [*first.values, *marks] if len(first.values) + len(marks) > 1 else []
        if all(list(panel.lines) == list(first.lines) for panel in panels):
            names += first.lines
    across = legend_columns(names, width - 0.3) if names else 1
    below = 0.17 * -(-len(names) // across) + 0.12 if names else 0.0
    own = [
        [name for name in (*panel.values, *marks, *panel.lines) if name not in names]
        for panel in panels
    ]
    own = [of if len(names) + len(of) > 1 else [] for of in own]
    across_panel = min(legend_columns(of, room) for of in own if of) if any(own) else 1
    keys = 0.17 * max(-(-len(of) // across_panel) for of in own)
    figure = titled_figure(width, (2.65 + 0.16 * most + keys) * rows + below, title, subtitle)
    every = panel_axes(figure, len(panels), columns)
    for axes, panel in zip(every, panels, strict=True):
        titled(axes, panel.title, room)
        for (name, values), (line, mark), colour in zip(
            panel.values.items(), SERIES, COLOURS.series, strict=False
        ):
            values = np.ma.masked_invalid(np.atleast_2d(values))
            x = np.arange(values.shape[1])
            axes.plot(
                x,
                values.mean(0),
                color=colour,
                linestyle=line,
                marker="" if dots else mark,
                label=name,
            )
            if dots:
                every_x = x.repeat(len(values))
                axes.plot(
                    every_x,
                    values.T.ravel(),
                    mark,
                    color=colour,
                    alpha=0.5,
                    mew=0,
                    ms=5.5,
                    zorder=1.9,
                    label=dots,
                )
            elif len(values) > 1:
                axes.fill_between(
                    x, values.min(0), values.max(0), color=colour, alpha=0.16, linewidth=0
                )
            if places is None:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
            else:
                apart = -(-len(x) // 13)
                axes.set_xticks(x[::apart], places[: len(x) : apart])
        for (name, value), dashes in zip(
            panel.lines.items(), ((2, 2), (7, 2), (1, 3)), strict=False
        ):
            axes.axhline(
                value, color=COLOURS.quiet, linewidth=1.2, linestyle=(0, dashes), label=name
            )
        if panel.limits:
            axes.set_ylim(*panel.limits)
        if panel.share:
            axes.yaxis.set_major_formatter(percent)
        axes.set(xlabel=axis, ylabel=panel.unit)
        handles, labels = axes.get_legend_handles_labels()
        if axes is every[0] and names:
            figure.legend(
                handles[: len(names)],
                labels[: len(names)],
                loc="outside lower center",
                ncols=across,
            )
        if len(labels) > max(len(names), 1):
            legend_below(
                axes,
                0.46,
                handles=handles[len(names) :],
                labels=labels[len(names) :],
                ncols=across_panel,
            )
    return figure


@styled
def shares_figure(panels: Sequence[Panel], title: str, subtitle: str) -> Figure:
    """Draw bars from 0 to 100%, divided into parts; a negative part, which works against the others, lies left of 0.

    Args:
        panels: side by side. Values: by name of the bar, the share of each of up to six parts; they sum to 1.
    """
    most = max(len(panel.values) for panel in panels)
    parts = [list(next(iter(panel.values.values()))) for panel in panels]
    alike = len(panels) > 1 and all(
        of == parts[0] for of in parts
    )  # one legend, in three columns, serves all
    keys = 0.17 * max(-(-len(of) // (3 if alike else 2)) for of in parts) + 0.3
    lefts = [max(text_width(name, 8) for name in panel.values) / 72 for panel in panels]
    wide = 2.4 if alike else 3.2  # inches
    figure = titled_figure(
        sum(lefts) + (wide + 0.4) * len(panels), 0.24 * most + 0.7 + keys, title, subtitle
    )
    grid = panel_axes(figure, len(panels), len(panels))
    colours = (*COLOURS.series[:4], "#9aa3ad", "#5b6470")
    for axes, panel in zip(grid, panels, strict=True):
        titled(axes, panel.title, wide)
        values = np.array(
            [list(shares.values()) for shares in panel.values.values()]
        )  # (rows, parts)
        rows = np.arange(len(values))[::-1]
        for part, name in enumerate(next(iter(panel.values.values()))):
            one = values[:, part]
            before = np.where(
                one > 0, values[:, :part].clip(min=0).sum(1), values[:, :part].clip(max=0).sum(1)
            )
            axes.barh(
                rows,
                one,
                0.74 * len(rows) / most,  # as thick as in the fullest panel
                left=before,
                color=colours[part],
                hatch=HATCHES[part],
                hatchcolor=COLOURS.paper,
                edgecolor=COLOURS.paper,
                linewidth=0.5,
                label=name,
            )
        axes.axvline(0, color=COLOURS.ink, linewidth=0.8)
        axes.set_xlim(
            min(float(values.clip(max=0).sum(1).min()) * 1.05, 0),
            float(values.clip(min=0).sum(1).max()),
        )
        axes.set_ylim(-0.5, len(values) - 0.5)
        axes.set_yticks(rows, list(panel.values))
        axes.tick_params(axis="y", length=0, labelsize=8, labelcolor=COLOURS.ink)
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_formatter(percent)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        if not alike:
            legend_below(axes, 0.28, ncols=2, columnspacing=1.2, handlelength=1.6)
    if alike:
        figure.legend(
            *grid[0].get_legend_handles_labels(),
            loc="outside lower left",
            ncols=3,
            handlelength=1.6,
        )
    return figure


def titled(axes: Axes, title: str, room: float) -> None:
    """Write a panel's title in lines of `room` inches."""
    axes.set_title("\n".join(wrapped(title, room * 72, 9)))


def percent(share: float, _: float = 0) -> str:
    """Return a share as the label of a tick, with only the digits it needs: "5%", "42.5%"."""
    return f"{round(100 * share, 6):g}%"
