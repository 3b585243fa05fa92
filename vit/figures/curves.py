"""How a run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vit.figures.style import BLUE, GREEN, INK, ORANGE, PURPLE, QUIET, titled_figure


@dataclass(frozen=True)
class Curve:
    """A large panel of `curves_figure`.

    Attributes:
        title: what is shown.
        key: of metrics.jsonl, measured in training.
        held_out: of metrics.jsonl, measured on held-out images; "" for none.
        lines: horizontal lines: what they are called, and their value.
    """

    title: str
    key: str
    held_out: str
    lines: Mapping[str, float]


def curves_figure(metrics: Sequence[Mapping[str, Any]], curves: Sequence[Curve], title: str, subtitle: str) -> Figure:
    """What a run measured, and its learning rate and gradient norm, over the epochs.

    Args:
        metrics: lines of metrics.jsonl, in order: each has epoch, and either what a step measures, lr and grad_norm, or what
            was measured on held-out images.
        curves: one panel each.
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
        epoch, values = _series(metrics, curve.key)
        axes.plot(epoch, values, color=BLUE, alpha=0.25, linewidth=0.8)
        axes.plot(epoch, smoothed(values), color=BLUE, linewidth=1.8, label="in training, on varied images")
        if curve.held_out:
            epoch, values = _series(metrics, curve.held_out)
            if len(values):
                axes.plot(epoch, values, color=PURPLE, linewidth=1.6, marker="o", markersize=3, label="held-out images")
        for (name, value), colour, style in zip(
            curve.lines.items(), (ORANGE, GREEN, QUIET), ("-", "--", ":"), strict=False
        ):
            axes.axhline(value, color=colour, linewidth=1.4, linestyle=style, label=f"{name}: {value:.3f}")
        axes.set_title(curve.title, fontsize=9, color=INK, loc="left")
        axes.legend(fontsize=7.5, facecolor="white", edgecolor="none", framealpha=0.95, labelcolor=INK)
    for place, key, name in ((0, "lr", "learning rate"), (1, "grad_norm", "gradient norm before clipping")):
        axes = figure.add_subplot(grid[place, -1])
        axes.plot(*_series(metrics, key), color=BLUE, linewidth=1)
        axes.set_title(name, fontsize=9, color=INK, loc="left")
        axes.set_ylim(bottom=0)
        if key == "lr":
            axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
            axes.yaxis.get_offset_text().set_fontsize(7)
    for axes in figure.axes:
        axes.set_xlabel("epoch", fontsize=8, color=QUIET)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, min_n_ticks=3))
        axes.tick_params(labelsize=7.5, colors=QUIET)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(QUIET)
    return figure


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
