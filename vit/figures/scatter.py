"""One measure against another, a point each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from vit.figures.measures import SERIES, dress
from vit.figures.style import LIGHT, Theme, escaped, plain, titled_figure, wrapped


@dataclass(frozen=True)
class ScatterPanel:
    """A panel of `scatter_figure`.

    Attributes:
        title: what is compared, and how it came out.
        points: by name, x and y of the points, each (n,).
        across: what x is.
    """

    title: str
    points: Mapping[str, tuple[np.ndarray, np.ndarray]]
    across: str


def scatter_figure(
    panels: Sequence[ScatterPanel], up: str, title: str, subtitle: str, log: bool = False, theme: Theme = LIGHT
) -> Figure:
    """Points, up to four panels side by side; y is the same measure in all of them, on one scale.

    Args:
        panels: of the same kinds of points.
        up: what y is.
        title, subtitle: the heading.
        log: draw y logarithmically, but for what lies around 0, which is drawn in equal steps.
        theme: the colours.
    """
    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    width = max(2.6 * columns + 0.6, 6.2)
    titles = [wrapped(panel.title, ((width - 0.87) / columns - 0.25) * 72, 9) for panel in panels]
    above = 0.3 + 0.16 * (max(map(len, titles)) - 1)
    figure, free = titled_figure(width, (2.5 + above + 0.5) * rows + 0.25, title, subtitle, theme)
    width, height = figure.get_size_inches()
    grid = figure.add_gridspec(
        rows, columns, left=0.72 / width, right=1 - 0.15 / width, top=free - above / height, bottom=0.75 / height,
        wspace=0.12, hspace=(above + 0.6) / 2.4,
    )  # fmt: skip
    every = np.concatenate([y for panel in panels for _, y in panel.points.values()])
    even = 10.0 ** np.ceil(np.log10(max(float(np.quantile(np.abs(every), 0.2)), 1e-12)))  # up to it, in equal steps
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(grid[number // columns, number % columns], sharey=figure.axes[0] if number else None)
        dress(axes, theme)
        axes.set_title(escaped("\n".join(titles[number])), fontsize=9, color=theme.ink, loc="left")
        for (name, (x, y)), (colour, _, mark) in zip(panel.points.items(), SERIES, strict=False):
            axes.plot(
                x, y, color=colour, marker=mark, linestyle="none", markersize=5, alpha=0.8, markeredgecolor=theme.paper,
                markeredgewidth=0.5, label=plain(name),
            )  # fmt: skip
        axes.axhline(0, color=theme.quiet, linewidth=0.8)
        if log:
            axes.set_yscale("symlog", linthresh=even)
        axes.set_xlabel(panel.across, fontsize=8, color=theme.quiet)
        if number % columns == 0:
            axes.set_ylabel(up, fontsize=8, color=theme.quiet)
        else:
            axes.tick_params(axis="y", labelleft=False)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="lower left", bbox_to_anchor=(0.62 / width, 0.05 / height), fontsize=8, frameon=False, ncols=4,
        labelcolor=theme.ink,
    )  # fmt: skip
    return figure
