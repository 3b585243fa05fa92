"""How the cost of a step grows, on two logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from vit.figures.style import printable, styled, theme, titled_figure


@styled
def scaling_figure(axes: Mapping[str, Mapping[str, Any]], title: str, subtitle: str) -> Figure:
    """A log-log panel for each of `axes`: what was measured, and what arithmetic alone would have.

    Args:
        axes: name -> "x", "seconds", "flops" (sequences of one length), "slope" (None: not to be quoted) and "expected_slope".
        title, subtitle: the heading.
    """
    columns = 3
    rows = -(-len(axes) // columns)
    subtitle += " · dashed: what arithmetic alone would have, through the cheapest point"
    figure = titled_figure(9.0, 2.6 * rows, title, subtitle)
    blue, orange, *_ = theme().series
    every = figure.subplots(rows, columns, squeeze=False).flat
    for panel in every[len(axes) :]:
        panel.set_visible(False)
    for panel, (name, values) in zip(every, axes.items(), strict=False):
        x, seconds, flops = (np.asarray(values[key], dtype=float) for key in ("x", "seconds", "flops"))
        cheapest = int(flops.argmin())
        panel.loglog(x, seconds[cheapest] * flops / flops[cheapest], color=orange, linestyle="--", linewidth=1.4)
        panel.loglog(x, seconds, color=blue, marker="o")
        measured = "too noisy" if values["slope"] is None else f"slope {values['slope']:.2f}"
        panel.set_title(f"{printable(name)}: {measured} (dashed {values['expected_slope']:.2f})", fontsize=8.5)
        panel.set_xticks(x, [f"{value:g}" for value in x])
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        panel.yaxis.set_minor_formatter("{x:g}")  # within a decade, there may be one major tick alone
        panel.set_ylabel("seconds an epoch" if name == "images" else "seconds a step")
        panel.tick_params(labelsize=7.5, which="both")
    return figure
