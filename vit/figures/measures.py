"""Measures with their seeds: by arm of an experiment, and by layer of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from vit.figures.style import (
    BLUE,
    GREEN,
    LIGHT,
    ORANGE,
    PURPLE,
    Theme,
    escaped,
    plain,
    text_width,
    titled_figure,
    wrapped,
)

SERIES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "^"), (PURPLE, ":", "D"), ("#a0781e", (0, (6, 1)), "v"))
"""Colour, line and mark of the first series, the second ...: told apart in black and white too."""


@dataclass(frozen=True)
class ArmPanel:
    """A panel of `arms_figure`.

    Attributes:
        title: what is measured.
        values: for each arm, the value of each seed; none where it was not measured.
        lines: vertical lines: what they are called, and their value.
        share: whether it is a share of one, written in percent.
    """

    title: str
    values: Sequence[Sequence[float]]
    lines: Mapping[str, float] = field(default_factory=dict)
    share: bool = False


def arms_figure(
    names: Sequence[str], panels: Sequence[ArmPanel], title: str, subtitle: str, theme: Theme = LIGHT
) -> Figure:
    """What changes from arm to arm of an experiment: a row an arm, a dot a seed, a bar at their mean.

    The first arm is what the others are compared with: its mean is drawn as a line through all rows.

    Args:
        names: of the arms, from the top.
        panels: side by side.
        title, subtitle: the heading.
        theme: the colours.
    """
    left = max(text_width(name, 8.5) for name in names) / 72 + 0.3  # inches
    width = left + 2.55 * len(panels) + 0.2
    legend = any(panel.lines for panel in panels)
    figure, free = titled_figure(max(width, 6.0), 0.3 * len(names) + 0.85 + 0.25 * legend, title, subtitle, theme)
    width, height = figure.get_size_inches()
    grid = figure.add_gridspec(
        1, len(panels), left=left / width, right=1 - 0.2 / width, top=free - 0.3 / height,
        bottom=(0.4 + 0.25 * legend) / height, wspace=0.14,
    )  # fmt: skip
    rows = np.arange(len(names))[::-1]
    for column, panel in enumerate(panels):
        axes = figure.add_subplot(grid[0, column])
        dress(axes, theme)
        axes.set_title(plain(panel.title), fontsize=9, color=theme.ink, loc="left")
        first = panel.values[0]
        if len(first):
            axes.axvline(float(np.mean(first)), color=theme.quiet, linewidth=0.9, alpha=0.7, zorder=1)
        for (name, value), (colour, style, _) in zip(panel.lines.items(), SERIES[1:], strict=False):
            axes.axvline(value, color=colour, linewidth=1.3, linestyle=style, label=plain(name), zorder=1)
        for row, values in zip(rows, panel.values, strict=True):
            if len(values):
                axes.plot(
                    values, [row] * len(values), "o", color=theme.dots, markersize=4, alpha=0.55, markeredgewidth=0
                )
                axes.plot([np.mean(values)], [row], "|", color=theme.line, markersize=13, markeredgewidth=2.4)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_yticks(rows, [plain(name) for name in names] if column == 0 else [])
        axes.tick_params(axis="y", length=0, labelsize=8.5, colors=theme.ink)
        axes.grid(axis="y", alpha=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.margins(x=0.09)
        if panel.share:
            axes.xaxis.set_major_formatter(percent)
        if panel.lines:
            axes.legend(
                loc="upper left", bbox_to_anchor=(-0.02, -0.3 / (0.3 * len(names) + 0.15)), fontsize=7.5, frameon=False,
                labelcolor=theme.quiet, ncols=2,
            )  # fmt: skip
    return figure


@dataclass(frozen=True)
class LayerPanel:
    """A panel of `layers_figure`.

    Attributes:
        title: what is measured.
        series: by name, (seeds, layers): their mean is drawn as a line, their range as a band.
        unit: of the vertical axis.
        lines: horizontal lines: what they are called, and their value.
        share: whether it is a share of one, written in percent.
        limits: of the vertical axis; None for what the values need.
        log: whether the vertical axis is logarithmic.
    """

    title: str
    series: Mapping[str, np.ndarray]
    unit: str = ""
    lines: Mapping[str, float] = field(default_factory=dict)
    share: bool = False
    limits: tuple[float, float] | None = None
    log: bool = False


def layers_figure(
    panels: Sequence[LayerPanel],
    title: str,
    subtitle: str,
    places: Sequence[str] | None = None,
    axis: str = "layer, from 0",
    theme: Theme = LIGHT,
) -> Figure:
    """Measures from layer to layer: lines for the means over seeds, bands for their range.

    Panels that show the same series have one legend, below them.

    Args:
        panels: up to three side by side, then the next row; four in two rows of two.
        title, subtitle: the heading.
        places: names of what stands along the horizontal axis; None for 0, 1, ....
        axis: what it is.
        theme: the colours.
    """
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    rows = -(-len(panels) // columns)
    width = max(3.4 * columns, 6.2) + 0.2
    room = (width - 0.77) / columns - 0.45  # inches for a title
    titles = [wrapped(panel.title, room * 72, 9) for panel in panels]
    above = 0.3 + 0.16 * (max(map(len, titles)) - 1)
    names = list(panels[0].series)
    shared = len(panels) > 1 and len(names) > 1 and all(list(panel.series) == names for panel in panels)
    across = min(len(names), max(1, int(width * 72 / (max(text_width(name, 7.5) for name in names) + 48))))
    below = 0.17 * -(-len(names) // across) + 0.1 if shared else 0.0
    figure, free = titled_figure(width, (2.7 + above) * rows + below, title, subtitle, theme)
    width, height = figure.get_size_inches()
    left = 0.74 if any(panel.log for panel in panels) else 0.62  # "0.00005" is wider than "0.5"
    grid = figure.add_gridspec(
        rows, columns, left=left / width, right=1 - 0.15 / width, top=free - above / height,
        bottom=(0.48 + below) / height, wspace=0.24, hspace=(above + 0.6) / 2.2,
    )  # fmt: skip
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(grid[number // columns, number % columns])
        dress(axes, theme)
        axes.set_title(escaped("\n".join(titles[number])), fontsize=9, color=theme.ink, loc="left")
        for (name, values), (colour, style, mark) in zip(panel.series.items(), SERIES, strict=False):
            values = np.atleast_2d(values)
            x = np.arange(values.shape[1])
            axes.plot(
                x, values.mean(0), color=colour, linestyle=style, marker=mark, markersize=3.6, linewidth=1.7,
                label=plain(name),
            )  # fmt: skip
            if len(values) > 1:
                axes.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.16, linewidth=0)
            if places is None:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
            else:
                axes.set_xticks(x, [plain(place) for place in places][: len(x)])
        for (name, value), dashes in zip(panel.lines.items(), ((2, 2), (7, 2), (1, 3)), strict=False):
            axes.axhline(value, color=theme.quiet, linewidth=1.2, linestyle=(0, dashes), label=plain(name))
        if panel.log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(lambda value, _: np.format_float_positional(value, trim="-"))
            axes.yaxis.set_minor_locator(NullLocator())
        if panel.limits:
            axes.set_ylim(*panel.limits)
        if panel.share:
            axes.yaxis.set_major_formatter(percent)
        axes.set_xlabel(axis, fontsize=8, color=theme.quiet)
        axes.set_ylabel(panel.unit, fontsize=8, color=theme.quiet)
        handles, labels = axes.get_legend_handles_labels()
        if shared:
            if number == 0:
                figure.legend(
                    handles[: len(names)], labels[: len(names)], loc="lower center", ncols=across, fontsize=7.5,
                    frameon=False, labelcolor=theme.ink, borderpad=0, borderaxespad=0.3,
                )  # fmt: skip
            handles, labels = handles[len(names) :], labels[len(names) :]
        if len(labels) + shared > 1:
            axes.legend(
                handles, labels, fontsize=7.5, facecolor=theme.paper, edgecolor="none", framealpha=0.85,
                labelcolor=theme.ink,
            )  # fmt: skip
    return figure


def dress(axes: Axes, theme: Theme) -> None:
    """The plain axes of all these panels."""
    axes.set_facecolor(theme.paper)
    axes.tick_params(labelsize=7.5, colors=theme.quiet)
    axes.grid(alpha=0.25, linewidth=0.6, color=theme.quiet)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.quiet)


def percent(share: float, _: float = 0) -> str:
    """A tick of an axis of shares, with no more digits than it has: "5%", "42.5%"."""
    return f"{round(100 * share, 6):g}%"
