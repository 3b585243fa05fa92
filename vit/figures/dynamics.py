"""What a training did to a model's matrices: a column a kind of matrix, a row a quantity, a line a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from torch import Tensor

from vit.figures.style import styled, theme, titled_figure

Courses = Mapping[str, Mapping[str, Tensor]]
"""Name of a matrix -> name of a quantity -> (records, layers)."""


class _Row(NamedTuple):
    """A quantity, and the least that its axis spans; None for a logarithmic one."""

    quantity: str
    name: str
    formula: str
    words: str
    span: float | None = None


ROWS = (
    _Row("gradient_norm", "gradient", r"$\|\nabla W\|$", "of the whole batch,\nbefore clipping"),
    _Row("update_ratio", "update", r"$\|\Delta W\| \,/\, \|W\|$", "what one step\nchanges"),
    _Row("drift", "drift", r"$\|W - W_0\| \,/\, \|W_0\|$", "how far from\nthe start"),
    _Row("cosine", "cosine", r"$\cos(W, W_0)$", "what is left of the\nstart's direction", 0.01),
    _Row("stable_rank", "stable rank", r"$\|W\|_F^2 \,/\, \|W\|_2^2$", "over how many direc-\ntions it is spread", 5.0),
)
NAMES = {"W_Q": "$W_Q$, queries", "W_K": "$W_K$, keys", "W_V": "$W_V$, values", "W_O": "$W_O$, output"}
NAMES |= {"W_E": "$W_E$, patches", "pos_embed": "positions", "embed": "decoder's embed", "pred": "decoder's pred"}
NAMES |= {"head": "head", "fc1": "MLP, first", "fc2": "MLP, second"}
BIASES = ("$b_Q$", "$b_K$", "$b_V$")
DEPTHS = {False: (0.08, 0.80), True: (0.35, 0.98)}  # by `dark`: of the colours, so that all are seen on the page

ABOUT_PRODUCTS = r"""But for biases, logits depend on
$W_Q$ and $W_K$ by their product alone,
which $W_Q A$ and $W_K A^{-\top}$ have too,
for every invertible $A$. So each of
them may move without effect,
and the product may not."""
ABOUT_KEYS = r"""$b_K$ adds the same number to all
logits of a query, and softmax takes
out what they have in common. There
is nothing to learn: the true gradient
is 0, and what is measured, rounding."""
MEASURED_OF_KEYS = r"""Here it is {gradient} of the others'.
AdamW, which divides by its size,
makes a walk even of that: here to
{norm} of the others' norm."""


