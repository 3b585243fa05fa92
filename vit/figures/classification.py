"""What a classifier mixes up, and whether its confidence can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from vit.figures.style import COLOURS, INK, escaped, fitted, theme_of, titled_figure

MOST_WRITTEN = 20
"""Classes up to which each cell and class of a confusion matrix is written out."""


def confusion_figure(
    table: Tensor, class_names: Sequence[str], title: str, subtitle: str, dark: bool = False
) -> Figure:
    """How often each class was taken for each, in percent of its images: a row a class, its own on the diagonal.

    Args:
        table: int64 (classes, classes), counts; row = label, column = prediction.
        class_names: one a class.
        title, subtitle: the heading; without a title there is none.
        dark: for a dark page.
    """
    theme = theme_of(dark)
    counts = table.numpy()
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    classes = len(share)
    small = classes <= MOST_WRITTEN
    side = min(max(0.46 * classes, 3.2), 7.0)
    left, below = (1.15, 1.0) if small else (0.6, 0.5)
    figure, free = titled_figure(left + side + 1.0, side + below, title, subtitle, theme)
    width, height = figure.get_figwidth(), figure.get_figheight()
    axes = figure.add_axes((left / width, free - side / height, side / width, side / height))
    # Mistakes are what one wants to see: the diagonal, ten times as large, would leave no colour for them.
    wrong = np.where(np.eye(classes, dtype=bool), np.nan, share)
    top = max(float(np.nanmax(wrong)) if classes > 1 else 0.0, 0.01)
    drawn = axes.imshow(wrong, cmap=COLOURS, vmin=0, vmax=top, interpolation="nearest")
    axes.set_facecolor("#2f353e" if dark else "#e7eaee")
    if small:
        names = [escaped(fitted(name, (left - 0.25) * 72, 7.5)) for name in class_names]
        axes.set_xticks(range(classes), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(classes), names)
        for row in range(classes):
            for column in range(classes):
                colour = theme.ink if row == column else "white" if share[row, column] < 0.6 * top else INK
                axes.text(
                    column, row, f"{share[row, column]:.0%}"[:-1], ha="center", va="center", fontsize=7,
                    color=colour, weight="bold" if row == column else "normal",
                )  # fmt: skip
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    axes.tick_params(labelsize=7.5, colors=theme.quiet, length=0)
    axes.set_xlabel("taken for", fontsize=8.5, color=theme.ink)
    axes.set_ylabel("true class", fontsize=8.5, color=theme.ink)
    for spine in axes.spines.values():
        spine.set_visible(False)
    place = ((left + side + 0.15) / width, free - side / height, 0.13 / width, side / height)
    bar = figure.colorbar(drawn, cax=figure.add_axes(place))
    bar.ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    bar.ax.tick_params(labelsize=7, colors=theme.quiet)
    bar.set_label("mistakes, share of the row", fontsize=8, color=theme.quiet)
    bar.outline.set_visible(False)
    return figure


def reliability_figure(
    confidence: Tensor, accuracy: Tensor, count: Tensor, error: float, title: str, subtitle: str, dark: bool = False
) -> Figure:
    """Confidence against accuracy: on the diagonal, a classifier is right as often as it says.

    Args:
        confidence, accuracy: (bins,), nan where there is no image.
        count: (bins,), images.
        error: the expected calibration error.
        title, subtitle: the heading; without a title there is none.
        dark: for a dark page.
    """
    theme = theme_of(dark)
    figure, free = titled_figure(5.2, 4.6, title, subtitle, theme)
    grid = figure.add_gridspec(
        2, 1, left=0.12, right=0.97, top=free - 0.02, bottom=0.1, height_ratios=[3.2, 1], hspace=0.12
    )
    axes, below = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    bins = len(count)
    edges = np.linspace(0, 1, bins + 1)
    middles, width = (edges[:-1] + edges[1:]) / 2, 1 / bins
    axes.plot([0, 1], [0, 1], color=theme.quiet, linestyle=(0, (4, 3)), linewidth=1.2, label="as often as it says")
    axes.bar(middles, accuracy.nan_to_num().numpy(), width=0.92 * width, color=theme.dots, alpha=0.85, label="accuracy")
    points: dict[str, Any] = dict(color=theme.line, marker="o", markersize=3.5, linewidth=1.4)
    axes.plot(confidence.numpy(), accuracy.numpy(), label="at its mean confidence", **points)
    axes.set_ylim(0, 1)
    axes.set_ylabel("accuracy", fontsize=8.5, color=theme.ink)
    said = f"expected calibration error {error:.1%}"
    legend = axes.legend(
        fontsize=7.5, title_fontsize=7.5, frameon=False, labelcolor=theme.ink, loc="upper left", title=said,
        alignment="left",
    )  # fmt: skip
    legend.get_title().set_color(theme.ink)
    axes.tick_params(labelbottom=False)
    share = count.numpy() / max(int(count.sum()), 1)
    below.bar(middles, share, width=0.92 * width, color=theme.quiet)
    below.set_ylabel("images", fontsize=8.5, color=theme.ink)
    below.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    below.set_xlabel("confidence", fontsize=8.5, color=theme.ink)
    for part in (axes, below):
        part.set_facecolor(theme.paper)
        part.set_xlim(0, 1)
        part.tick_params(labelsize=7.5, colors=theme.quiet)
        part.spines[["top", "right"]].set_visible(False)
        part.spines[["left", "bottom"]].set_color(theme.quiet)
    return figure
