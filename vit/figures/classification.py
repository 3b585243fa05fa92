"""The confusion matrix of a classifier, and its calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from vit.figures.style import COLOURS, fitted, percent_tick, styled, text_width, titled_figure

MOST_WRITTEN = 20
"""Most classes for which a confusion matrix names its classes and writes out its cells."""
LONGEST_NAME = 1.6
"""Inches for the name of a class; the rest of a longer one is cut."""
NAME_SIZE = 7.5
"""Points of the labels of ticks, see the style sheet."""

MOST_DRAWN = 500
"""Most classes for which a confusion matrix is drawn: with more, a cell is smaller than a point."""

FEW = 10
"""Confidence bins with fewer images are drawn pale."""


@styled
def confusion_figure(
    table: Tensor, class_names: Sequence[str], title: str, subtitle: str
) -> Figure:
    """Draw how often each class was predicted for each, in percent of the images of a class.

    A row per class, correct predictions on the diagonal; a cell without images is empty.

    Args:
        table: int64 (classes, classes), counts, dense or sparse; row = label, column = prediction;
            at most MOST_DRAWN.
        class_names: one per class.
    """
    # The share of each true class that was taken for each; an empty class has zeros
    counts = table.to_dense().numpy()
    images = counts.sum(1)
    shares = counts / np.maximum(images[:, None], 1)
    classes = len(counts)
    # Few classes have room for their names, which are slanted below, and for numbers
    written = classes <= MOST_WRITTEN
    names = [fitted(name, LONGEST_NAME * 72, NAME_SIZE) for name in class_names]
    counted = [f"{name}  {count:,}" for name, count in zip(names, images, strict=True)]
    side = min(max(0.46 * classes, 3.2), 7.0)
    width = side + 1.5
    height = side + 0.5
    if written:
        longest = max(text_width(name, NAME_SIZE) for name in counted) / 72
        width += longest
        height += longest * math.sqrt(0.5)
    figure = titled_figure(width, height, title, subtitle)
    axes = figure.subplots()

    # Colours follow the root of the share, so that mistakes, a tenth of the right answers, show
    colours = LinearSegmentedColormap.from_list(
        "share", [COLOURS.paper, COLOURS.series[0], COLOURS.ink]
    )
    heat = axes.imshow(shares, colours, PowerNorm(0.5, 0, 1))
    axes.grid(False)
    axes.spines[:].set(visible=True, color=COLOURS.absent)
    axes.set(xticks=[], yticks=[])
    if written:
        # Pale text on dark cells; a cell without images is empty
        for row, column in np.argwhere(counts):
            share = shares[row, column]
            colour = COLOURS.paper if share > 0.18 else COLOURS.ink
            text = f"{100 * share:.0f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
        axes.set_xticks(range(classes), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(classes), counted)

    # Axes and colour bar
    axes.tick_params(length=0)
    axes.set_xlabel("predicted class", color=COLOURS.ink)
    axes.set_ylabel("true class, number of images", color=COLOURS.ink)
    bar = figure.colorbar(heat, ax=axes, aspect=30, pad=0.03)
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1])
    bar.ax.yaxis.set_major_formatter(percent_tick)
    bar.set_label("share of the row")
    bar.outline.set_visible(False)
    return figure


@styled
def reliability_figure(
    bins: Mapping[str, Sequence[float | None]], error: float, title: str, subtitle: str
) -> Figure:
    """Draw accuracy by confidence, and below it the images per bin.

    On the diagonal, accuracy equals confidence. Bins of fewer than `FEW` images are
    pale: their accuracy says little.

    Args:
        bins: a value per bin: its mean "confidence" and "accuracy", None if it is empty, and the
            "count" of images.
        error: the expected calibration error.
    """
    figure = titled_figure(5.2, 4.6, title, subtitle)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    # An empty bin's None becomes nan
    columns = [bins[key] for key in ("confidence", "accuracy", "count")]
    confidence, accuracy, count = np.array(columns, dtype=float)
    width = 1 / len(count)
    middles = (np.arange(len(count)) + 0.5) * width
    blue, orange, *_ = COLOURS.series

    # Accuracy by confidence; the diagonal is where they agree
    axes.plot(
        [0, 1],
        [0, 1],
        color=COLOURS.quiet,
        linestyle=(0, (4, 3)),
        linewidth=1.2,
        label="perfectly calibrated",
    )
    # Bins of few images are pale
    few = (count > 0) & (count < FEW)
    for chosen, alpha, label in (
        (count >= FEW, 0.85, "accuracy"),
        (few, 0.3, f"accuracy on fewer than {FEW} images"),
    ):
        if chosen.any():
            axes.bar(
                middles[chosen],
                accuracy[chosen],
                0.92 * width,
                color=blue,
                alpha=alpha,
                label=label,
            )
    # Points without a line: it would jump through bins of one image
    axes.plot(
        confidence,
        accuracy,
        color=orange,
        marker="o",
        linestyle="none",
        markersize=4.5,
        clip_on=False,
        label="at the mean confidence",
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    axes.xaxis.set_major_formatter(percent_tick)
    axes.yaxis.set_major_formatter(percent_tick)

    # The legend stands above: inside, it would cover bars
    axes.legend(
        title=f"expected calibration error {error:.1%}",
        alignment="left",
        ncols=2,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.2,
    )

    # The images of each bin; thousands are rounded: there is no room for more digits
    bars = below.bar(middles, count / count.sum(), 0.92 * width, color=COLOURS.quiet)
    numbers = [f"{number:.0f}" if number < 1000 else f"{number / 1000:.1f}k" for number in count]
    below.bar_label(bars, ["" if number == "0" else number for number in numbers], fontsize=6)
    below.margins(y=0.3)
    below.set(xlabel="confidence", ylabel="images")
    below.yaxis.set_major_formatter(percent_tick)
    axes.grid(False)
    below.grid(False)
    return figure
