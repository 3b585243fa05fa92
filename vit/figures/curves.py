"""The curves of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vit.figures.style import (
    COLOURS,
    begin_at,
    line_look,
    percent_tick,
    styled,
    titled_figure,
)


@dataclass(frozen=True)
class Curve:
    """A panel of a figure of training curves.

    Attributes:
        title: what is shown.
        key: of metrics.jsonl, measured in training; "" for none.
        val_key: of metrics.jsonl, measured on held-out images; "" for none.
        lines: horizontal lines, name -> value; the run's own measurement at its end comes first.
        exact: whether values are drawn as they are, from 0; else pale, with a running mean on top.
        share: whether values are shares, written in percent.
    """

    title: str
    key: str
    val_key: str = ""
    lines: Mapping[str, float] = field(default_factory=dict)
    exact: bool = False
    share: bool = False


STEERING = (
    Curve("learning rate", "lr", exact=True),
    Curve("gradient norm before clipping", "grad_norm", exact=True),
)
"""The curves that every run has besides its own."""
MARKED = 60
"""Most measurements on held-out images that have a mark each."""


@styled
def curves_figure(
    metrics: Sequence[Mapping[str, Any]], curves: Sequence[Curve], title: str, subtitle: str
) -> Figure:
    """Draw the losses and scores of a run, its learning rate and gradient norm, over the epochs.

    Args:
        metrics: lines of metrics.jsonl, in order: each has epoch, and either a step's measurements,
            lr and grad_norm, or measurements on held-out images.
        curves: one large panel each.
    """
    # Two columns: wider, the text is illegible on a page. Each panel goes below the shorter one; it
    # is two rows high, those of learning rate and gradient norm one
    shown = [*curves, *STEERING]
    columns: Any = [[], []]
    for number, curve in enumerate(shown):
        rows = 1 if curve.exact else 2
        min(columns, key=len).extend([number] * rows)
    layout: Any = [*zip(*columns, strict=True)]
    figure = titled_figure(9.0, max(1.65 * len(layout), 4.2), title, subtitle)
    width_ratios = [2.1, 1] if len(curves) == 1 else [1, 1]
    panels = figure.subplot_mosaic(layout, width_ratios=width_ratios)
    for number, curve in enumerate(shown):
        _draw(panels[number], metrics, curve)
        if not curve.exact:
            panels[number].legend(frameon=True)
    return figure


def _draw(axes: Axes, metrics: Sequence[Mapping[str, Any]], curve: Curve) -> None:
    """Draw a curve, and values measured on held-out images, with their axes."""
    blue, orange, green, purple, *_ = COLOURS.series
    epochs, values = _series(metrics, curve.key)
    # Values measured in training are pale under their running mean
    mean = values
    width = 1.0
    if not curve.exact:
        mean = smoothed(values)
        width = 1.8
    if not np.array_equal(mean, values):
        axes.plot(epochs, values, color=blue, alpha=0.25, linewidth=0.8)
    if len(values):
        label = "training, on augmented images"
        axes.plot(epochs, mean, color=blue, linewidth=width, label=label, **line_look(len(mean)))
    epochs, held_out = _series(metrics, curve.val_key)
    if len(held_out):
        # Many marks would merge into a band
        mark = "o" if len(held_out) <= MARKED else ""
        label = "held-out images"
        axes.plot(epochs, held_out, color=purple, marker=mark, markersize=3, label=label)

    # Measurements at the end of the run, and what they are compared with
    styles = ((orange, "-"), (green, "--"), (COLOURS.quiet, ":"))
    form = ".1%" if curve.share else ".3f"
    for (name, value), (colour, line) in zip(curve.lines.items(), styles, strict=False):
        label = f"{name}: {value:{form}}"
        axes.axhline(value, color=colour, linewidth=1.4, linestyle=line, label=label)

    # A linear axis would show a spike, of more than a hundred times the median, and nothing else
    if len(values) and values.max() > 100 * np.median(values) > 0:
        axes.set_yscale("log")
    elif curve.exact:
        begin_at(axes, 0)
    axes.yaxis.set_major_formatter(percent_tick if curve.share else "{x:g}")
    axes.set_title(curve.title)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, min_n_ticks=3))


def _series(metrics: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """Return the epochs and values of the lines that have `key`: (2, n)."""
    # A line of a step has no measurements on held-out images, and the other way round
    points = [(line["epoch"], line[key]) for line in metrics if key in line]
    return np.array(points).reshape(-1, 2).T


def smoothed(values: np.ndarray) -> np.ndarray:
    """Return a centred running mean over about a fiftieth of the values: (n,) -> (n,).

    It is shorter at the two ends. Fewer than 20 values are returned as they are: a mean over three
    would hide their course.
    """
    if len(values) < 20:
        return values
    # Windows at the ends are shorter
    window = np.ones(2 * max(len(values) // 100, 1) + 1)
    count = np.convolve(np.ones(len(values)), window, "same")
    return np.convolve(values, window, "same") / count
