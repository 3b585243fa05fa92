"""From values to colours, and what the colours mean: one rule for maps, for overlays and for the bar beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.ticker import MaxNLocator

from vit.figures.style import COLOURS, Theme

SCALES = ("shared", "row", "log")
OPACITY = 0.5  # of a map over its image
PALETTE = (matplotlib.colormaps[COLOURS](np.arange(256))[:, :3] * 255).round().astype(np.uint8)  # (256, 3)


@dataclass(frozen=True)
class Scale:
    """A range of values and the colours it is drawn in, linear or logarithmic.

    Attributes:
        low, top: drawn in the first and the last colour, as is what lies beyond them.
        lowest, highest: of all values.
        log: whether equal factors, not equal steps, are equally far apart in colour.
    """

    low: float
    top: float
    lowest: float
    highest: float
    log: bool = False

    @classmethod
    def of(cls, values: np.ndarray, log: bool = False) -> Scale:
        """The scale for all of `values`, of any shape; nan does not count.

        It starts at 0, or at the lowest value where that is negative. A few outliers do not stretch it: where the
        highest value is far above 99.5% of all, it ends at these, and the bar says so. A logarithmic one starts likewise at
        the lowest positive value, or above the lowest 0.5%, and at most four decades below its end.
        """
        present = values[~np.isnan(values)]
        lowest, highest = (float(present.min()), float(present.max())) if present.size else (0.0, 0.0)
        usual = float(np.quantile(present, 0.995)) if present.size else 0.0
        top = highest if highest <= 1.5 * usual or usual <= 0 else usual
        if not log:
            low = min(lowest, 0.0)
            return cls(low, top if top > low else low + 1, lowest, highest)
        top = top if top > 0 else 1.0
        positive = present[present > 0]
        low = top / 10
        if positive.size:
            usual = float(np.quantile(positive, 0.005))
            low = max(float(positive.min()) if positive.min() >= usual / 10 else usual, top / 1e4)
        return cls(low if low < top else top / 10, top, lowest, highest, log=True)

    @property
    def over(self) -> bool:
        """Whether some value lies above the end of the bar."""
        return self.highest > self.top

    @property
    def under(self) -> bool:
        """Whether some value lies below its start."""
        return self.lowest < self.low

    def place(self, values: np.ndarray) -> np.ndarray:
        """Where values lie between the first and the last colour, 0 to 1; nan stays."""
        if self.log:
            ratio = np.log(np.maximum(values, self.low) / self.low) / np.log(self.top / self.low)
        else:
            ratio = (values - self.low) / (self.top - self.low)
        return np.clip(ratio, 0, 1)

    def colours(self, values: np.ndarray, theme: Theme) -> np.ndarray:
        """Values of any shape -> colours (..., 3), uint8; nan in the colour of what is absent."""
        absent = np.isnan(values)
        index = (np.where(absent, 0, self.place(values)) * 255).round().astype(np.uint8)
        return np.where(absent[..., None], to_bytes(np.array(theme.absent)), PALETTE[index])

    def ticks(self, most: int) -> list[float]:
        """Round values within the scale, up to about `most` of them."""
        if not self.log:
            found = np.asarray(MaxNLocator(max(most - 1, 1), steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.top))
        else:
            decades = range(int(np.floor(np.log10(self.low))), int(np.ceil(np.log10(self.top))) + 1)
            for steps in ((1, 2, 5), (1, 3), (1,)):
                found = np.array([step * 10.0**decade for decade in decades for step in steps])
                if self.within(found).sum() <= most:
                    break
        inside = found[self.within(found)]
        return [float(value) for value in (inside if len(inside) > 1 else (self.low, self.top))]

    def within(self, values: np.ndarray) -> np.ndarray:
        """Which values lie on the bar, but for rounding."""
        slack = 1e-6 * (self.top - self.low)
        return (values >= self.low - slack) & (values <= self.top + slack)

    def strip(self, height: int, width: int = 1) -> np.ndarray:
        """The bar: (height, width, 3) uint8, the highest value at the top."""
        index = np.linspace(255, 0, height).round().astype(int)
        return np.broadcast_to(PALETTE[index][:, None], (height, width, 3))

    def blended_strip(self, height: int, width: int) -> np.ndarray:
        """The bar of an overlay: every colour that `blended` makes, the image from black at the left to white at the right."""
        return blended(self.strip(height, width), np.linspace(0, 1, width)[None, :].repeat(height, 0))


def blended(colours: np.ndarray, grey: np.ndarray) -> np.ndarray:
    """A map's colours (..., 3), uint8, at a fixed opacity over an image's brightness (...), 0 to 1 -> (..., 3), uint8."""
    return to_bytes(OPACITY * colours / 255.0 + (1 - OPACITY) * grey[..., None])


def brightness(picture: np.ndarray) -> np.ndarray:
    """(..., 3) from 0 to 1 -> (...): how bright it looks, by the weights of Rec. 709."""
    return picture @ np.array([0.2126, 0.7152, 0.0722])


def to_bytes(picture: np.ndarray) -> np.ndarray:
    """0 to 1 -> uint8."""
    return (np.clip(picture, 0, 1) * 255).round().astype(np.uint8)


def in_multiples_of_even(maps: np.ndarray) -> np.ndarray:
    """Attention (..., rows, columns) over what each patch that is there would get of a sum of 1 spread evenly over them."""
    return maps * (~np.isnan(maps)).sum((-2, -1), keepdims=True)


def short(values: Sequence[float]) -> list[str]:
    """Numbers as one writes them beside a bar."""
    return [f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}" for value in values]
