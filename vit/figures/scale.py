"""From values to colours: one rule for maps, overlays and the bar beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import Colormap, LinearSegmentedColormap, ListedColormap, Normalize
from matplotlib.ticker import LogLocator, MaxNLocator
from PIL import Image
from torch import Tensor

from vit.figures.style import COLOURS

SCALES = ("shared", "row", "log")
REDS = matplotlib.colormaps[COLOURS.colours]
PALETTE = REDS(np.arange(256), bytes=True)[:, :3]
"""The colours of values that begin at 0, from low to high: uint8 (256, 3)."""

CENTRE = 0.3
"""Place of a centre among the colours: what lies above it is more telling, and gets more room."""
AROUND_UNIFORM = LinearSegmentedColormap.from_list(
    "around uniform",
    [
        (0.0, "#a3c1de"),
        (CENTRE, "#ffffff"),
        (CENTRE + 0.12, "#fdd5c0"),
        (CENTRE + 0.3, "#f4845f"),
        (CENTRE + 0.48, "#c9252a"),
        (1.0, "#5f0011"),
    ],
)
"""The colours of shares: blue below uniform, white at uniform, red above it."""
LEAST_TOP = 3.0
"""Multiples of uniform where a scale of shares ends at the earliest: small differences are pale."""
PIXELATED = 64
"""Pixels per side up to which an image is enlarged with square pixels."""
FADED = 0.6
"""Opacity of an image under a map."""


class Scale(Normalize):
    """A linear or logarithmic range of values; values beyond it get the first or last colour.

    Attributes:
        low, top: the values of the first and the last colour.
        centre: the value of the middle colour; None if it follows from the others.
        lowest, highest: of all values.
        log: whether equal factors, not equal steps, are equally far apart in colour.
    """

    def __init__(
        self,
        low: float,
        top: float,
        lowest: float,
        highest: float,
        centre: float | None = None,
        log: bool = False,
    ):
        super().__init__(low, top, clip=True)
        self.low = low
        self.top = top
        self.lowest = lowest
        self.highest = highest
        self.centre = centre
        self.log = log
        # Values, or their logarithms, and the places of their colours
        values = [low, top]
        places = [0.0, 1.0]
        if centre is not None:
            values.insert(1, centre)
            places.insert(1, CENTRE)
        self._values = np.array(values)
        if log:
            self._values = np.log(self._values)
        self._places = np.array(places)

    @property
    def colours(self) -> Colormap:
        """The colours of this scale; a missing value has its own."""
        colours: Colormap = AROUND_UNIFORM
        if self.centre is None:
            colours = REDS
        return colours.with_extremes(bad=COLOURS.absent)

    def __call__(self, value: Any, clip: bool | None = None) -> Any:
        """Return where values lie between the first and the last colour, 0 to 1; nan is masked."""
        # Values beyond the ends get the first or the last colour
        masked = np.ma.masked_invalid(value)
        inside = np.clip(masked.filled(self.low), self.low, self.top)
        if self.log:
            inside = np.log(inside)
        # Between the ends and the centre, colours follow the values, or their logarithms
        places = np.interp(inside, self._values, self._places)
        return np.ma.array(places, mask=masked.mask)

    def inverse(self, value: Any) -> Any:
        """Return the values at places from 0 to 1."""
        values = np.interp(np.asarray(value), self._places, self._values)
        return np.exp(values) if self.log else values

    @classmethod
    def of(cls, values: np.ndarray, log: bool = False, centre: float | None = None) -> Scale:
        """Return the scale for `values` of any shape; nan does not count.

        It starts at 0, or at the lowest value if negative. Outliers do not stretch it: if the
        highest value is more than twice the 99% quantile, it ends there, and the bar says so. A
        logarithmic scale starts at the lowest positive value or at the 0.5% quantile, at most
        four decades below its end. A scale around a centre reaches at least three times that.
        """
        # Masked patches do not count; without values, any scale will do
        present = values[~np.isnan(values)]
        if not present.size:
            present = np.zeros(1)
        lowest = float(present.min())
        highest = float(present.max())

        # The end of the scale
        top = highest
        usual = float(np.quantile(present, 0.99))
        if 0 < 2 * usual < highest:
            top = usual
        if centre is not None:
            top = max(top, LEAST_TOP * centre)

        # Its start
        if log:
            if top <= 0:
                top = 1.0
            low = _logarithmic_start(present, top)
            if centre is not None:
                low = min(low, centre / LEAST_TOP)
        else:
            low = min(lowest, 0.0)
            if top <= low:
                top = low + 1
        return cls(low, top, lowest, highest, centre, log)

    @property
    def over(self) -> bool:
        """Whether a value lies above the end of the bar."""
        return self.highest > self.top

    @property
    def under(self) -> bool:
        """Whether a value lies below its start."""
        return self.lowest < self.low

    def ticks(self, most: int) -> list[float]:
        """Return round values within the scale, up to about `most` of them."""
        locators: list[Any] = [MaxNLocator(max(most - 1, 1), steps=[1, 2, 2.5, 5, 10])]
        if self.log:
            # From dense to sparse: the first that is sparse enough is taken
            steps = ((1, 2, 5), (1, 3), (1,))
            locators = [LogLocator(subs=subs, numticks=99) for subs in steps]
        # Rounding must not lose a tick at an end
        slack = 1e-6 * (self.top - self.low)
        ticks = [self.low, self.top]
        for locator in locators:
            values = np.asarray(locator.tick_values(self.low, self.top), dtype=float)
            inside = values[(values >= self.low - slack) & (values <= self.top + slack)]
            if len(inside) > 1:
                ticks = inside.tolist()
            if len(inside) <= most:
                break
        return ticks


def _logarithmic_start(values: np.ndarray, top: float) -> float:
    """Return where a logarithmic scale that ends at `top` starts."""
    # Without positive values, a decade
    positive = values[values > 0]
    low = top / 10
    if positive.size:
        low = float(positive.min())
        # A few tiny values do not stretch the scale
        usual = float(np.quantile(positive, 0.005))
        if low < usual / 10:
            low = usual
        low = max(low, top / 1e4)
    return low if low < top else top / 10


def overlay_colours(share: bool) -> ListedColormap:
    """Return the colours of a map over an image, transparent at first, then increasingly opaque.

    Args:
        share: whether only shares above uniform are coloured.
    """
    strength = np.linspace(0, 1, 256)
    if share:
        strength = np.clip((strength - CENTRE) / (1 - CENTRE), 0, 1)
    # The palest colours are left out: over an image they would look like a veil
    colours = REDS(0.4 + 0.6 * strength)[:, :3]
    return ListedColormap(np.column_stack([colours, 0.9 * strength]))


def brightness(picture: np.ndarray) -> np.ndarray:
    """(..., 3) from 0 to 1 -> (...): its brightness, by the weights of Rec. 709."""
    return picture @ np.array([0.2126, 0.7152, 0.0722])


def faded(picture: np.ndarray) -> np.ndarray:
    """(..., 3) from 0 to 1 -> (..., 3): grey and pale, for an image under a map."""
    return 1 - FADED + FADED * brightness(picture)[..., None].repeat(3, -1)


def to_bytes(picture: np.ndarray) -> np.ndarray:
    """0 to 1 -> uint8."""
    return (np.clip(picture, 0, 1) * 255).round().astype(np.uint8)


def image_bytes(images: Tensor) -> np.ndarray:
    """Images (B, C, H, W) from 0 to 1, C 1 or 3 -> uint8 (B, H, W, 3)."""
    # A grey image gets three equal channels, a view without a copy
    colours = images.detach().float().cpu().expand(-1, 3, -1, -1).permute(0, 2, 3, 1)
    return to_bytes(colours.nan_to_num().numpy())


def resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 (B, H, W, 3) -> uint8 (B, height, width, 3): `size` is (height, width).

    Small images keep square pixels, large ones are resampled smoothly.
    """
    if max(pixels.shape[1:3]) <= PIXELATED:
        # `enlarged` takes channels first
        return np.moveaxis(enlarged(np.moveaxis(pixels, -1, 1), size), 1, -1)
    height, width = size
    pictures = []
    for picture in pixels:
        image = Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS)
        pictures.append(np.asarray(image))
    return np.stack(pictures)


def enlarged(grids: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """(..., rows, columns) -> (..., H, W), each pixel with the value of its patch."""
    height, width = size
    # The patch of each pixel row, and of each pixel column
    rows = np.arange(height) * grids.shape[-2] // height
    columns = np.arange(width) * grids.shape[-1] // width
    return grids[..., rows[:, None], columns]


def in_multiples_of_uniform(maps: np.ndarray) -> np.ndarray:
    """Divide attention (..., rows, columns) by a uniform share, 1 / number of patches not nan."""
    return maps * (~np.isnan(maps)).sum((-2, -1), keepdims=True)


def short(value: float) -> str:
    """Return a number as it is written beside a bar."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
