"""How a whole is made of parts, as stacked bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vit.figures.measures import dress
from vit.figures.style import (
    BLUE,
    GREEN,
    LIGHT,
    ORANGE,
    PURPLE,
    Theme,
    escaped,
    plain,
    text_width,
    titled_figure,
    wrapped,
)

FILLS = (
    (BLUE, ""), (ORANGE, "///"), (GREEN, "..."), (PURPLE, "xxx"), ("#9aa3ad", ""), ("#5b6470", "\\\\\\"),
)  # fmt: skip
"""Colour and hatching of the first part, the second ...: told apart in black and white too."""


@dataclass(frozen=True)
class SharesPanel:
    """A panel of `shares_figure`.

    Attributes:
        title: what is divided.
        parts: names of the parts, six at most.
        rows: for each bar its name, and the share of each part; they sum to 1.
    """

    title: str
    parts: Sequence[str]
    rows: Mapping[str, Sequence[float]]


def shares_figure(panels: Sequence[SharesPanel], title: str, subtitle: str, theme: Theme = LIGHT) -> Figure:
    """Bars from 0 to 100%, divided into parts; a part below 0, which works against the others, lies left of 0.

    Args:
        panels: side by side, each with its own rows.
        title, subtitle: the heading.
        theme: the colours.

    Raises:
        ValueError: a row has another number of parts, or does not sum to 1.
    """
    for panel in panels:
        for name, shares in panel.rows.items():
            if len(shares) != len(panel.parts) or abs(sum(shares) - 1) > 1e-3:
                raise ValueError(f"{name!r} needs {len(panel.parts)} shares that sum to 1, got {list(shares)}")
    lefts = [max(text_width(name, 8) for name in panel.rows) / 72 + 0.3 for panel in panels]  # inches
    wide = 3.1
    titles = [wrapped(panel.title, (wide + 0.1) * 72, 9) for panel in panels]
    above = 0.12 + 0.16 * max(map(len, titles))
    keys = 0.17 * max(-(-len(panel.parts) // 2) for panel in panels) + 0.1
    body = 0.24 * max(len(panel.rows) for panel in panels)
    content = above + body + 0.32 + keys
    figure, free = titled_figure(sum(lefts) + (wide + 0.2) * len(panels), content, title, subtitle, theme)
    width, height = figure.get_size_inches()
    x, top = 0.0, free * height - above
    for panel, left, lines in zip(panels, lefts, titles, strict=True):
        tall = 0.24 * len(panel.rows)
        axes = figure.add_axes(((x + left) / width, (top - tall) / height, wide / width, tall / height))
        dress(axes, theme)
        axes.set_title(escaped("\n".join(lines)), fontsize=9, color=theme.ink, loc="left")
        values = np.array(list(panel.rows.values()))  # (rows, parts)
        rows = np.arange(len(values))[::-1]
        for part, (name, (colour, hatch)) in enumerate(zip(panel.parts, FILLS, strict=False)):
            one = values[:, part]
            before = np.where(one > 0, values[:, :part].clip(min=0).sum(1), values[:, :part].clip(max=0).sum(1))
            axes.barh(rows, one, 0.74, left=before, color=colour, hatch=hatch, edgecolor=theme.paper, linewidth=0.5,
                      label=plain(name))  # fmt: skip
        axes.axvline(0, color=theme.ink, linewidth=0.8)
        axes.set_xlim(min(float(values.clip(max=0).sum(1).min()) * 1.05, 0), float(values.clip(min=0).sum(1).max()))
        axes.set_ylim(-0.5, len(values) - 0.5)
        axes.set_yticks(rows, [plain(name) for name in panel.rows])
        axes.tick_params(axis="y", length=0, labelsize=8, colors=theme.ink)
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.legend(
            loc="upper left", bbox_to_anchor=(-0.02, -0.24 / tall), fontsize=7.5, frameon=False, ncols=2,
            labelcolor=theme.ink, borderaxespad=0, columnspacing=1.2, handlelength=1.6,
        )  # fmt: skip
        x += left + wide + 0.2
    return figure
