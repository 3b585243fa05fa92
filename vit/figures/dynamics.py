"""What training did to a model's matrices: the size of their gradients, and how far they moved."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor

from vit.figures.measures import SERIES
from vit.figures.style import (
    COLOURS,
    NAMED,
    PALETTE,
    legend_columns,
    line_look,
    styled,
    titled_figure,
)

Courses = Mapping[str, Mapping[str, Tensor]]
"""Name of a matrix -> name of a quantity -> (records, layers)."""
QUANTITIES = {
    "gradient_norm": "gradient, before clipping",
    "drift": "distance from the start, relative to its size",
}
"""The quantities to draw, and the titles of their panels."""
DECADES = 4
"""Powers of ten that an axis spans at most."""


@styled
def dynamics_figure(steps: Tensor, courses: Courses, title: str, subtitle: str) -> Figure:
    """Draw a panel for each of `QUANTITIES`, with a line for each matrix: the mean over its layers.

    The legend marks a matrix that never got a gradient as frozen: a logarithmic axis shows no 0.

    Args:
        steps: (records,), from 1.
        courses: the `QUANTITIES` of up to ten matrices.
    """
    # A logarithmic axis shows no 0: the legend says which matrices were frozen
    names = {}
    for name, course in courses.items():
        names[name] = name
        if not course["gradient_norm"].any():
            names[name] = f"{name} (frozen)"
    # As wide as two panels; the legend below takes the lines it needs
    width = 7.0
    across = legend_columns(list(names.values()), width - 0.3, 8)
    figure = titled_figure(width, 3.1 + 0.18 * -(-len(names) // across), title, subtitle)

    panels = figure.subplots(1, len(QUANTITIES))
    for axes, (quantity, words) in zip(panels, QUANTITIES.items(), strict=True):
        for number, name in enumerate(courses):
            # A matrix has its own colour, as everywhere; those without one are grey
            line, mark = SERIES[number % len(SERIES)]
            colour = COLOURS.quiet
            if name in NAMED:
                colour = PALETTE[NAMED[name]]
            means = courses[name][quantity].mean(1).numpy()
            look = line_look(len(means), line, mark)
            axes.plot(steps.numpy(), means, color=colour, label=names[name], **look)
        axes.set_title(words)
        _over_steps(axes, steps.numpy())
        _logarithmic(axes)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=across, fontsize=8)
    return figure


def _over_steps(axes: Axes, steps: np.ndarray) -> None:
    """Make the axis of steps logarithmic: most happens early."""
    axes.set_xscale("log")
    axes.set_xlim(steps[0] / 1.12, steps[-1] * 1.2)
    axes.xaxis.set_major_locator(_powers_of_ten(steps[0], steps[-1]))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("step")


def _logarithmic(axes: Axes) -> None:
    """Make the axis of values logarithmic, to fit what is drawn; it spans at most `DECADES`."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
    # Zeros, of frozen matrices, have no place on the axis
    positive = values[np.isfinite(values) & (values > 0)]
    if not positive.size:
        positive = np.ones(1)
    low = positive.min()
    high = positive.max()
    low = min(max(low, high / 10.0**DECADES), high / 1.5)
    margin = (high / low) ** 0.06

    # The limits come first: if all values are 0 (frozen), a logarithmic scale has nothing to fit
    axes.set_ylim(low / margin, high * margin)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(_powers_of_ten(low, high))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def _powers_of_ten(low: float, high: float) -> LogLocator:
    """Return a locator of up to six powers of ten; over a short range, of 2 and 5 times each."""
    # Over a short range powers of ten alone would leave one tick
    multiples = [1.0, 2.0, 5.0]
    if high > 30 * low:
        multiples = [1.0]
    return LogLocator(subs=multiples, numticks=6)
