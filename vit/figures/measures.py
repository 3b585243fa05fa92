"""Measures by layer, over seeds or by head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vit.figures.style import (
    COLOURS,
    begin_at,
    colours_of,
    legend_below,
    legend_columns,
    line_look,
    panel_axes,
    styled,
    text_width,
    titled_figure,
    wrapped,
)

SERIES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ((0, (6, 1)), "v"))
"""Line and mark of each series: distinct in black and white too. The colours are the style's."""
DASHES = ((2, 2), (7, 2), (1, 3))
"""Dashes of the reference lines."""


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
        log: whether that axis is logarithmic.
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
    """Draw measures from layer to layer.

    Lines show the means over seeds, with bands for their range, or a dot for each value.

    Panels with the same series and reference lines share one legend below them.

    Args:
        panels: up to three per row; four in two rows of two. Values: by name, (seeds, layers), nan
            where there is none.
        places: names along the horizontal axis, at most 13 of them written; None for 0, 1, ....
        axis: its label.
        dots: what a row of the values is, if not a seed: each value is a dot, of this name.
    """
    # Panels in rows
    columns = min(len(panels), 3)
    if len(panels) == 4:
        columns = 2
    rows = -(-len(panels) // columns)
    width = max(3.4 * columns, 6.2) + 0.2
    room = (width - 0.4) / columns - 0.6  # inches for a title
    title_lines = max(len(wrapped(panel.title, room * 72, 9)) for panel in panels)

    # One legend for all panels if they have the same entries; a single series needs none
    entries = [[name for name in (*panel.values, dots, *panel.lines) if name] for panel in panels]
    is_shared = all(names == entries[0] for names in entries) and len(panels) > 1
    across = min(legend_columns(names, width - 0.3 if is_shared else room) for names in entries)
    legend_height = 0.0
    if max(map(len, entries)) > 1:
        legend_height = 0.17 * max(-(-len(names) // across) for names in entries)
    height = (2.65 + 0.16 * title_lines) * rows + 0.12
    height += legend_height * (1 if is_shared else rows)

    figure = titled_figure(width, height, title, subtitle)
    for axes, panel in zip(panel_axes(figure, len(panels), columns), panels, strict=True):
        titled(axes, panel.title, room)
        _draw_series(axes, panel, dots)
        _label_layers(axes, panel, places, axis, room)
        if legend_height and not is_shared:
            legend_below(axes, 0.46, ncols=across)
    if legend_height and is_shared:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=across)
    return figure


def _draw_series(axes: Axes, panel: Panel, dots: str) -> None:
    """Draw each series of a panel: its mean, and the range or the dots around it."""
    # More series than styles begin again with the first
    styles = zip(cycle(SERIES), colours_of(list(panel.values)), strict=False)
    for (name, series), ((line, mark), colour) in zip(panel.values.items(), styles, strict=False):
        # The mean over seeds: nan, where there is no value, does not count
        values = np.ma.masked_invalid(np.atleast_2d(series))  # (seeds, layers)
        layers = np.arange(values.shape[1])
        look: dict[str, Any] = {"linestyle": line, "marker": mark}
        if dots:
            # Among the dots of a single layer a dash is their mean
            look = line_look(len(layers), line, "_") | {"markersize": 14, "mew": 1.6}
        axes.plot(layers, values.mean(0), color=colour, label=name, **look)
        # A dot for each value, or a band from the lowest to the highest seed
        if dots:
            x = layers.repeat(len(values))
            look = {"alpha": 0.5, "mew": 0, "ms": 5.5, "zorder": 1.9, "label": dots}
            axes.plot(x, values.T.ravel(), mark, color=colour, **look)
        elif len(values) > 1:
            look = {"color": colour, "alpha": 0.16, "linewidth": 0}
            axes.fill_between(layers, values.min(0), values.max(0), **look)

    # Reference lines are grey, and told apart by their dashes
    for (name, value), dashes in zip(panel.lines.items(), cycle(DASHES), strict=False):
        look = {"color": COLOURS.quiet, "linewidth": 1.2, "linestyle": (0, dashes)}
        axes.axhline(value, label=name, **look)


def _label_layers(
    axes: Axes, panel: Panel, places: Sequence[str] | None, axis: str, room: float
) -> None:
    """Label both axes of a panel of `room` inches, and as many layers as fit: at most 13."""
    count = max(np.atleast_2d(series).shape[1] for series in panel.values.values())
    # Numbers of layers, or their names
    if places is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
    else:
        widest = max(text_width(place, 7.5) for place in places[:count]) + 6
        step = -(-count // max(min(int(room * 72 / widest), 13), 1))
        axes.set_xticks(range(0, count, step), places[:count:step])
    if panel.limits:
        low, high = panel.limits
        begin_at(axes, low)
        axes.set_ylim(top=high)
    if panel.share:
        axes.yaxis.set_major_formatter(percent_tick)
    axes.set(xlabel=axis, ylabel=panel.unit)


def titled(axes: Axes, title: str, room: float) -> None:
    """Write a panel's title in lines of `room` inches."""
    axes.set_title("\n".join(wrapped(title, room * 72, 9)))


def percent_tick(share: float, _: float = 0) -> str:
    """Return a share as the label of a tick, with only the digits it needs: "5%", "42.5%"."""
    return f"{round(100 * share, 6):g}%"