@styled
def dynamics_figure(
    steps: Tensor,
    layers: Courses,
    decoder: Courses,
    single: Courses,
    products: Tensor | None,
    biases: tuple[Tensor, Tensor] | None,
    title: str,
    subtitle: str,
    *,
    dark: bool = False,
) -> Figure:
    """A panel for each kind of matrix and quantity; below, the products of W_Q and W_K, and the biases of the three maps.

    Args:
        steps: (records,), from 1.
        layers: of the encoder's matrices, the quantities of `ROWS`.
        decoder: of the decoder's; may be empty.
        single: of the matrices outside of the layers, (records, 1) each.
        products: (records, layers, h), the drift of W_Q W_K^T, a head; None where there is none.
        biases: norms of the gradients of the biases of queries, keys and values, and of these, (records, layers, 3) each.
    """
    at = steps.numpy()
    depth = max(values.shape[1] for courses in layers.values() for values in courses.values())
    colours = ListedColormap(matplotlib.colormaps["magma"](np.linspace(*DEPTHS[dark], depth)))
    figure = titled_figure(13.0, 7.3 + (2.2 if products is not None else 0.0), title, subtitle)
    heights = [7.3, 2.2] if products is not None else [7.3]
    upper, *lower = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    columns = len(layers) + 2  # words, what is outside of the layers, a column per matrix
    grid = upper.subplots(len(ROWS), columns, squeeze=False, width_ratios=[1.2, *[1.0] * (columns - 1)])
    for row, (words, outside, *panels) in zip(ROWS, grid, strict=True):
        _write(words, (row.name, 9.5, theme().ink), (row.formula, 8, theme().quiet), (row.words, 7.5, theme().quiet))
        for colour, courses in zip(theme().series, single.values(), strict=False):
            outside.plot(at, courses[row.quantity].numpy(), color=colour, linewidth=1.3)
        for panel, (name, courses) in zip(panels, layers.items(), strict=True):
            _by_depth(panel, at, courses[row.quantity].numpy(), colours)
            if name in decoder:
                panel.plot(at, decoder[name][row.quantity].numpy(), color=theme().quiet, linewidth=1.1, linestyle="--")
            panel.tick_params(labelleft=panel is panels[0])
        for panel in (outside, *panels):
            _over_steps(panel, at, labelled=row is ROWS[-1])
        if row.span is None:
            _logarithmic([outside, *panels], decades=4)
        else:
            _linear([outside], row.span)
            _linear(panels, row.span)
        if row is ROWS[0]:
            outside.set_title("outside the layers", loc="center")
            for panel, (name, courses) in zip(panels, layers.items(), strict=True):
                heading = _frozen(courses[row.quantity].numpy()) + NAMES[name]
                panel.set_title(heading, loc="center", parse_math=True)
    lines = []
    for colour, (name, courses) in zip(theme().series, single.items(), strict=False):
        label = NAMES[name] if courses["gradient_norm"].any() else f"{NAMES[name]}, frozen"
        lines.append(Line2D([], [], color=colour, label=label))
    if decoder:
        lines.append(Line2D([], [], color=theme().quiet, linewidth=1.2, linestyle="--", label="decoder's layers"))
    _legend(upper, lines, loc="outside upper left")
    bar = upper.colorbar(
        ScalarMappable(Normalize(-0.5, depth - 0.5), colours), ax=grid, aspect=60, fraction=0.02, pad=0.01
    )
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=13, integer=True, min_n_ticks=1))
    bar.set_label("layer of the encoder")
    bar.outline.set_visible(False)
    if products is not None:
        _draw_below(lower[0], at, products.numpy(), biases, colours)
    return figure


def _draw_below(
    figure: Figure,
    steps: np.ndarray,
    products: np.ndarray,
    biases: tuple[Tensor, Tensor] | None,
    colours: ListedColormap,
) -> None:
    """The drift of the products (records, layers, h), and what became of the biases, with words on both."""
    drift, about, gradient, norm, about_keys = figure.subplots(1, 5, width_ratios=[1.0, 1.1, 1.0, 1.0, 1.1])
    for head in range(products.shape[2]):
        _by_depth(drift, steps, products[:, :, head], colours)
    _over_steps(drift, steps)
    _logarithmic([drift])
    drift.set_title("drift of $W_Q W_K^{\\,\\top}$, a line a head", parse_math=True)
    _write(about, (ABOUT_PRODUCTS, 8, theme().quiet))
    if biases is None:
        for axes in (gradient, norm, about_keys):
            axes.set_visible(False)
        return
    gradients, norms = (values.numpy() for values in biases)
    for axes, values, name in ((gradient, gradients, "gradient of the biases"), (norm, norms, "norm of the biases")):
        for third, colour in zip(range(3), theme().series, strict=False):
            axes.plot(steps, values[:, :, third], color=colour, linewidth=0.9)
        _over_steps(axes, steps)
        _logarithmic([axes])
        axes.set_title(name)
    handles = [Line2D([], [], color=colour, label=name) for colour, name in zip(theme().series, BIASES, strict=False)]
    _legend(norm, handles, frameon=True)
    words = ABOUT_KEYS
    found = [(np.median(values[..., 1]), np.median(values[..., ::2].max(-1))) for values in (gradients, norms[-1])]
    if all(0 < key < others for key, others in found):  # not where some of them are frozen
        shares = (_power(key / others) for key, others in found)
        words += "\n" + MEASURED_OF_KEYS.format(**dict(zip(("gradient", "norm"), shares, strict=True)))
    _write(about_keys, (words, 8, theme().quiet))


