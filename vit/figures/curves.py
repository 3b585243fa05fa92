"""How a run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vit.figures.measures import SERIES, dress, percent
from vit.figures.style import DPI, INK, LIGHT, Theme, fitted, plain, theme_of, titled_figure


@dataclass(frozen=True)
class Curve:
    """A panel of what a run measured.

    Attributes:
        title: what is shown.
        key: of metrics.jsonl, measured in training.
        val_key: of metrics.jsonl, measured on held-out images; "" for none.
        lines: horizontal lines: what they are called, and their value.
        exact: drawn as it is, from 0; else pale, with a running mean over it.
    """

    title: str
    key: str
    val_key: str = ""
    lines: Mapping[str, float] = field(default_factory=dict)
    exact: bool = False


STEERING = (
    Curve("learning rate", "lr", exact=True),
    Curve("gradient norm before clipping", "grad_norm", exact=True),
)
"""What every run has beside its own curves."""
PANEL = 4.6
"""Width in inches of a panel by itself: its text can be read on a phone, and two stand beside each other on a page."""


def curves_figure(metrics: Sequence[Mapping[str, Any]], curves: Sequence[Curve], title: str, subtitle: str) -> Figure:
    """What a run measured, and its learning rate and gradient norm, over the epochs.

    Args:
        metrics: lines of metrics.jsonl, in order: each has epoch, and either what a step measures, lr and grad_norm, or what
            was measured on held-out images.
        curves: one large panel each.
        title, subtitle: the heading.
    """
    figure, free = titled_figure(9.0 if len(curves) == 1 else 12.0, 4.2, title, subtitle)
    left = 0.075 if len(curves) == 1 else 0.055
    grid = figure.add_gridspec(
        2, len(curves) + 1, left=left, right=0.98, top=free - 0.055, bottom=0.11, wspace=0.22, hspace=0.55
    )
    grid.set_width_ratios([*[2.1 if len(curves) == 1 else 1.6] * len(curves), 1])
    for column, curve in enumerate(curves):
        axes = figure.add_subplot(grid[:, column])
        _draw(axes, metrics, curve, LIGHT)
        axes.legend(fontsize=7.5, facecolor="white", edgecolor="none", framealpha=0.95, labelcolor=INK)
    for place, curve in enumerate(STEERING):
        _draw(figure.add_subplot(grid[place, -1]), metrics, curve, LIGHT)
    return figure


def curve_figure(metrics: Sequence[Mapping[str, Any]], curve: Curve, height: float, dark: bool = False) -> Figure:
    """One panel by itself, without a heading and `height` inches high, its legend below it; the rest as in `curves_figure`."""
    theme = theme_of(dark)
    figure = Figure(figsize=(PANEL, height), dpi=DPI, facecolor=theme.paper)
    axes = figure.add_subplot()
    _draw(axes, metrics, curve, theme, 1.2)
    lines, names = axes.get_legend_handles_labels()
    below = 0.44 + (0.08 + 0.21 * len(lines) if lines else 0)  # a legend within would lie on the lines
    axes.set_position((0.64 / PANEL, below / height, (PANEL - 0.76) / PANEL, (height - 0.3 - below) / height))
    if lines:
        figure.legend(
            lines, names, loc="lower left", bbox_to_anchor=(0.52 / PANEL, 0), fontsize=9, frameon=False,
            labelcolor=theme.ink,
        )  # fmt: skip
    return figure


@dataclass(frozen=True)
class RunLine:
    """A run in a panel of `compared_figure`.

    Attributes:
        series: from 0, below the number of SERIES: its colour, line and mark. Runs that differ in the seed alone have one.
        epoch, values: what was measured while it trained.
        end: the epoch at which it ended, and what was measured then; None where nothing was.
        label: for the legend; "" of a run whose series is there already.
        rough: whether the values are those of single batches, to be drawn as a running mean.
    """

    series: int
    epoch: Sequence[float]
    values: Sequence[float]
    end: tuple[float, float] | None = None
    label: str = ""
    rough: bool = True


@dataclass(frozen=True)
class RunPanel:
    """A panel of `compared_figure`: its title, its runs, and whether it shows a share of one, written in percent."""

    title: str
    lines: Sequence[RunLine]
    share: bool = False


def compared_figure(panels: Sequence[RunPanel], title: str, subtitle: str) -> Figure:
    """Several runs over their epochs: a line while a run trained, a mark for what was measured when it had ended.

    Args:
        panels: side by side, the legend of each below it.
        title, subtitle: the heading.
    """
    rows = max(sum(bool(line.label) for line in panel.lines) for panel in panels)
    below = 0.52 + 0.18 * rows  # inches
    figure, free = titled_figure(max(PANEL * len(panels), 6.4), 3.3 + below, title, subtitle)
    width, height = figure.get_size_inches()
    room = width / len(panels)
    for number, panel in enumerate(panels):
        axes = figure.add_axes(
            ((number * room + 0.6) / width, below / height, (room - 0.8) / width, free - (0.3 + below) / height)
        )
        dress(axes, LIGHT)
        for line in panel.lines:
            colour, style, mark = SERIES[line.series]
            values = np.asarray(line.values, dtype=float)
            drawn = smoothed(values) if line.rough else values
            axes.plot(line.epoch, drawn, color=colour, linestyle=style, linewidth=1.6)
            if line.end is not None:
                epoch, value = line.end
                axes.plot(
                    [epoch], [value], color=colour, marker=mark, markersize=8, markeredgecolor="white", linestyle="",
                    clip_on=False, zorder=5,
                )  # fmt: skip
            if line.label:
                label = plain(fitted(line.label, (room - 1.4) * 72, 8))
                axes.plot(
                    [], [], color=colour, linestyle=style, marker=mark, markersize=5.5, linewidth=1.6, label=label
                )
        if panel.share:
            axes.yaxis.set_major_formatter(percent)
        axes.set_title(panel.title, fontsize=9.5, color=INK, loc="left")
        axes.set_xlabel("epoch", fontsize=8, color=LIGHT.quiet)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, min_n_ticks=3))
        handles, names = axes.get_legend_handles_labels()
        figure.legend(
            handles, names, loc="upper left", bbox_to_anchor=((number * room + 0.5) / width, (below - 0.44) / height),
            fontsize=8, frameon=False, labelcolor=INK, borderaxespad=0, borderpad=0, handlelength=3,
        )  # fmt: skip
    return figure


def _draw(axes: Axes, metrics: Sequence[Mapping[str, Any]], curve: Curve, theme: Theme, enlarged: float = 1.0) -> None:
    """A curve and its axes; letters are `enlarged` so many times."""
    epoch, values = _series(metrics, curve.key)
    if curve.exact:
        axes.plot(epoch, values, color=theme.dots, linewidth=1)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.plot(epoch, values, color=theme.dots, alpha=0.25, linewidth=0.8)
        axes.plot(epoch, smoothed(values), color=theme.dots, linewidth=1.8, label="in training, on varied images")
        epoch, values = _series(metrics, curve.val_key)
        if len(values):
            axes.plot(
                epoch, values, color=theme.fourth, linewidth=1.6, marker="o", markersize=3, label="held-out images"
            )
        for (name, value), colour, style in zip(
            curve.lines.items(), (theme.line, theme.third, theme.quiet), ("-", "--", ":"), strict=False
        ):
            axes.axhline(value, color=colour, linewidth=1.4, linestyle=style, label=f"{name}: {value:.3f}")
    axes.set_title(curve.title, fontsize=9 * enlarged, color=theme.ink, loc="left")
    axes.set_xlabel("epoch", fontsize=8 * enlarged, color=theme.quiet)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, min_n_ticks=3))
    axes.tick_params(labelsize=7.5 * enlarged, colors=theme.quiet)
    axes.set_facecolor(theme.paper)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.quiet)


def _series(metrics: Sequence[Mapping[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Epochs and values of the lines that have `key`."""
    lines = [line for line in metrics if key in line]
    return np.array([line["epoch"] for line in lines]), np.array([line[key] for line in lines])


def smoothed(values: np.ndarray) -> np.ndarray:
    """A centred running mean over about a fiftieth of the values, cut off at both ends: (n,) -> (n,)."""
    half = max(len(values) // 100, 1)
    total = np.concatenate([[0.0], values.cumsum()])
    index = np.arange(len(values))
    first, after = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (total[after] - total[first]) / (after - first)
