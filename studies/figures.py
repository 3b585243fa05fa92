"""What only studies draw.

Measures by layer, arms, points, shares, relations, patches in other surroundings, pairs of patches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation
from torch import Tensor

from vit.figures.attention import OUTLINED
from vit.figures.dynamics import MATRICES, SERIES
from vit.figures.mosaic import Tile, image_bytes, mosaic, outlined, resized, to_bytes
from vit.figures.style import (
    COLOURS,
    DPI,
    PALETTE,
    begin_at,
    canvas_figure,
    legend_columns,
    percent_tick,
    styled,
    text_width,
    titled_figure,
    wrapped,
)

HATCHES = ("", "///", "...", "xxx", "", "\\\\\\")
"""Hatch of each part of a bar."""


NAMED = MATRICES | {
    "position": "position",
    "its position": "position",
    "its own patch": "x",
    "token-specific context": "o",  # what attention adds
    "its context": "o",
    "mean of the image": "image",
    "trained": "trained",
    "random weights, Xavier": "untrained",
    "random weights, std 0.02": "quiet",
    "untrained": "untrained",
}
"""What is drawn in a colour of its own, in all charts: name -> meaning in the palette."""
HOLLOW = ("random weights, Xavier", "random weights, std 0.02", "untrained")
"""Models that have not learned: their marks are hollow."""
DASHES = ((2, 2), (7, 2), (1, 3))
"""Dashes of the reference lines."""
WIDTH = 5.0
"""Inches of a chart: a phone shows all of it, with words that can be read."""


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
) -> Figure:
    """Draw measures from layer to layer.

    Lines show the means over seeds, with bands for their range.

    Panels with the same series share one legend below them.

    Args:
        panels: two per row. Values: by name, (seeds, layers), nan where there is none.
        places: names along the horizontal axis, at most 13 of them written; None for 0, 1, ....
        axis: its label.
    """
    # Panels in rows
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    room = (WIDTH - 0.4) / columns - 0.55  # inches for a title
    title_lines = max(len(wrapped(panel.title, room * 72, 9)) for panel in panels)
    axis_lines = wrapped(axis, room * 72, 8)

    # One legend for all panels if they have the same series; a single series needs none
    entries = [[*panel.values, *panel.lines] for panel in panels]
    longest = max(entries, key=len)
    is_shared = len(panels) > 1
    for panel, names in zip(panels, entries, strict=True):
        is_shared &= names in (longest, longest[: len(panel.values)])
    across = legend_columns(longest, WIDTH - 0.3 if is_shared else room)
    legend_height = 0.0
    if len(longest) > 1:
        legend_height = 0.17 * -(-len(longest) // across)
    height = (1.95 + 0.16 * (title_lines + len(axis_lines))) * rows + 0.12
    height += legend_height * (1 if is_shared else rows)

    figure = titled_figure(WIDTH, height, title, subtitle)
    grid = panel_axes(figure, len(panels), columns)
    for axes, panel in zip(grid, panels, strict=True):
        titled(axes, panel.title, room)
        _draw_series(axes, panel)
        _label_layers(axes, panel, places, "\n".join(axis_lines), room)
        if legend_height and not is_shared:
            legend_below(axes, 0.3 + 0.16 * len(axis_lines), ncols=across)
    if legend_height and is_shared:
        keys = grid[entries.index(longest)].get_legend_handles_labels()
        figure.legend(*keys, loc="outside lower center", ncols=across)
    return figure


def _draw_series(axes: Axes, panel: Panel) -> None:
    """Draw each series of a panel: its mean, and the range around it."""
    # More series than styles begin again with the first
    styles = zip(cycle(SERIES), colours_of(list(panel.values)), strict=False)
    for (name, series), ((line, mark), colour) in zip(panel.values.items(), styles, strict=False):
        # The mean over seeds: nan, where there is no value, does not count
        values = np.ma.masked_invalid(np.atleast_2d(series))  # (seeds, layers)
        layers = np.arange(values.shape[1])
        look: dict[str, Any] = {"linestyle": line, "marker": mark}
        if name in HOLLOW:
            look["markerfacecolor"] = COLOURS.paper
        axes.plot(layers, values.mean(0), color=colour, label=name, **look)
        # A band from the lowest to the highest seed
        if len(values) > 1:
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


def colours_of(names: Sequence[str]) -> list[str]:
    """Return the colour of each series of a chart: that of `NAMED`, else the next free one."""
    named = [PALETTE[NAMED[name]] if name in NAMED else None for name in names]
    free = chain(
        (colour for colour in COLOURS.series if colour not in named), cycle(COLOURS.series)
    )
    return [colour or next(free) for colour in named]


def panel_axes(figure: Figure, count: int, columns: int, **options: Any) -> list[Axes]:
    """Return the axes of `count` panels, in rows of `columns`."""
    axes = figure.subplots(math.ceil(count / columns), columns, squeeze=False, **options).ravel()
    for unused in axes[count:]:
        unused.set_visible(False)
    return list(axes[:count])


def legend_below(axes: Axes, down: float, **options: Any) -> None:
    """Draw a legend `down` inches below a panel: inside, it would cover what is drawn."""
    # From the lower left corner of the panel, in inches
    below = axes.transAxes + ScaledTranslation(-0.05, -down, axes.figure.dpi_scale_trans)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below,
        borderaxespad=0,
        borderpad=0,
        **options,
    )


def bare(axes: Axes) -> None:
    """Remove ticks and frame, for pictures."""
    axes.set(xticks=[], yticks=[], frame_on=False)
    axes.grid(False)


@styled
def arms_figure(names: Sequence[str], panels: Sequence[Panel], title: str, subtitle: str) -> Figure:
    """Draw what changes from arm to arm of an experiment: a row per arm, a dot at its seeds' mean.

    A bar reaches one standard deviation to both sides, as "±" does in the tables. The first arm is
    the baseline: its mean is a line through all rows. The end of the subtitle explains dot, bar and
    line.

    Args:
        names: of the arms, from the top.
        panels: three per row, four in two rows; values: for each arm, those of its seeds, none if
            it was not measured.
    """
    if any(len(values) > 1 for panel in panels for values in panel.values):
        subtitle += " · dot: mean over seeds, bar: ± one standard deviation"
    subtitle += f" · grey line: {names[0]}"
    labels = ["\n".join(wrapped(name, 1.5 * 72, 8)) for name in names]
    left = max(text_width(line, 8) for label in labels for line in label.split("\n")) / 72
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    each = (WIDTH - 0.25 - left) / columns  # inches
    room = each - 0.12
    title_lines = max(len(wrapped(panel.title, room * 72, 9)) for panel in panels)

    # One legend for panels with the same reference lines, else one below each
    keys = [
        {name: "\n".join(wrapped(name, room * 72 - 30, 7.5)) for name in panel.lines}
        for panel in panels
    ]
    is_shared = all(key == keys[0] for key in keys) and len(panels) > 1
    legend = 0.16 * max(sum(1 + key.count("\n") for key in shown.values()) for shown in keys)
    high = 0.28 * len(names) + 0.55 + 0.16 * title_lines
    if any(panel.unit for panel in panels):
        high += 0.17
    if not is_shared:
        high += legend
    height = high * -(-len(panels) // columns) + 0.2 * is_shared * bool(legend)
    figure = titled_figure(WIDTH, height, title, subtitle)
    rows = np.arange(len(names))[::-1]
    grid = panel_axes(figure, len(panels), columns, sharey=True)
    for axes, panel, key in zip(grid, panels, keys, strict=True):
        titled(axes, panel.title, room)
        if len(panel.values[0]):
            axes.axvline(
                float(np.mean(panel.values[0])),
                color=COLOURS.quiet,
                linewidth=0.9,
                alpha=0.7,
                zorder=1,
            )
        for (name, value), (line, _), colour in zip(
            panel.lines.items(), SERIES[1:], COLOURS.series[1:], strict=False
        ):
            axes.axvline(
                value, color=colour, linewidth=1.3, linestyle=line, label=key[name], zorder=1
            )
        for name, row, values in zip(names, rows, panel.values, strict=True):
            if len(values):
                colour = colours_of([name])[0]
                mean = float(np.mean(values))
                spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
                reach = [mean - spread, mean + spread]
                axes.plot(
                    reach,
                    [row, row],
                    color=colour,
                    linewidth=3,
                    alpha=0.4,
                    solid_capstyle="butt",
                )
                face = COLOURS.paper if name in HOLLOW else colour
                axes.plot([mean], [row], "o", color=colour, markerfacecolor=face, markersize=5)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_yticks(rows, labels)
        axes.tick_params(axis="y", length=0, labelsize=8, labelcolor=COLOURS.ink)
        axes.grid(axis="y", alpha=0.12)
        axes.set_xlabel(panel.unit)
        if panel.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(numticks=3))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter("{x:g}")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=3))
        axes.margins(x=0.09)
        if panel.limits:
            axes.set_xlim(*panel.limits)
        if panel.share:
            axes.xaxis.set_major_formatter(percent_tick)
        if panel.lines and not is_shared:
            legend_below(
                axes, 0.5 if panel.unit else 0.3, handlelength=1.6, labelcolor=COLOURS.quiet
            )
    if is_shared and keys[0]:
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower left")
    return figure


@styled
def scatter_figure(panels: Sequence[Panel], up: str, title: str, subtitle: str) -> Figure:
    """Draw points in panels, two per row; y is the same measure in all, on one scale.

    The scale is logarithmic, and linear around 0.

    Args:
        panels: of the same kinds of points. Values: by name, x and y of the points, each (n,);
            unit: of x.
        up: the label of y.
    """
    columns = min(len(panels), 2)
    figure = titled_figure(WIDTH, 2.4 * -(-len(panels) // columns) + 0.25, title, subtitle)
    every = np.concatenate([y for panel in panels for _, y in panel.values.values()])
    smallest = max(float(np.quantile(np.abs(every), 0.2)), 1e-12)
    linear_up_to = 10.0 ** np.ceil(np.log10(smallest))
    grid = panel_axes(figure, len(panels), columns, sharey=True)
    for axes, panel in zip(grid, panels, strict=True):
        titled(axes, panel.title, (WIDTH - 0.87) / columns - 0.1)
        for (name, (x, y)), (_, mark), colour in zip(
            panel.values.items(), SERIES, COLOURS.series, strict=False
        ):
            axes.plot(
                x,
                y,
                color=colour,
                marker=mark,
                linestyle="none",
                markersize=5,
                alpha=0.8,
                markeredgecolor=COLOURS.paper,
                markeredgewidth=0.5,
                label=name,
            )
        axes.axhline(0, color=COLOURS.quiet, linewidth=0.8)
        axes.set_yscale("symlog", linthresh=linear_up_to)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(panel.unit)
    for axes in grid[::columns]:
        axes.set_ylabel(up)
    figure.legend(
        *grid[0].get_legend_handles_labels(), loc="outside lower left", fontsize=8, ncols=4
    )
    return figure


@styled
def pairs_figure(
    names: Sequence[str],
    panels: Mapping[str, tuple[Tensor, Sequence[Sequence[str]]]],
    sides: tuple[str, str],
    title: str,
    subtitle: str,
) -> Figure:
    """Draw rows of pairs of patches as coloured tiles: 0 is grey, and all share one scale, up to
    the 95% quantile.

    Args:
        names: of the rows.
        panels: side by side, title -> the pairs (rows, n, 2, C, p, q) around 0, C 1 or 3, and the
            text under each.
        sides: a word for the left and for the right tile of a pair.
    """
    # One scale for all tiles, which are a whole number of dots per pixel
    absolute = np.concatenate([pairs.abs().flatten() for pairs, _ in panels.values()])
    most = float(np.quantile(absolute, 0.95)) or 1.0
    pixels = next(iter(panels.values()))[0].shape[-1]
    tile = max(round(0.46 * DPI / pixels), 1) * pixels
    between = 8
    pair = 2 * tile + between + 36
    row_height = tile + 56
    margin = 30
    apart = 44
    top = 78
    left = round(max(text_width(name, 8.5) for name in names) / 72 * DPI) + 2 * margin
    width = left + apart * (len(panels) - 1)
    for pairs, _ in panels.values():
        width += pair * pairs.shape[1]
    size = (top + row_height * len(names), max(width, int(5.6 * DPI)))
    canvas = np.full((*size, 3), 255, dtype=np.uint8)

    # Tiles are pasted into one array; words are written once it is drawn
    words: list[tuple[float, float, str, dict[str, Any]]] = []
    for row, name in enumerate(names):
        middle = top + row * row_height + tile / 2
        words.append((left - margin, middle, name, {"ha": "right", "va": "center"}))
    x = left
    for panel, (pairs, notes) in panels.items():
        words.append((x, 20, panel, {"fontsize": 9.5, "weight": "bold"}))
        tiles = to_bytes(0.5 + 0.5 * pairs.detach().double().cpu().numpy() / most)
        tiles = tiles.repeat(3 // tiles.shape[3], axis=3)  # (rows, n, 2, 3, p, q)
        dots = tile // pixels
        tiles = tiles.repeat(dots, -2).repeat(dots, -1)
        tiles = np.moveaxis(tiles, 3, -1)  # (rows, n, 2, tile, tile, 3)
        for row, number, side in np.ndindex(tiles.shape[:3]):
            corner = x + number * pair + side * (tile + between)
            y = top + row * row_height
            canvas[y : y + tile, corner : corner + tile] = tiles[row, number, side]
            middle = corner + tile / 2
            if row == 0:
                above = {"fontsize": 7, "color": COLOURS.quiet, "ha": "center"}
                words.append((middle, y - 8, sides[side], above))
            if side == 0:
                middle += (tile + between) / 2
                below = {"fontsize": 7.5, "ha": "center"}
                words.append((middle, y + tile + 22, notes[row][number], below))
        x += pair * pairs.shape[1] + apart
    figure, axes = canvas_figure(canvas, title, subtitle)
    for x_word, y_word, text, look in words:
        axes.text(x_word, y_word, text, **({"fontsize": 8.5} | look))
    return figure


@styled
def shares_figure(panels: Sequence[Panel], title: str, subtitle: str) -> Figure:
    """Draw bars from 0 to 100%, divided into parts.

    A negative part, which works against the positive ones, lies left of 0.

    Args:
        panels: side by side. Values: by name of the bar, the share of each of up to six parts; they
            sum to 1.
    """
    # Panels of the same parts share one legend
    bars = max(len(panel.values) for panel in panels)
    parts = [list(next(iter(panel.values.values()))) for panel in panels]
    same_parts = all(names == parts[0] for names in parts)
    key_columns = 2
    inches = 3.2
    if same_parts and len(panels) > 1:
        key_columns = 3
        inches = 2.4
    keys_height = 0.17 * max(-(-len(names) // key_columns) for names in parts) + 0.3
    names_width = 0.0
    for panel in panels:
        names_width += max(text_width(name, 8) for name in panel.values) / 72
    width = names_width + (inches + 0.4) * len(panels)
    figure = titled_figure(width, 0.24 * bars + 0.7 + keys_height, title, subtitle)

    # The panels, side by side
    axes_of_panels = panel_axes(figure, len(panels), len(panels))
    for axes, panel in zip(axes_of_panels, panels, strict=True):
        titled(axes, panel.title, inches)
        _draw_shares(axes, panel, bars)
        if not same_parts:
            legend_below(axes, 0.28, ncols=2, columnspacing=1.2, handlelength=1.6)
    if same_parts:
        handles, labels = axes_of_panels[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower left", ncols=key_columns, handlelength=1.6
        )
    return figure


def _draw_shares(axes: Axes, panel: Panel, bars: int) -> None:
    """Draw a panel of bars divided into parts, as thick as in a panel of so many `bars`."""
    names = list(next(iter(panel.values.values())))
    colours = [*colours_of(names[:4]), COLOURS.stroke, COLOURS.quiet]
    shares = np.array([list(row.values()) for row in panel.values.values()])  # (rows, parts)
    # Positive parts extend to the right of 0, negative ones to the left
    positive = shares.clip(min=0)
    negative = shares.clip(max=0)
    rows = np.arange(len(shares))[::-1]

    # A part begins at the end of those before it on its side of 0
    for part, name in enumerate(names):
        share = shares[:, part]
        start = np.where(share > 0, positive[:, :part].sum(1), negative[:, :part].sum(1))
        axes.barh(
            rows,
            share,
            0.74 * len(rows) / bars,
            left=start,
            color=colours[part],
            hatch=HATCHES[part],
            hatchcolor=COLOURS.paper,
            edgecolor=COLOURS.paper,
            linewidth=0.5,
            label=name,
        )
    axes.axvline(0, color=COLOURS.ink, linewidth=0.8)

    # Axes: the names of the bars at the left, shares in percent below
    axes.set_xlim(float(negative.sum(1).min()) * 1.05, float(positive.sum(1).max()))
    axes.set_ylim(-0.5, len(shares) - 0.5)
    axes.set_yticks(rows, list(panel.values))
    axes.tick_params(axis="y", length=0, labelsize=8, labelcolor=COLOURS.ink)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(percent_tick)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))


@styled
def pasted_figure(
    rows: Sequence[Tensor],
    patch: tuple[int, int],
    grid: tuple[int, int],
    names: Sequence[str],
    columns: Sequence[str],
    words: Sequence[Sequence[str]],
    title: str,
    subtitle: str,
) -> Figure:
    """Draw rows of images, with the same place outlined in each.

    Args:
        rows: (n, C, H, W) from 0 to 1 each.
        patch: (row, column) of the place.
        grid: (rows, columns) of patches.
        names: of the rows.
        columns: names of the n images.
        words: for each row, the text under each image.
    """
    # Each pixel becomes a square of whole dots
    height, width = rows[0].shape[-2:]
    dots = max(160 // max(height, width), 1)
    size = (height * dots, width * dots)
    of_patch = (size[0] // grid[0], size[1] // grid[1])
    tiles = []
    for images, texts in zip(rows, words, strict=True):
        pictures = resized(image_bytes(images), size)
        marked = [outlined(picture, patch, of_patch) for picture in pictures]
        tiles.append([*map(Tile, marked, columns, texts)])
    legend = {"the patch that is the same in all images of a row": OUTLINED}
    return mosaic(tiles, title, subtitle, names=names, legend=legend)
