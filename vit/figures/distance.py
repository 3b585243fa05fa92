"""How far heads look, and how spread, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from vit.figures.style import Theme, escaped, fitted, printable, text_width, theme_of, titled_figure


def distance_figure(
    distances: Tensor,
    entropies: Tensor,
    title: str,
    subtitle: str,
    *,
    image_diagonal: float | None = None,
    names: Sequence[str] | None = None,
    uniform_distance: float | None = None,
    uniform_entropy: float | None = None,
    dark: bool = False,
) -> Figure:
    """By depth: a dot for each head's mean attention distance, and beside it for its entropy, with the mean of each layer.

    Args:
        distances: (layers, heads), pixels; nan where a layer has fewer heads.
        entropies: (layers, heads), bits; nan likewise.
        title, subtitle: the heading.
        image_diagonal: pixels; a second axis then tells distances as a share of it.
        names: of the layers; None for their numbers from 0.
        uniform_distance, uniform_entropy: what even attention would have, as a line.
        dark: for a dark page.

    Raises:
        ValueError: the shapes differ, or there is no layer.
    """
    if distances.ndim != 2 or distances.shape != entropies.shape or not distances.numel():
        raise ValueError(
            "distances and entropies are both (layers, heads),"
            f" got {tuple(distances.shape)} and {tuple(entropies.shape)}"
        )
    if names is not None and len(names) != len(distances):
        raise ValueError(f"{len(names)} names for {len(distances)} layers")
    theme = theme_of(dark)
    words = _layer_names(len(distances), names)
    below = 0.5 if words is None else 0.62 if not words.slanted else 1.15  # inches, for the names of the layers
    figure, free = titled_figure(10.0, 3.85 + below, title, subtitle, theme)
    total = figure.get_figheight()
    grid = figure.add_gridspec(1, 2, left=0.07, right=0.975, top=free - 0.55 / total, bottom=below / total, wspace=0.36)
    values = [part.detach().double().cpu().numpy() for part in (distances, entropies)]
    far, spread = (figure.add_subplot(grid[0, column]) for column in range(2))
    _by_depth(far, values[0], uniform_distance, "pixels", theme)
    _by_depth(spread, values[1], uniform_entropy, "bits", theme)
    far.set_title("how far: mean distance from the patch that asks", fontsize=9.5, color=theme.ink, loc="left")
    spread.set_title("how spread: entropy of its weights", fontsize=9.5, color=theme.ink, loc="left")
    if image_diagonal is not None:
        whole = image_diagonal
        share = far.secondary_yaxis(
            "right", functions=(lambda y: np.asarray(y) / whole, lambda y: np.asarray(y) * whole)
        )
        share.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        share.set_ylabel("share of the image's diagonal", fontsize=8, color=theme.quiet)
        share.tick_params(labelsize=7.5, colors=theme.quiet)
        share.spines["right"].set_visible(False)
    for axes in (far, spread):
        axes.set_xlabel("layer, from 0" if words is None else "layer", fontsize=8, color=theme.quiet)
        axes.set_xlim(-0.5, len(distances) - 0.5)
        if words is None:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=13, integer=True, min_n_ticks=1))
            axes.set_xlim(-0.5, len(distances) - 0.5)
        elif words.slanted:
            axes.set_xticks(words.places, words.texts, rotation=40, ha="right", rotation_mode="anchor")
        else:
            axes.set_xticks(words.places, words.texts)
    handles, texts = far.get_legend_handles_labels()
    figure.legend(
        handles, texts, loc="upper left", bbox_to_anchor=(0.062, free + 0.03 / total), ncols=3, fontsize=8, frameon=False,
        labelcolor=theme.quiet, handletextpad=0.6, columnspacing=2.2, borderaxespad=0,
    )  # fmt: skip
    return figure


class _Names(NamedTuple):
    places: list[int]
    texts: list[str]
    slanted: bool


def _layer_names(layers: int, names: Sequence[str] | None) -> _Names | None:
    """Names for at most 13 of the layers, cut where they are long; slanted where they do not fit side by side."""
    if names is None:
        return None
    places = list(range(0, layers, -(-layers // 13)))
    room = 3.6 * 72 / len(places)  # points for each
    slanted = any(text_width(printable(names[layer]), 7.5) > room for layer in places)
    return _Names(places, [escaped(fitted(names[layer], 72 if slanted else room, 7.5)) for layer in places], slanted)


def _by_depth(axes: Axes, values: np.ndarray, even: float | None, unit: str, theme: Theme) -> None:
    layers, heads = values.shape
    x = np.arange(layers)
    there = ~np.isnan(values)
    count = there.sum(1)
    mean = np.where(count > 0, np.nansum(values, 1) / np.maximum(count, 1), np.nan)
    if even is not None:
        axes.axhline(even, color=theme.quiet, linewidth=1.2, linestyle=(0, (4, 3)), label="even attention", zorder=1)
    axes.plot(x, mean, color=theme.line, linewidth=1.8, label="mean of the heads", zorder=2)
    axes.plot(
        x.repeat(heads), values.ravel(), color=theme.dots, linestyle="none", marker="o", markersize=5,
        markeredgecolor=theme.paper, markeredgewidth=0.6, alpha=0.85, label="a head", zorder=3,
    )  # fmt: skip
    highest = max([even or 0.0, *values[there].tolist()])
    axes.set_ylim(0, highest * 1.08 if highest > 0 else 1)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axes.set_ylabel(unit, fontsize=8, color=theme.quiet)
    axes.set_facecolor(theme.paper)
    axes.tick_params(labelsize=7.5, colors=theme.quiet)
    axes.grid(alpha=0.25, linewidth=0.6, color=theme.quiet)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.quiet)
