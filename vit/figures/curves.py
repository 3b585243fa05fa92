"""How a run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vit.figures.style import BLUE, GREEN, INK, ORANGE, QUIET, titled_figure


def curves_figure(
    metrics: Sequence[Mapping[str, Any]], lines: Mapping[str, float], title: str, subtitle: str
) -> Figure:
    """Loss, learning rate and gradient norm over the epochs.

    Args:
        metrics: lines of metrics.jsonl, in order, with epoch, loss, lr and grad_norm.
        lines: horizontal lines beside the loss: what they are called, and their value.
        title, subtitle: the heading.
    """
    figure, free = titled_figure(9.0, 4.2, title, subtitle)
    grid = figure.add_gridspec(2, 2, left=0.075, right=0.98, top=free - 0.055, bottom=0.11, wspace=0.22, hspace=0.55)
    grid.set_width_ratios([2.1, 1])
    epoch = np.array([line["epoch"] for line in metrics])
    loss_axes = figure.add_subplot(grid[:, 0])
    loss = np.array([line["loss"] for line in metrics])
    loss_axes.plot(epoch, loss, color=BLUE, alpha=0.25, linewidth=0.8)
    loss_axes.plot(epoch, smoothed(loss), color=BLUE, linewidth=1.8, label="training loss, running mean")
    for (name, value), colour, style in zip(lines.items(), (ORANGE, GREEN, QUIET), ("-", "--", ":"), strict=False):
        loss_axes.axhline(value, color=colour, linewidth=1.4, linestyle=style, label=f"{name}: {value:.3f}")
    loss_axes.set_title("loss over the hidden patches", fontsize=9, color=INK, loc="left")
    loss_axes.legend(fontsize=7.5, facecolor="white", edgecolor="none", framealpha=0.95, labelcolor=INK)
    for place, key, name in ((0, "lr", "learning rate"), (1, "grad_norm", "gradient norm before clipping")):
        axes = figure.add_subplot(grid[place, 1])
        axes.plot(epoch, [line[key] for line in metrics], color=BLUE, linewidth=1)
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


def smoothed(values: np.ndarray) -> np.ndarray:
    """A centred running mean over about a fiftieth of the values, cut off at both ends: (n,) -> (n,)."""
    half = max(len(values) // 100, 1)
    total = np.concatenate([[0.0], values.cumsum()])
    index = np.arange(len(values))
    first, after = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (total[after] - total[first]) / (after - first)
