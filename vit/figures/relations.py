"""Relations between the same things, side by side: how alike they look, how often they meet, how near their tokens are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vit.figures.measures import Panel
from vit.figures.style import LIGHT, bare, printable, styled, text_width, theme, titled_figure

DIVERGING = "PuOr_r"  # below 0 purple, above 0 orange: told apart in the common kinds of colour blindness


@styled
def relations_figure(
    names: Sequence[str],
    relations: Sequence[Panel],
    title: str,
    subtitle: str,
    marked: Sequence[tuple[str, str]] = (),
    *,
    dark: bool = False,
) -> Figure:
    """Square maps of relations, two side by side, all in one order, in which what is high in the first stands together.

    Args:
        names: K of them.
        relations: over the same things. Values: (K, K), without the diagonal; limits: at which colours end.
        title, subtitle: the heading.
        marked: pairs of names whose cells are outlined.
        dark: for a dark page.
    """
    order = seriated(relations[0].values)
    named = [printable(names[place]) for place in order]
    across = min(len(relations), 2)
    rows = -(-len(relations) // across)
    size = 6.5 if len(names) > 20 else 8
    label = max(text_width(name, size) for name in named) / 72
    figure = titled_figure((4.35 + label) * across, (4.95 + label) * rows, title, subtitle)
    every = figure.subplots(rows, across, squeeze=False).flat
    for axes in every[len(relations) :]:
        axes.set_visible(False)
    for axes, relation in zip(every, relations, strict=False):
        values = relation.values[np.ix_(order, order)].astype(float)
        np.fill_diagonal(values, np.nan)
        limit = float(np.nanmax(np.abs(values))) or 1.0
        low, high = relation.limits or (-limit, limit)
        bare(axes)
        drawn = axes.imshow(values, cmap=DIVERGING, vmin=low, vmax=high)
        axes.set(frame_on=True, facecolor=theme().absent)
        axes.spines[:].set_visible(False)
        axes.set_xticks(range(len(named)), named, rotation=90, fontsize=size)
        axes.set_yticks(range(len(named)), named, fontsize=size)
        axes.tick_params(length=0, pad=2, labelcolor=theme().ink)
        axes.set_title(printable(relation.title))
        for one, other in marked:
            for x, y in ((named.index(one), named.index(other)), (named.index(other), named.index(one))):
                axes.add_patch(
                    Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=LIGHT.ink, linewidth=1.4, clip_on=False)
                )
        bar = figure.colorbar(drawn, ax=axes, orientation="horizontal", aspect=55, pad=0.02)
        bar.ax.tick_params(labelsize=7, length=2)
        bar.outline.set_visible(False)
        bar.set_label(printable(relation.unit), fontsize=7.5, labelpad=1)
    return figure


def seriated(values: np.ndarray) -> list[int]:
    """An order of K things in which those of high values (K, K) stand near each other.

    Always the two groups that are nearest on average are joined (average linkage, Sokal and Michener 1958), laid end to end
    so that their nearest ends meet.
    """
    groups = [[place] for place in range(len(values))]
    while len(groups) > 1:
        pairs = [(i, j) for i in range(len(groups)) for j in range(i)]
        i, j = max(pairs, key=lambda pair: float(values[np.ix_(groups[pair[0]], groups[pair[1]])].mean()))
        one, other = groups.pop(i), groups.pop(j)
        ways = [(a, b) for a in (one, one[::-1]) for b in (other, other[::-1])]
        first, second = max(ways, key=lambda way: float(values[way[0][-1], way[1][0]]))
        groups.append(first + second)
    return groups[0]
