"""Gradient norms of a model's weight matrices, and their distances from the initial weights."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor

from vit.figures.style import (
    PALETTE,
    legend_columns,
    line_look,
    styled,
    titled_figure,
)

Courses = Mapping[str, Mapping[str, Tensor]]
"""Name of a quantity -> name of a matrix -> (records, layers)."""
SERIES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ((0, (6, 1)), "v"))
"""Line and mark of each series: distinct in black and white too. The colours are the style's."""
MATRICES = {"W_E": "x", "W_Q": "q", "W_K": "k", "W_V": "v", "W_O": "o", "positions": "position"}
"""The matrices with a colour of their own, as everywhere: name -> meaning in the palette."""
QUANTITIES = {
    "gradient_norm": "gradient norm, before clipping",
    "drift": "relative distance from the initial weights",
}
"""The quantities to draw, and the titles of their panels."""
DECADES = 4
"""Powers of ten that an axis spans at most."""


@styled
def dynamics_figure(steps: Tensor, courses: Courses, title: str, subtitle: str) -> Figure:
    """Draw a panel for each of `QUANTITIES`, with a line for each matrix: the mean over its layers.

    The legend marks a matrix whose gradient was always 0 as frozen: a logarithmic axis shows no 0.

    Args:
        steps: (records,), from 1.
        courses: of each of `QUANTITIES`, up to ten matrices.
    """
    # A logarithmic axis shows no 0: the legend names the frozen matrices
    names = {}
    for name, norms in courses["gradient_norm"].items():
        names[name] = name if norms.any() else f"{name} (frozen)"
    # As wide as two panels; the legend below takes the lines it needs
    width = 7.0
    across = legend_columns(names.values(), width - 0.3, 8)
    figure = titled_figure(width, 3.1 + 0.18 * -(-len(names) // across), title, subtitle)

    panels = figure.subplots(1, len(QUANTITIES))
    for axes, (quantity, words) in zip(panels, QUANTITIES.items(), strict=True):
        for number, (name, values) in enumerate(courses[quantity].items()):
            # A matrix has its own colour, as everywhere; those without one are grey
            line, mark = SERIES[number % len(SERIES)]
            colour = PALETTE[MATRICES.get(name, "quiet")]
            means = values.mean(1).numpy()
            look = line_look(len(means), line, mark)
            axes.plot(steps.numpy(), means, color=colour, label=names[name], **look)
        # Steps too are logarithmic: most happens early
        axes.set(title=words, xlabel="step", xscale="log", yscale="log")
        # Zeros, of frozen matrices, and overflows of a gradient in fp16 have no place on the axis
        # of values, which spans at most `DECADES`
        axes.margins(y=0)
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, high / 10.0**DECADES) / 1.2, high * 1.2)
        _label(axes.xaxis)
        _label(axes.yaxis)
    entries = panels[0].get_legend_handles_labels()
    figure.legend(*entries, loc="outside lower left", ncols=across, fontsize=8)
    return figure


def _label(axis: Axis) -> None:
    """Label up to six powers of ten; where an axis spans a small ratio, also 2 and 5 times each."""
    # Over a short range powers of ten alone would leave one tick
    low, high = axis.get_view_interval()
    multiples = [1.0]
    if high <= 40 * low:
        multiples = [1.0, 2.0, 5.0]
    axis.set_major_locator(LogLocator(subs=multiples, numticks=6))
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_locator(NullLocator())
