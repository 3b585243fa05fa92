"""What a training did to a model's matrices: a column a kind of matrix, a row a quantity, a line a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from torch import Tensor

from vit.figures.style import BLUE, COLOURS, GREEN, ORANGE, PURPLE, Theme, theme_of, titled_figure

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
NAMES = {
    "W_E": "$W_E$, patches", "pos_embed": "positions", "head": "head", "embed": "decoder's embed", "pred": "decoder's pred",
    "W_Q": "$W_Q$, queries", "W_K": "$W_K$, keys", "W_V": "$W_V$, values", "W_O": "$W_O$, output",
    "fc1": "MLP, first", "fc2": "MLP, second",
}  # fmt: skip
BIASES = ("$b_Q$", "$b_K$", "$b_V$")
HUES = {False: (BLUE, ORANGE, GREEN, PURPLE), True: ("#6cb0f0", "#ff9d4d", "#74c476", "#c9a2e6")}  # by `dark`
DEPTHS = {False: (0.08, 0.80), True: (0.35, 0.98)}  # of the colours, so that all are seen on the page

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

# Inches.
WIDTH = 13.0
HEIGHT, GAP = 1.1, (0.16, 0.17)  # of a panel, and what is between two
LEFT, TOP, RIGHT = 1.75, 0.6, 0.2  # of the names of rows; of legend and headings; margin
SECOND, STEPS = 0.3, 0.42  # of the second column's numbers; of the last row's
WIDE, BELOW = (1.95, 1.55), 2.3  # a panel of products or biases; all of that


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
        title, subtitle: the heading.
        dark: for a dark page.
    """
    theme, at = theme_of(dark), steps.numpy()
    depth = max(values.shape[1] for courses in layers.values() for values in courses.values())
    colours = ListedColormap(matplotlib.colormaps[COLOURS](np.linspace(*DEPTHS[dark], depth)))
    hues = dict(zip(single, HUES[dark], strict=False))
    pitch = (WIDTH - LEFT - SECOND - RIGHT + GAP[0]) / (len(layers) + 1)
    lefts = [LEFT, *(LEFT + SECOND + column * pitch for column in range(1, len(layers) + 1))]
    tops = [TOP + row * (HEIGHT + GAP[1]) for row in range(len(ROWS))]
    end = tops[-1] + HEIGHT + STEPS
    figure, free = titled_figure(WIDTH, end + (BELOW if products is not None else 0.0), title, subtitle, theme)
    page = _Page(figure, free, theme, at)
    for row, top in zip(ROWS, tops, strict=True):
        page.text(0.15, top + 0.08, row.name, 9.5, theme.ink, weight="bold")
        page.text(0.15, top + 0.28, row.formula, 8, theme.quiet)
        page.text(0.15, top + 0.52, row.words, 7.5, theme.quiet)
        panels = [page.panel(left, top, (pitch - GAP[0], HEIGHT), labelled=row is ROWS[-1]) for left in lefts]
        for name, courses in single.items():
            panels[0].plot(at, courses[row.quantity].numpy(), color=hues[name], linewidth=1.3)
        for panel, (name, courses) in zip(panels[1:], layers.items(), strict=True):
            _by_depth(panel, at, courses[row.quantity].numpy(), colours)
            if name in decoder:
                panel.plot(at, decoder[name][row.quantity].numpy(), color=theme.quiet, linewidth=1.1, linestyle="--")
        if row.span is None:
            _logarithmic(panels, decades=4)
        else:
            _linear(panels[:1], row.span)
            _linear(panels[1:], row.span)
        for panel in panels[2:]:
            panel.tick_params(labelleft=False)
        if row is ROWS[0]:
            panels[0].set_title("outside the layers", fontsize=9, color=theme.ink, pad=5)
            for panel, (name, courses) in zip(panels[1:], layers.items(), strict=True):
                heading = _frozen(courses[row.quantity].numpy()) + NAMES[name]
                panel.set_title(heading, fontsize=9, color=theme.ink, pad=5)
    lines = []
    for name, courses in single.items():
        label = NAMES[name] if courses["gradient_norm"].any() else f"{NAMES[name]}, frozen"
        lines.append(Line2D([], [], color=hues[name], linewidth=1.6, label=label))
    if decoder:
        lines.append(Line2D([], [], color=theme.quiet, linewidth=1.2, linestyle="--", label="decoder's layers"))
    page.legend(LEFT, -0.02, lines)
    page.bar(colours)
    if products is not None:
        _draw_products(page, (LEFT, end + 0.35), products.numpy(), colours)
        if biases is not None:
            gradients, norms = (values.numpy() for values in biases)
            _draw_biases(page, (LEFT + 4.4, end + 0.35), gradients, norms, HUES[dark])
    return figure


