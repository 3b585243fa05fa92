"""How the cost of a step grows, on two logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from vit.figures.style import BLUE, INK, ORANGE, QUIET, titled_figure


def scaling_figure(axes: Mapping[str, Mapping[str, Any]], title: str, subtitle: str) -> Figure:
    """A log-log panel for each of `axes`: what was measured, and what arithmetic alone would have.

    Args:
        axes: name -> "x", "seconds", "flops" (sequences of one length), "slope" (None: not to be quoted) and "expected_slope".
        title, subtitle: the heading.
    """
    columns = 3
    rows = -(-len(axes) // columns)
    subtitle += " · dashed: what arithmetic alone would have, through the cheapest point"
    figure, free = titled_figure(9.0, 2.6 * rows, title, subtitle)
    grid = figure.add_gridspec(
        rows, columns, left=0.075, right=0.98, top=free - 0.05, bottom=0.08, wspace=0.3, hspace=0.35
    )
    for index, (name, values) in enumerate(axes.items()):
        panel = figure.add_subplot(grid[index // columns, index % columns])
        x, seconds, flops = (np.asarray(values[key], dtype=float) for key in ("x", "seconds", "flops"))
        cheapest = int(flops.argmin())
        panel.loglog(x, seconds[cheapest] * flops / flops[cheapest], color=ORANGE, linestyle="--", linewidth=1.4)
        panel.loglog(x, seconds, color=BLUE, marker="o", markersize=4, linewidth=1.6)
        measured = "too noisy" if values["slope"] is None else f"slope {values['slope']:.2f}"
        heading = f"{name}: {measured} (dashed {values['expected_slope']:.2f})"
        panel.set_title(heading, fontsize=8.5, color=INK, loc="left")
        panel.set_xticks(x, [f"{value:g}" for value in x])
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        panel.yaxis.set_minor_formatter("{x:g}")  # within a decade, there may be one major tick alone
        panel.set_ylabel("seconds an epoch" if name == "images" else "seconds a step", fontsize=8, color=QUIET)
        panel.tick_params(labelsize=7.5, colors=QUIET, which="both")
        panel.grid(alpha=0.25, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(QUIET)
    return figure
