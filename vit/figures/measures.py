"""A measure of each head, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vit.figures.style import COLOURS, begin_at, line_look, styled, titled_figure

Measured = tuple[str, Any, str, float | None]
"""What is measured; its values (layers, heads), nan where there is none; their unit; and the value
of uniform attention, if that has one."""


@styled
def heads_figure(
    measures: Sequence[Measured], layers: Sequence[int], title: str, subtitle: str
) -> Figure:
    """Draw measures side by side: a dot for each head, and a line through the means of the heads.

    Args:
        measures: of one or more panels.
        layers: their numbers.
    """
    figure = titled_figure(3.4 * len(measures) + 0.2, 3.1, title, subtitle)
    blue = COLOURS.series[0]
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    for axes, (name, given, unit, uniform) in zip(panels, measures, strict=True):
        # Among the dots of a single layer a dash is their mean; nan does not count
        values = np.ma.masked_invalid(given)
        axes.plot(
            layers,
            values.mean(1),
            color=blue,
            markersize=14,
            mew=1.6,
            label="mean of the heads",
            **line_look(len(layers), mark="_"),
        )
        axes.plot(
            np.repeat(layers, values.shape[1]),
            values.ravel(),
            "o",
            color=blue,
            alpha=0.5,
            mew=0,
            ms=5.5,
            zorder=1.9,
            label="a head",
        )
        if uniform is not None:
            axes.axhline(
                uniform,
                color=COLOURS.quiet,
                linewidth=1.2,
                linestyle=(0, (2, 2)),
                label="uniform attention",
            )
        begin_at(axes, 0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
        axes.set(title=name, xlabel="layer", ylabel=unit)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