class _Page:
    """A figure whose parts are placed in inches, from the left and from below the heading."""

    def __init__(self, figure: Figure, free: float, theme: Theme, steps: np.ndarray):
        self.figure, self.free, self.theme, self.steps = figure, free, theme, steps
        self.width, self.height = figure.get_figwidth(), figure.get_figheight()

    def axes(self, left: float, top: float, size: tuple[float, float]) -> Axes:
        bottom = self.free - (top + size[1]) / self.height
        box = (left / self.width, bottom, size[0] / self.width, size[1] / self.height)
        return self.figure.add_axes(box, facecolor=self.theme.paper)

    def panel(self, left: float, top: float, size: tuple[float, float], labelled: bool = True) -> Axes:
        """Axes over the steps, which are logarithmic: most happens in the first ones."""
        axes, quiet = self.axes(left, top, size), self.theme.quiet
        axes.set_xscale("log")
        axes.set_xlim(self.steps[0] / 1.12, self.steps[-1] * 1.2)
        axes.xaxis.set_major_locator(_powers_of_ten(self.steps[0], self.steps[-1]))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_minor_locator(
            NullLocator()
        )  # there are many panels: their marks would take longer than all lines
        axes.tick_params(labelsize=7, colors=quiet, labelbottom=labelled)
        if labelled:
            axes.set_xlabel("step", fontsize=7.5, color=quiet, labelpad=1)
        axes.grid(alpha=0.25, linewidth=0.6, color=quiet)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(quiet)
        return axes

    def text(self, left: float, top: float, text: str, size: float, colour: str, weight: str = "normal") -> None:
        place = (left / self.width, self.free - top / self.height)
        self.figure.text(*place, text, fontsize=size, color=colour, va="top", linespacing=1.4, weight=weight)

    def legend(self, left: float, top: float, lines: list[Line2D]) -> None:
        place = (left / self.width, self.free - top / self.height)
        self.figure.legend(
            handles=lines, loc="upper left", bbox_to_anchor=place, ncols=len(lines), fontsize=8, frameon=False,
            labelcolor=self.theme.quiet, borderaxespad=0, handlelength=1.6, handletextpad=0.5, columnspacing=1.8,
        )  # fmt: skip

    def bar(self, colours: ListedColormap) -> None:
        """Which colour is which layer."""
        size = (min(0.28 * colours.N, 2.4), 0.1)
        axes = self.axes(self.width - RIGHT - size[0], 0.0, size)
        axes.imshow(np.arange(colours.N)[None], cmap=colours, aspect="auto", vmin=-0.5, vmax=colours.N - 0.5)
        axes.set_yticks([])
        axes.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True, min_n_ticks=1))
        axes.set_xlim(-0.5, colours.N - 0.5)
        axes.tick_params(labelsize=7, colors=self.theme.quiet, length=0, pad=2)
        axes.spines[:].set_visible(False)
        label = "layer of the encoder"
        axes.text(
            -0.1 / size[0], 0.5, label, transform=axes.transAxes, ha="right", va="center", fontsize=8, color=self.theme.quiet
        )  # fmt: skip


def _draw_products(page: _Page, place: tuple[float, float], products: np.ndarray, colours: ListedColormap) -> None:
    panel = page.panel(*place, WIDE)
    for head in range(products.shape[2]):
        _by_depth(panel, page.steps, products[:, :, head], colours)
    _logarithmic([panel])
    panel.set_title("drift of $W_Q W_K^{\\,\\top}$, a line a head", fontsize=9, color=page.theme.ink, loc="left", pad=5)
    page.text(place[0] + WIDE[0] + 0.15, place[1], ABOUT_PRODUCTS, 8, page.theme.quiet)


def _draw_biases(
    page: _Page, place: tuple[float, float], gradients: np.ndarray, norms: np.ndarray, hues: tuple[str, ...]
) -> None:
    """Norms of the gradients, and of the biases themselves, of queries, keys and values: (records, layers, 3) each."""
    left, top = place
    for values, name in ((gradients, "gradient of the biases"), (norms, "norm of the biases")):
        panel = page.panel(left, top, WIDE)
        for third, hue in enumerate(hues[:3]):
            panel.plot(page.steps, values[:, :, third], color=hue, linewidth=0.9)
        _logarithmic([panel])
        panel.set_title(name, fontsize=9, color=page.theme.ink, loc="left", pad=5)
        left += WIDE[0] + 0.45
    handles = [Line2D([], [], color=hue, linewidth=1.6, label=name) for hue, name in zip(hues, BIASES, strict=False)]
    page.legend(left - 0.3, top - 0.22, handles)
    words = ABOUT_KEYS
    found = [(np.median(values[..., 1]), np.median(values[..., ::2].max(-1))) for values in (gradients, norms[-1])]
    if all(0 < key < others for key, others in found):  # not where some of them are frozen
        gradient, norm = (_power(key / others) for key, others in found)
        words += "\n" + MEASURED_OF_KEYS.format(gradient=gradient, norm=norm)
    page.text(left - 0.3, top, words, 8, page.theme.quiet)


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
        panel.set_ylim(
            low / margin, high * margin
        )  # first: where all is 0 (frozen), there is no logarithm of what is drawn
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(_powers_of_ten(low, high))
        panel.yaxis.set_minor_locator(NullLocator())


def _powers_of_ten(low: float, high: float) -> LogLocator:
    """Up to six of them; where there are few, also twice and five times each."""
    return LogLocator(subs=(1.0,) if high > 30 * low else (1.0, 2.0, 5.0), numticks=6)
