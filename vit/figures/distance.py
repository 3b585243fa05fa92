"""How far and how evenly heads look, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from vit.figures.style import styled, theme, titled_figure


@styled
def distance_figure(
    distances: Tensor,
    entropies: Tensor,
    title: str,
    subtitle: str,
    *,
    names: Sequence[str] | None = None,
    uniform_distance: float | None = None,
    uniform_entropy: float | None = None,
    dark: bool = False,
) -> Figure:
    """Draw each head's mean attention distance, and beside it its entropy, as dots by depth, with each layer's mean.

    Args:
        distances: (layers, heads), pixels; nan where a layer has fewer heads.
        entropies: (layers, heads), bits; nan likewise.
        names: short names of the layers; None for their numbers from 0.
        uniform_distance, uniform_entropy: of even attention, drawn as a line.
    """
    panels = (
        (distances, uniform_distance, "pixels", "how far: mean distance of what it looks at"),
        (entropies, uniform_entropy, "bits", "how evenly: entropy of its weights"),
    )
    figure = titled_figure(7.0, 3.4, title, subtitle)
    both = figure.subplots(1, 2)
    for axes, (values, even, unit, name) in zip(both, panels, strict=True):
        _by_depth(axes, values.detach().double().cpu().numpy(), even)
        axes.set_title(name)
        axes.set(xlabel="layer, from 0" if names is None else "layer", ylabel=unit)
        if names is None:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True, min_n_ticks=1))
        else:  # at most 13 ticks
            places = range(0, len(distances), -(-len(distances) // 13))
            axes.set_xticks(places, [names[place] for place in places])
        axes.set_xlim(-0.5, len(distances) - 0.5)
    lines, labels = both[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower left", ncols=3, fontsize=8, labelcolor=theme().quiet)
    return figure


def _by_depth(axes: Axes, values: np.ndarray, even: float | None) -> None:
    """Draw values (layers, heads): a dot per head, except for nan, and a line through the means of the layers."""
    layers, heads = values.shape
    x = np.arange(layers)
    there = ~np.isnan(values)
    count = there.sum(1)
    mean = np.where(count > 0, np.nansum(values, 1) / np.maximum(count, 1), np.nan)
    if even is not None:
        axes.axhline(even, color=theme().quiet, linewidth=1.2, linestyle=(0, (4, 3)), label="even attention", zorder=1)
    axes.plot(x, mean, color=theme().series[1], linewidth=1.8, label="mean of the heads", zorder=2)
    axes.plot(
        x.repeat(heads),
        values.ravel(),
        color=theme().series[0],
        linestyle="none",
        marker="o",
        markersize=5,
        markeredgecolor=theme().paper,
        markeredgewidth=0.6,
        alpha=0.85,
        label="a head",
        zorder=3,
    )
    highest = max([even or 0.0, *values[there].tolist()])
    axes.set_ylim(0, highest * 1.08 if highest > 0 else 1)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
