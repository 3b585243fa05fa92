"""Measures over seeds: by arm, by layer, one against another, as parts of a whole, as relations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator

from vit.figures.style import (
    COLOURS,
    bare,
    legend_below,
    legend_columns,
    panel_axes,
    styled,
    text_width,
    theme,
    titled_figure,
    wrapped,
)

SERIES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ((0, (6, 1)), "v"))
"""Line and mark of each series: distinct in black and white too. The colours are the style's."""
DIVERGING = "PuOr_r"  # purple below 0, orange above: distinct in the common kinds of colour blindness
HATCHES = ("", "///", "...", "xxx", "", "\\\\\\")


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
def arms_figure(names: Sequence[str], panels: Sequence[Panel], title: str, subtitle: str) -> Figure:
    """Draw what changes from arm to arm of an experiment: a row per arm, a dot at the mean of its seeds.

    A bar reaches one standard deviation to both sides, as "±" does in the tables. The first arm is the baseline: its mean is a
    line through all rows. The end of the subtitle explains dot, bar and line.

    Args:
        names: of the arms, from the top.
        panels: up to three side by side, four in two rows; values: for each arm, those of its seeds, none if it was not
            measured.
    """
    subtitle += f" · dot: mean over seeds, bar: ± one standard deviation; grey: {names[0]}"
    left = max(text_width(name, 8.5) for name in names) / 72
    legend = 0.2 * any(panel.lines for panel in panels)
    columns = 2 if len(panels) == 4 else len(panels)
    each = 2.55 if columns < 3 else 2.1  # inches
    width = max(left + each * columns + 0.5, 6.0)
    high = 0.3 * len(names) + 0.75 + legend
    figure = titled_figure(width, high * -(-len(panels) // columns), title, subtitle)
    rows = np.arange(len(names))[::-1]
    for axes, panel in zip(panel_axes(figure, len(panels), columns, sharey=True), panels, strict=True):
        titled(axes, panel.title, each - 0.15)
        if len(panel.values[0]):
            axes.axvline(float(np.mean(panel.values[0])), color=theme().quiet, linewidth=0.9, alpha=0.7, zorder=1)
        for (name, value), (line, _), colour in zip(panel.lines.items(), SERIES[1:], theme().series[1:], strict=False):
            axes.axvline(value, color=colour, linewidth=1.3, linestyle=line, label=name, zorder=1)
        for row, values in zip(rows, panel.values, strict=True):
            if len(values):
                mean, spread = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
                reach = [mean - spread, mean + spread]
                axes.plot(reach, [row, row], color=theme().series[0], linewidth=3, alpha=0.4, solid_capstyle="butt")
                axes.plot([mean], [row], "o", color=theme().series[0], markersize=5)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_yticks(rows, list(names))
        axes.tick_params(axis="y", length=0, labelsize=8.5, labelcolor=theme().ink)
        axes.grid(axis="y", alpha=0.12)
        axes.set_xlabel(panel.unit)
        if panel.log:
            axes.set_xscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter("{x:g}")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.margins(x=0.09)
        if panel.limits:
            axes.set_xlim(*panel.limits)
        if panel.share:
            axes.xaxis.set_major_formatter(percent)
        if panel.lines:
            legend_below(axes, 0.3, ncols=2 if each > 2.5 else 1, labelcolor=theme().quiet)
    return figure


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
    own = [[name for name in (*panel.values, *marks, *panel.lines) if name not in names] for panel in panels]
    own = [of if len(names) + len(of) > 1 else [] for of in own]
    across_panel = min(legend_columns(of, room) for of in own if of) if any(own) else 1
    keys = 0.17 * max(-(-len(of) // across_panel) for of in own)
    figure = titled_figure(width, (2.65 + 0.16 * most + keys) * rows + below, title, subtitle)
    every = panel_axes(figure, len(panels), columns)
    for axes, panel in zip(every, panels, strict=True):
        titled(axes, panel.title, room)
        for (name, values), (line, mark), colour in zip(panel.values.items(), SERIES, theme().series, strict=False):
            values = np.ma.masked_invalid(np.atleast_2d(values))
            x = np.arange(values.shape[1])
            axes.plot(x, values.mean(0), color=colour, linestyle=line, marker="" if dots else mark, label=name)
            if dots:
                every_x = x.repeat(len(values))
                axes.plot(
                    every_x, values.T.ravel(), mark, color=colour, alpha=0.5, mew=0, ms=5.5, zorder=1.9, label=dots
                )
            elif len(values) > 1:
                axes.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.16, linewidth=0)
            if places is None:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
            else:
                apart = -(-len(x) // 13)
                axes.set_xticks(x[::apart], places[: len(x) : apart])
        for (name, value), dashes in zip(panel.lines.items(), ((2, 2), (7, 2), (1, 3)), strict=False):
            axes.axhline(value, color=theme().quiet, linewidth=1.2, linestyle=(0, dashes), label=name)
        if panel.limits:
            axes.set_ylim(*panel.limits)
        if panel.share:
            axes.yaxis.set_major_formatter(percent)
        axes.set(xlabel=axis, ylabel=panel.unit)
        handles, labels = axes.get_legend_handles_labels()
        if axes is every[0] and names:
            figure.legend(handles[: len(names)], labels[: len(names)], loc="outside lower center", ncols=across)
        if len(labels) > max(len(names), 1):
            legend_below(axes, 0.46, handles=handles[len(names) :], labels=labels[len(names) :], ncols=across_panel)
    return figure


@styled
def scatter_figure(panels: Sequence[Panel], up: str, title: str, subtitle: str) -> Figure:
    """Draw points in up to four panels side by side; y is the same measure in all, on one scale.

    The scale is logarithmic, and linear around 0.

    Args:
        panels: of the same kinds of points. Values: by name, x and y of the points, each (n,); unit: of x.
        up: the label of y.
    """
    columns = min(len(panels), 4)
    width = max(2.6 * columns + 0.6, 6.2)
    figure = titled_figure(width, 3.4 * -(-len(panels) // columns) + 0.25, title, subtitle)
    every = np.concatenate([y for panel in panels for _, y in panel.values.values()])
    even = 10.0 ** np.ceil(np.log10(max(float(np.quantile(np.abs(every), 0.2)), 1e-12)))  # linear up to here
    grid = panel_axes(figure, len(panels), columns, sharey=True)
    for axes, panel in zip(grid, panels, strict=True):
        titled(axes, panel.title, (width - 0.87) / columns - 0.3)
        for (name, (x, y)), (_, mark), colour in zip(panel.values.items(), SERIES, theme().series, strict=False):
            axes.plot(
                x,
                y,
                color=colour,
                marker=mark,
                linestyle="none",
                markersize=5,
                alpha=0.8,
                markeredgecolor=theme().paper,
                markeredgewidth=0.5,
                label=name,
            )
        axes.axhline(0, color=theme().quiet, linewidth=0.8)
        axes.set_yscale("symlog", linthresh=even)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(panel.unit)
    for axes in grid[::columns]:
        axes.set_ylabel(up)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower left", fontsize=8, ncols=4)
    return figure


@styled
def shares_figure(panels: Sequence[Panel], title: str, subtitle: str) -> Figure:
    """Draw bars from 0 to 100%, divided into parts; a negative part, which works against the others, lies left of 0.

    Args:
        panels: side by side. Values: by name of the bar, the share of each of up to six parts; they sum to 1.
    """
    most = max(len(panel.values) for panel in panels)
    parts = [list(next(iter(panel.values.values()))) for panel in panels]
    alike = len(panels) > 1 and all(of == parts[0] for of in parts)  # one legend, in three columns, serves all
    keys = 0.17 * max(-(-len(of) // (3 if alike else 2)) for of in parts) + 0.3
    lefts = [max(text_width(name, 8) for name in panel.values) / 72 for panel in panels]
    wide = 2.4 if alike else 3.2  # inches
    figure = titled_figure(sum(lefts) + (wide + 0.4) * len(panels), 0.24 * most + 0.7 + keys, title, subtitle)
    grid = panel_axes(figure, len(panels), len(panels))
    colours = (*theme().series[:4], "#9aa3ad", "#5b6470")
    for axes, panel in zip(grid, panels, strict=True):
        titled(axes, panel.title, wide)
        values = np.array([list(shares.values()) for shares in panel.values.values()])  # (rows, parts)
        rows = np.arange(len(values))[::-1]
        for part, name in enumerate(next(iter(panel.values.values()))):
            one = values[:, part]
            before = np.where(one > 0, values[:, :part].clip(min=0).sum(1), values[:, :part].clip(max=0).sum(1))
            axes.barh(
                rows,
                one,
                0.74 * len(rows) / most,  # as thick as in the fullest panel
                left=before,
                color=colours[part],
                hatch=HATCHES[part],
                hatchcolor=theme().paper,
                edgecolor=theme().paper,
                linewidth=0.5,
                label=name,
            )
        axes.axvline(0, color=theme().ink, linewidth=0.8)
        axes.set_xlim(min(float(values.clip(max=0).sum(1).min()) * 1.05, 0), float(values.clip(min=0).sum(1).max()))
        axes.set_ylim(-0.5, len(values) - 0.5)
        axes.set_yticks(rows, list(panel.values))
        axes.tick_params(axis="y", length=0, labelsize=8, labelcolor=theme().ink)
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_formatter(percent)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        if not alike:
            legend_below(axes, 0.28, ncols=2, columnspacing=1.2, handlelength=1.6)
    if alike:
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, handlelength=1.6)
    return figure


@styled
def relations_figure(
    names: Sequence[str],
    relations: Sequence[Panel],
    title: str,
    subtitle: str,
    marked: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Draw relations as square maps, two per row, all in the order that groups high values of the first.

    Args:
        names: K of them.
        relations: of the same things. Values: (K, K), the diagonal unused; limits: of the colours.
        marked: pairs of names whose cells are outlined.
    """
    order = seriated(relations[0].values)
    named = [names[place] for place in order]
    across = min(len(relations), 2)
    rows = -(-len(relations) // across)
    size = 6.5 if len(names) > 20 else 8
    label = max(text_width(name, size) for name in named) / 72
    figure = titled_figure((4.35 + label) * across, (4.95 + label) * rows, title, subtitle)
    for axes, relation in zip(panel_axes(figure, len(relations), across), relations, strict=True):
        values = relation.values[np.ix_(order, order)].astype(float)
        np.fill_diagonal(values, np.nan)
        limit = float(np.nanmax(np.abs(values))) or 1.0
        low, high = relation.limits or (-limit, limit)
        bare(axes)
        drawn = axes.imshow(values, cmap=DIVERGING, vmin=low, vmax=high)
        axes.set(frame_on=True, facecolor=theme().absent)
        axes.spines[:].set_visible(False)
        axes.set_xticks(range(len(named)), named, rotation=90, fontsize=size)
        axes.set_yticks(range(len(named)), named, fontsize=size)
        axes.tick_params(length=0, pad=2, labelcolor=theme().ink)
        axes.set_title(relation.title)
        for one, other in marked:
            for x, y in ((named.index(one), named.index(other)), (named.index(other), named.index(one))):
                axes.add_patch(
                    Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=COLOURS.ink, linewidth=1.4, clip_on=False)
                )
        bar = figure.colorbar(drawn, ax=axes, orientation="horizontal", aspect=55, pad=0.02)
        bar.ax.tick_params(labelsize=7, length=2)
        bar.outline.set_visible(False)
        bar.set_label(relation.unit, fontsize=7.5, labelpad=1)
    return figure


def seriated(values: np.ndarray) -> list[int]:
    """Return an order of K things that puts those with high values (K, K) near each other.

    It repeatedly joins the two groups that are nearest on average (average linkage, Sokal and Michener 1958) at their nearest
    ends.
    """
    groups = [[place] for place in range(len(values))]
    while len(groups) > 1:
        pairs = [(i, j) for i in range(len(groups)) for j in range(i)]
        i, j = max(pairs, key=lambda pair: float(values[np.ix_(groups[pair[0]], groups[pair[1]])].mean()))
        one, other = groups.pop(i), groups.pop(j)
        ways = [(a, b) for a in (one, one[::-1]) for b in (other, other[::-1])]
        first, second = max(ways, key=lambda way: float(values[way[0][-1], way[1][0]]))
        groups.append(first + second)
    return groups[0]


def titled(axes: Axes, title: str, room: float) -> None:
    """Write a panel's title in lines of `room` inches."""
    axes.set_title("\n".join(wrapped(title, room * 72, 9)))


def percent(share: float, _: float = 0) -> str:
    """Return a share as the label of a tick, with only the digits it needs: "5%", "42.5%"."""
    return f"{round(100 * share, 6):g}%"