def _write(axes: Axes, *parts: tuple[str, float, str]) -> None:
    """Text instead of a panel: parts of so many points and such a colour, one below the other. Formulas are set."""
    axes.set_axis_off()
    down = 0.0
    for text, size, colour in parts:
        axes.annotate(
            text,
            (0, 1),
            (0, -down),
            xycoords="axes fraction",
            textcoords="offset points",
            va="top",
            fontsize=size,
            color=colour,
            linespacing=1.4,
            parse_math=True,
            weight="bold" if colour == theme().ink else "normal",
        ).set_in_layout(False)
        down += 14.5 if text.count("\n") == 0 else 0


def _legend(owner: Any, lines: Sequence[Line2D], **options: Any) -> None:
    """A legend in one line, of a figure or of a panel; formulas are set."""
    legend = owner.legend(
        handles=lines,
        ncols=len(lines),
        fontsize=8,
        labelcolor=theme().quiet,
        handlelength=1.6,
        columnspacing=1.4,
        **options,
    )
    for text in legend.get_texts():
        text.set_parse_math(True)


def _over_steps(axes: Axes, steps: np.ndarray, labelled: bool = True) -> None:
    """Steps are logarithmic: most happens in the first ones."""
    axes.set_xscale("log")
    axes.set_xlim(steps[0] / 1.12, steps[-1] * 1.2)
    axes.xaxis.set_major_locator(_powers_of_ten(steps[0], steps[-1]))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_locator(NullLocator())  # there are many panels: their marks would take longer than all lines
    axes.tick_params(labelsize=7, labelbottom=labelled)
    if labelled:
        axes.set_xlabel("step", fontsize=7.5, labelpad=1)


def _power(value: float) -> str:
    """A positive number as a formula: one digit and a power of ten."""
    digit, _, exponent = f"{value:.0e}".partition("e")
    return rf"${digit}\times10^{{{int(exponent)}}}$"


def _by_depth(panel: Axes, steps: np.ndarray, values: np.ndarray, colours: ListedColormap) -> None:
    """A line a layer: values (records, layers)."""
    for layer, line in enumerate(values.T):
        panel.plot(steps, line, color=colours(layer), linewidth=1.0)


def _frozen(gradients: np.ndarray) -> str:
    """A line on how many of the layers never got a gradient (records, layers), which a logarithm does not show."""
    frozen, layers = int((gradients == 0).all(0).sum()), gradients.shape[1]
    if not frozen:
        return ""
    return "frozen:\n" if frozen == layers else f"{frozen} of {layers} layers frozen:\n"


def _drawn(panels: list[Axes]) -> np.ndarray:
    """All numbers in some panels, but for nan and infinity."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for panel in panels for line in panel.lines])
    return values[np.isfinite(values)]


def _linear(panels: list[Axes], span: float) -> None:
    """One scale for some panels, around what is drawn in them; it spans at least so much."""
    values = _drawn(panels)
    low, high = (values.min(), values.max()) if values.size else (0.0, 0.0)
    low = min(low, high - span)
    margin = 0.06 * (high - low)
    for panel in panels:
        panel.set_ylim(low - margin, high + margin)
        panel.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))


def _logarithmic(panels: list[Axes], decades: int = 99) -> None:
    """One scale for some panels, around what is drawn in them; it spans at most so many decades."""
    values = _drawn(panels)
    positive = values[values > 0]
    low, high = (positive.min(), positive.max()) if positive.size else (1.0, 1.0)
    low = min(max(low, high / 10.0**decades), high / 1.5)
    margin = (high / low) ** 0.06
    for panel in panels:
        # First: where all is 0 (frozen), there is no logarithm of what is drawn.
        panel.set_ylim(low / margin, high * margin)
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(_powers_of_ten(low, high))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(NullLocator())


def _powers_of_ten(low: float, high: float) -> LogLocator:
    """Up to six of them; where there are few, also twice and five times each."""
    return LogLocator(subs=(1.0,) if high > 30 * low else (1.0, 2.0, 5.0), numticks=6)
