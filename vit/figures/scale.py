"""From values to colours: one rule for maps, overlays and the bar beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import Normalize
from matplotlib.ticker import Locator, LogLocator, MaxNLocator
from PIL import Image
from torch import Tensor

from vit.figures.style import COLOURS

SCALES = ("shared", "row", "log")
PALETTE = matplotlib.colormaps[COLOURS.colours](np.arange(256), bytes=True)[:, :3]
"""The colours of maps, from low to high: uint8 (256, 3)."""


class Scale(Normalize):
    """A linear or logarithmic range of values and their colours; values beyond it get the first or last colour.

    Attributes:
        low, top: the values of the first and the last colour.
        lowest, highest: of all values.
        log: whether equal factors, not equal steps, are equally far apart in colour.
    """

    def __init__(self, low: float, top: float, lowest: float, highest: float, log: bool = False):
        super().__init__(low, top, clip=True)
        self.low, self.top = low, top
        self.lowest, self.highest, self.log = lowest, highest, log

    def __call__(self, value: Any, clip: bool | None = None) -> Any:
        """Return where values lie between the first and the last colour, 0 to 1; nan is masked."""
        inside = np.clip(np.ma.masked_invalid(value), self.low, self.top)
        if self.log:
            return np.ma.log(inside / self.low) / np.log(self.top / self.low)
        return (inside - self.low) / (self.top - self.low)

    def inverse(self, value: Any) -> Any:
        """Return the values at places from 0 to 1."""
        if self.log:
            return self.low * (self.top / self.low) ** np.asarray(value)
        return self.low + np.asarray(value) * (self.top - self.low)

    @classmethod
    def of(cls, values: np.ndarray, log: bool = False) -> Scale:
        """Return the scale for `values` of any shape; nan does not count.

        It starts at 0, or at the lowest value if negative. A few outliers do not stretch it: if the highest is more than twice
        the 98% quantile, it ends there, and the bar says so. Likewise, a logarithmic scale starts at the lowest positive value
        or at the 0.5% quantile, and at most four decades below its end.
        """
        present = values[~np.isnan(values)]
        lowest, highest = (
            (float(present.min()), float(present.max())) if present.size else (0.0, 0.0)
        )
        usual = float(np.quantile(present, 0.98)) if present.size else 0.0
        top = highest if highest <= 2 * usual or usual <= 0 else usual
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

    def ticks(self, most: int) -> list[float]:
        """Return round values within the scale, up to about `most` of them."""
        if self.log:
            ways: list[Locator] = [
                LogLocator(subs=subs, numticks=99) for subs in ((1, 2, 5), (1, 3), (1,))
            ]
        else:
            ways = [MaxNLocator(max(most - 1, 1), steps=[1, 2, 2.5, 5, 10])]
        slack = 1e-6 * (self.top - self.low)
        found = [self.low, self.top]
        for locator in ways:
            values = locator.tick_values(self.low, self.top)
            inside = [
                float(value) for value in values if self.low - slack <= value <= self.top + slack
            ]
            if len(inside) > 1:
                found = inside
            if len(inside) <= most:
                break
        return found


def brightness(picture: np.ndarray) -> np.ndarray:
    """(..., 3) from 0 to 1 -> (...): its brightness, by the weights of Rec. 709."""
    return picture @ np.array([0.2126, 0.7152, 0.0722])


def to_bytes(picture: np.ndarray) -> np.ndarray:
    """0 to 1 -> uint8."""
    return (np.clip(picture, 0, 1) * 255).round().astype(np.uint8)


def image_bytes(images: Tensor) -> np.ndarray:
    """Images (B, C, H, W) from 0 to 1, C 1 or 3 -> uint8 (B, H, W, 3)."""
    colours = images.detach().float().cpu().expand(-1, 3, -1, -1).permute(0, 2, 3, 1)
    return to_bytes(colours.nan_to_num().numpy())


def resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 (B, H, W, 3) -> uint8 (B, height, width, 3), smoothly: `size` is (width, height)."""
    return np.stack(
        [np.asarray(Image.fromarray(one).resize(size, Image.Resampling.LANCZOS)) for one in pixels]
    )


def enlarged(grids: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """(..., rows, columns) -> (..., H, W), each pixel with the value of its patch."""
    rows, columns = (
        np.arange(new) * old // new for new, old in zip(size, grids.shape[-2:], strict=False)
    )
    return grids[..., rows[:, None], columns]


def in_multiples_of_even(maps: np.ndarray) -> np.ndarray:
    """Divide attention (..., rows, columns) by an even share: 1 spread over all patches that are not nan."""
    return maps * (~np.isnan(maps)).sum((-2, -1), keepdims=True)


def short(value: float) -> str:
    """Return a number as it is written beside a bar."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
