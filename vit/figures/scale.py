"""From values to colours: one rule for maps, overlays and the bar beside them."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, Normalize, TwoSlopeNorm
from matplotlib.ticker import Locator, LogLocator, MaxNLocator

from vit.figures.style import COLOURS

REDS = matplotlib.colormaps[COLOURS.colours]
PALETTE = REDS(np.arange(256), bytes=True)[:, :3]
"""The colours of values that begin at 0, from low to high: uint8 (256, 3)."""
AROUND_UNIFORM = LinearSegmentedColormap.from_list(
    "around uniform",
    [
        (0.0, "#a3c1de"),
        (0.5, "#ffffff"),
        (0.59, "#fdd5c0"),
        (0.71, "#f4845f"),
        (0.84, "#c9252a"),
        (1.0, "#5f0011"),
    ],
    N=512,
)
"""The colours of attention weights: blue below uniform, white at uniform, red above it."""
LEAST_TOP = 3.0
"""Multiples of uniform where a scale of shares ends at the earliest: small differences are pale."""


class Scale:
    """The colours of values; those beyond its ends get the first or the last colour.

    It starts at 0, or at the lowest value if negative. Outliers do not stretch it: if the highest
    value is more than twice the 99% quantile, it ends there. A logarithmic scale starts at the 0.5%
    quantile, at most four decades below its end. A scale of shares reaches at least three times
    uniform, and has white there.

    Args:
        values: of any shape; nan does not count.
        share: whether they are shares, in multiples of uniform.
        log: whether equal factors, not equal steps, are equally far apart in colour.
        overlay: whether the colours lie over an image: the higher, the more opaque, and for shares
            only above uniform.

    Attributes:
        low, top: the values of the first and the last colour.
        begin: where its bar begins between them, 0 to 1.
        values: (n,), without nan.
    """

    def __init__(self, values: np.ndarray, share: bool, log: bool = False, overlay: bool = False):
        self.values = values[~np.isnan(values)]
        self.log = log
        self.share = share
        # 0 is on every linear scale
        on_scale = np.append(self.values, 0.0)
        top = on_scale.max()
        usual = np.quantile(on_scale, 0.99)
        if 0 < 2 * usual < top:
            top = usual
        if share:
            top = max(top, LEAST_TOP)
        low = on_scale.min()
        if top == low or (log and top == 0):
            top = low + 1.0
        if log:
            start = np.quantile([*on_scale[on_scale > 0], top], 0.005)
            low = min(max(start, top / 1e4), 1 / LEAST_TOP if share else top / 10)
        self.low = low
        self.top = top

        ends = self._scaled([low, top])
        self.norm: Any = Normalize(*ends)
        colours = REDS
        if share:
            self.norm = TwoSlopeNorm(float(not log), *ends)
            colours = AROUND_UNIFORM
        # The palest colours are left out of an overlay: they would look like a veil
        self.begin = 0.5 if overlay and share else 0.0
        if overlay:
            strength = np.linspace(-1.0 if share else 0.0, 1.0, 256).clip(0)
            opaque = REDS(0.4 + 0.6 * strength)[:, :3]
            colours = ListedColormap(np.column_stack([opaque, 0.9 * strength]))
        self.colours = colours.with_extremes(bad=COLOURS.absent)

    def _scaled(self, values: Any) -> Any:
        return np.log10(values) if self.log else values

    def places(self, values: Any) -> Any:
        """Return where values lie between the first and the last colour, 0 to 1; nan stays nan."""
        return self.norm(self._scaled(np.clip(values, self.low, self.top)))

    def paint(self, values: np.ndarray) -> np.ndarray:
        """(...) -> (..., 4): red, green, blue and opacity from 0 to 1; nan is opaque."""
        return self.colours(self.places(values))

    def draw_bar(self, axes: Axes, inches: float) -> None:
        """Draw the colours and their numbers in axes of this height."""
        # Over an image colours are opaque to some degree; the bar shows them over white
        rgba = self.colours(np.linspace(0, 1, 512))
        over_white = ListedColormap(1 - rgba[:, 3:] * (1 - rgba[:, :3]))
        bar = axes.figure.colorbar(ScalarMappable(self.norm, over_white), cax=axes)
        bar.outline.set(linewidth=0.5, edgecolor=COLOURS.stroke)

        # Numbers: the top, uniform, and round ones, where they touch no other
        locator: Locator = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])
        if self.log:
            locator = LogLocator(subs=[1, 3])
        candidates = [self.top, *locator.tick_values(self.low, self.top)]
        if self.share:
            candidates.insert(1, 1.0)
        ticks: dict[float, str] = {}
        for value in candidates:
            place = self.places(value)
            is_there = self.low <= value <= self.top and place >= self.begin
            if is_there and all(abs(place - tick) * inches > 0.16 for tick in ticks):
                ticks[place] = short(value)
                if self.share and value == 1:
                    ticks[place] += " = uniform"
        bar.set_ticks(self.norm.inverse(list(ticks)), labels=list(ticks.values()))

        axes.set_ylim(*self.norm.inverse([self.begin, 1.0]))
        axes.tick_params(labelsize=7, width=0.6, length=2.5)


def short(value: float) -> str:
    """Return a number as it is written beside a bar."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
