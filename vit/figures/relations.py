"""Relations between the same things, side by side: how alike they look, how often they meet, how near their tokens are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vit.figures.style import INK, LIGHT, Theme, bare, plain, text_width, titled_figure

DIVERGING = "PuOr_r"  # below 0 purple, above 0 orange: told apart in the common kinds of colour blindness


@dataclass(frozen=True)
class Relation:
    """A panel of `relations_figure`.

    Attributes:
        title: what the relation is.
        values: (K, K); the diagonal is left out.
        unit: of its bar.
        limit: the value, above and below 0, at which colours end; None for the largest there is.
    """

    title: str
    values: np.ndarray
    unit: str = ""
    limit: float | None = None


def relations_figure(
    names: Sequence[str],
    relations: Sequence[Relation],
    title: str,
    subtitle: str,
    marked: Sequence[tuple[str, str]] = (),
    theme: Theme = LIGHT,
) -> Figure:
    """Square maps of relations, two side by side, all in one order, in which what is high in the first stands together.

    Args:
        names: K of them.
        relations: over the same things.
        title, subtitle: the heading.
        marked: pairs of names whose cells are outlined.
        theme: the colours.
    """
    order = seriated(relations[0].values)
    named = [names[place] for place in order]
    side, across = 4.1, min(len(relations), 2)
    rows = -(-len(relations) // across)
    size = 6.5 if len(names) > 20 else 8
    label = max(text_width(name, size) for name in named) / 72 + 0.12
    cell_width, cell_height = side + label + 0.25, side + label + 0.95
    figure, free = titled_figure(cell_width * across + 0.1, cell_height * rows, title, subtitle, theme)
    width, height = figure.get_size_inches()
    for number, relation in enumerate(relations):
        row, column = divmod(number, across)
        left = column * cell_width + label + 0.1
        bottom = free * height - (row + 1) * cell_height + label + 0.58
        axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
        values = relation.values[np.ix_(order, order)].astype(float)
        np.fill_diagonal(values, np.nan)
        limit = relation.limit or float(np.nanmax(np.abs(values))) or 1.0
        drawn = axes.imshow(values, cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="nearest")
        bare(axes)
        axes.set_facecolor(theme.absent)
        axes.set_xticks(range(len(named)), [plain(name) for name in named], rotation=90, fontsize=size)
        axes.set_yticks(range(len(named)), [plain(name) for name in named], fontsize=size)
        axes.tick_params(length=0, pad=2, colors=theme.ink)
        axes.set_title(plain(relation.title), fontsize=9.5, color=theme.ink, loc="left", pad=5)
        for one, other in marked:
            for x, y in ((named.index(one), named.index(other)), (named.index(other), named.index(one))):
                axes.add_patch(
                    Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=INK, linewidth=1.4, clip_on=False)
                )
        place = (left / width, (bottom - label - 0.12) / height, side / width, 0.07 / height)
        bar = figure.colorbar(drawn, cax=figure.add_axes(place), orientation="horizontal")
        bar.ax.tick_params(labelsize=7, colors=theme.quiet, length=2)
        bar.outline.set_visible(False)
        bar.set_label(plain(relation.unit), fontsize=7.5, color=theme.quiet, labelpad=1)
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
