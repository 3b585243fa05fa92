"""Pairs of patches that belong together: what is asked for, beside what is found by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from vit.figures.scale import to_bytes
from vit.figures.style import LIGHT, Theme, plain, text_width, titled_figure

TILE, GAP, BETWEEN, ROW, MARGIN = 0.46, 0.05, 0.24, 0.83, 0.2  # inches


@dataclass(frozen=True)
class PairsPanel:
    """A panel of `pairs_figure`.

    Attributes:
        title: whose pairs they are.
        pairs: (rows, n, 2, C, p, q), around 0: row, pair, side; C 1 or 3.
        notes: for each row, what stands under each pair.
    """

    title: str
    pairs: Tensor
    notes: Sequence[Sequence[str]]


def pairs_figure(
    names: Sequence[str],
    panels: Sequence[PairsPanel],
    sides: tuple[str, str],
    title: str,
    subtitle: str,
    theme: Theme = LIGHT,
) -> Figure:
    """Pairs of patches as coloured tiles, in rows: 0 is grey, and one scale holds for all, to where 95% of the values lie.

    Args:
        names: of the rows.
        panels: side by side, with as many rows as there are names.
        sides: what the left and the right tile of a pair are, in a word.
        title, subtitle: the heading.
        theme: the colours.

    Raises:
        ValueError: a panel has another number of rows, or channels that are no colours.
    """
    for panel in panels:
        if panel.pairs.ndim != 6 or len(panel.pairs) != len(names) or panel.pairs.shape[3] not in (1, 3):
            raise ValueError(f"pairs are ({len(names)}, n, 2, 1 or 3, p, q), got {tuple(panel.pairs.shape)}")
    left = max(text_width(name, 8.5) for name in names) / 72 + 2 * MARGIN
    pair = 2 * TILE + GAP + BETWEEN
    widths = [panel.pairs.shape[1] * pair - BETWEEN for panel in panels]
    width = left + sum(widths) + 2.2 * BETWEEN * (len(panels) - 1) + MARGIN
    height = 0.62 + ROW * len(names)
    figure, free = titled_figure(max(width, 6.0), height, title, subtitle, theme)
    width, total = figure.get_size_inches()
    axes = figure.add_axes((0, 0, 1, free))  # in inches, from the upper left
    axes.set_axis_off()
    axes.set_autoscale_on(False)
    axes.set_xlim(0, width)
    axes.set_ylim(free * total, 0)
    most = float(np.quantile(np.concatenate([panel.pairs.abs().flatten() for panel in panels]), 0.95)) or 1.0
    x = left
    for panel, wide in zip(panels, widths, strict=True):
        axes.text(x, 0.1, plain(panel.title), fontsize=9.5, color=theme.ink, va="center", weight="bold")
        pictures = to_bytes(0.5 + 0.5 * panel.pairs.detach().double().cpu().numpy() / most)
        pictures = np.moveaxis(pictures, 3, -1).repeat(3 // panel.pairs.shape[3], -1)  # (rows, n, 2, p, q, 3)
        for row, tiles in enumerate(pictures):
            y = 0.52 + row * ROW
            for number, two in enumerate(tiles):
                for side, tile in enumerate(two):
                    at = x + number * pair + side * (TILE + GAP)
                    axes.imshow(tile, extent=(at, at + TILE, y + TILE, y), aspect="auto", interpolation="nearest")
                    frame = Rectangle((at, y), TILE, TILE, fill=False, edgecolor=theme.quiet, linewidth=0.4, alpha=0.6)
                    axes.add_patch(frame)
                    if row == 0:
                        axes.text(
                            at + TILE / 2, y - 0.08, plain(sides[side]), fontsize=7, color=theme.quiet, ha="center"
                        )
                middle = x + number * pair + TILE + GAP / 2
                axes.text(middle, y + TILE + 0.13, plain(panel.notes[row][number]), fontsize=7.5, color=theme.ink,
                          ha="center", va="center")  # fmt: skip
        x += wide + 2.2 * BETWEEN
    for row, name in enumerate(names):
        place = (left - MARGIN, 0.52 + row * ROW + TILE / 2)
        axes.text(*place, plain(name), fontsize=8.5, color=theme.ink, ha="right", va="center")
    return figure
