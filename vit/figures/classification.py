"""What a classifier mixes up, and whether its confidence can be believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from vit.figures.measures import percent
from vit.figures.style import COLOURS, fitted, styled, titled_figure

MOST_WRITTEN = 20
"""Most classes for which a confusion matrix names its classes and writes out its cells."""

MOST_DRAWN = 500
"""Most classes for which a confusion matrix is drawn: with more, a cell is smaller than a point."""

FEW = 10
"""Confidence bins with fewer images are drawn pale."""


def why_not_drawn(classes: int) -> str:
    """Return why `confusion_figure` cannot show so many classes, as a sentence; "" if it can."""
    if classes <= MOST_DRAWN:
        return ""
    return f"The confusion of {classes:,} classes is not drawn: too many to see."


@styled
def confusion_figure(
    table: Tensor, class_names: Sequence[str], title: str, subtitle: str
) -> Figure:
    """Draw how often each class was taken for each, in percent of its images: a row per class, correct on the diagonal.

    Each row is rounded so that it sums to 100; a cell without images is empty.

    Args:
        table: int64 (classes, classes), counts, dense or sparse; row = label, column = prediction; at most MOST_DRAWN.
        class_names: one per class.
    """
    counts = table.to_dense().numpy()
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    classes = len(share)
    small = classes <= MOST_WRITTEN
    images = counts.sum(1)
    alike = len({*images.tolist()}) == 1
    side = min(max(0.46 * classes, 3.2), 7.0)
    figure = titled_figure(
        side + (2.15 if small else 1.5), side + (1.0 if small else 0.5), title, subtitle
    )
    axes = figure.subplots()
    # Colours follow the root of the share, so that mistakes, a tenth of the right answers, stay visible.
    paper, blue, ink = COLOURS.paper, COLOURS.series[0], COLOURS.ink
    drawn = axes.imshow(
        share, LinearSegmentedColormap.from_list("share", [paper, blue, ink]), PowerNorm(0.5, 0, 1)
    )
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[])
    if small:
        names = [fitted(name, 0.9 * 72, 7.5) for name in class_names]
        axes.set_xticks(range(classes), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(
            range(classes),
            names if alike else [f"{a}  {n:,}" for a, n in zip(names, images, strict=True)],
        )
        written = np.stack([whole_percents(row) for row in counts])
        for row, column in zip(*counts.nonzero(), strict=True):
            colour = paper if share[row, column] > 0.18 else ink
            text = str(written[row, column])
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    axes.tick_params(length=0)
    axes.set_xlabel("predicted class", color=COLOURS.ink)
    axes.set_ylabel(
        "true class" + (f" ({images[0]:,} images each)" if alike else " (its images)"),
        color=COLOURS.ink,
    )
    bar = figure.colorbar(drawn, ax=axes, aspect=30, pad=0.03)
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1])
    bar.ax.yaxis.set_major_formatter(percent)
    bar.set_label("share of the row")
    bar.outline.set_visible(False)
    return figure


def whole_percents(counts: np.ndarray) -> np.ndarray:
    """Return counts (n,) in percent of their sum, rounded so that they sum to 100: int64 (n,); zeros stay zeros."""
    exact = 100 * counts / max(counts.sum(), 1)
    whole = np.floor(exact).astype(np.int64)
    missing = round(exact.sum()) - whole.sum()
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1  # those that rounding cut most
    return whole


@styled
def reliability_figure(
    bins: Mapping[str, Sequence[float | None]], error: float, title: str, subtitle: str
) -> Figure:
    """Draw accuracy by confidence: on the diagonal, a classifier is right as often as it says; below, the images per bin.

    Bins of fewer than `FEW` images are pale: their accuracy says little.

    Args:
        bins: a value per bin: its mean "confidence" and "accuracy", None if it is empty, and the "count" of images.
        error: the expected calibration error.
    """
    figure = titled_figure(5.2, 4.6, title, subtitle)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    confidence, accuracy, count = (
        np.array(bins[key], dtype=float) for key in ("confidence", "accuracy", "count")
    )
    width = 1 / len(count)
    middles = (np.arange(len(count)) + 0.5) * width
    blue, orange, *_ = COLOURS.series
    axes.plot(
        [0, 1],
        [0, 1],
        color=COLOURS.quiet,
        linestyle=(0, (4, 3)),
        linewidth=1.2,
        label="perfectly calibrated",
    )
    few, height = count < FEW, np.nan_to_num(accuracy)
    for chosen, alpha, label in (
        (~few, 0.85, "accuracy"),
        (few & (count > 0), 0.3, f"of fewer than {FEW} images"),
    ):
        if chosen.any():
            axes.bar(
                middles[chosen],
                height[chosen],
                width=0.92 * width,
                color=blue,
                alpha=alpha,
                label=label,
            )
    axes.plot(
        confidence,
        accuracy,
        color=orange,
        marker="o",
        linestyle="none",  # a line would jump through bins of one image
        markersize=4.5,
        label="at its mean confidence",
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    # A legend inside would cover bars.
    above = {
        "loc": "lower left",
        "bbox_to_anchor": (0, 1),
        "borderaxespad": 0.2,
        "ncols": 2,
        "fontsize": 7.5,
    }
    axes.legend(title=f"expected calibration error {error:.1%}", alignment="left", **above)
    share = count / max(count.sum(), 1)
    below.bar(middles, share, width=0.92 * width, color=COLOURS.quiet)
    for middle, part, number in zip(middles, share, count.tolist(), strict=True):
        if number:
            text = f"{number:.0f}" if number < 1000 else f"{number / 1000:.1f}k"
            below.annotate(
                text, (middle, part), (0, 1), textcoords="offset points", ha="center", fontsize=6
            )
    below.margins(y=0.3)
    below.set(xlabel="confidence", ylabel="images")
    below.yaxis.set_major_formatter(percent)
    for part in (axes, below):
        part.grid(False)
    return figure
