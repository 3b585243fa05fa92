"""What a classifier mixes up, and whether its confidence can be believed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from vit.figures.measures import percent
from vit.figures.style import COLOURS, LIGHT, fitted, styled, theme, titled_figure

MOST_WRITTEN = 20
"""Classes up to which each cell and class of a confusion matrix is written out."""


@styled
def confusion_figure(
    table: Tensor, class_names: Sequence[str], title: str, subtitle: str, dark: bool = False
) -> Figure:
    """How often each class was taken for each, in percent of its images: a row a class, its own on the diagonal.

    Args:
        table: int64 (classes, classes), counts; row = label, column = prediction.
        class_names: one a class.
    """
    counts = table.numpy()
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    classes = len(share)
    small = classes <= MOST_WRITTEN
    side = min(max(0.46 * classes, 3.2), 7.0)
    figure = titled_figure(side + (2.15 if small else 1.5), side + (1.0 if small else 0.5), title, subtitle)
    axes = figure.subplots()
    # Mistakes are what one wants to see: the diagonal, ten times as large, would leave no colour for them.
    wrong = np.where(np.eye(classes, dtype=bool), np.nan, share)
    top = max(float(np.nanmax(wrong)) if classes > 1 else 0.0, 0.01)
    drawn = axes.imshow(wrong, cmap=COLOURS, vmin=0, vmax=top)
    axes.set_facecolor("#2f353e" if dark else "#e7eaee")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[])
    if small:
        names = [fitted(name, 0.9 * 72, 7.5) for name in class_names]
        axes.set_xticks(range(classes), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(classes), names)
        for row, column in np.ndindex(share.shape):
            own = row == column
            colour = theme().ink if own else "white" if share[row, column] < 0.6 * top else LIGHT.ink
            axes.text(
                column,
                row,
                f"{share[row, column]:.0%}"[:-1],
                ha="center",
                va="center",
                fontsize=7,
                color=colour,
                weight="bold" if own else "normal",
            )
    axes.tick_params(length=0)
    axes.set_xlabel("taken for", color=theme().ink)
    axes.set_ylabel("true class", color=theme().ink)
    bar = figure.colorbar(drawn, ax=axes, aspect=30, pad=0.03)
    bar.ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    bar.ax.yaxis.set_major_formatter(percent)
    bar.set_label("mistakes, share of the row")
    bar.outline.set_visible(False)
    return figure


@styled
def reliability_figure(
    confidence: Tensor, accuracy: Tensor, count: Tensor, error: float, title: str, subtitle: str, dark: bool = False
) -> Figure:
    """Confidence against accuracy: on the diagonal, a classifier is right as often as it says.

    Args:
        confidence, accuracy: (bins,), nan where there is no image.
        count: (bins,), images.
        error: the expected calibration error.
    """
    figure = titled_figure(5.2, 4.6, title, subtitle)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    bins = len(count)
    middles = (np.arange(bins) + 0.5) / bins
    blue, orange, *_ = theme().series
    axes.plot([0, 1], [0, 1], color=theme().quiet, linestyle=(0, (4, 3)), linewidth=1.2, label="as often as it says")
    axes.bar(middles, accuracy.nan_to_num().numpy(), width=0.92 / bins, color=blue, alpha=0.85, label="accuracy")
    axes.plot(
        confidence.numpy(),
        accuracy.numpy(),
        color=orange,
        marker="o",
        linewidth=1.4,
        markersize=3.5,
        label="at its mean confidence",
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    axes.legend(loc="upper left", title=f"expected calibration error {error:.1%}", alignment="left")
    share = count.numpy() / max(int(count.sum()), 1)
    below.bar(middles, share, width=0.92 / bins, color=theme().quiet)
    below.set(xlabel="confidence", ylabel="images")
    below.yaxis.set_major_formatter(percent)
    for part in (axes, below):
        part.grid(False)
    return figure
