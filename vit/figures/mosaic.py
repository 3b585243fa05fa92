"""Tiles in rows, in one array: images, and maps of their patches beside them.

Every tile has a whole number of dots per patch, so that all patches are equally large
and have sharp edges; the size of the sheet follows from the tiles. The array is drawn once, and
words are laid over it. All lengths are in dots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor

from vit.figures.scale import Scale
from vit.figures.style import (
    COLOURS,
    DPI,
    canvas_figure,
    fitted,
    legend_columns,
    text_width,
    wrapped,
)

# Around all tiles, between them, between groups of them, for a colour bar, of a line of text
MARGIN = 22
GAP = 10
APART = 26
BAR = 150
LINE = 22
NARROWEST = 840
"""Width of a sheet of few tiles, which leaves room for its title."""
SMALL = 7.5
"""Of words, in points."""
MARK = "#ffd400"
"""Of the outline of a query patch."""


class Tile(NamedTuple):
    """A tile of a sheet.

    Attributes:
        pixels: uint8 (height, width, 3), as large as all others.
        above: its name.
        below: text, in lines.
    """

    pixels: np.ndarray
    above: str = ""
    below: str = ""


def mosaic(
    rows: Sequence[Sequence[Tile | None]],
    title: str,
    subtitle: str,
    *,
    names: Sequence[str] = (),
    group: int = 0,
    scales: Sequence[Scale] = (),
    unit: str = "",
    legend: Mapping[str, Any] = {},
    notes: Sequence[str] = (),
) -> Figure:
    """Draw tiles in rows, in one array.

    Args:
        rows: of tiles; None leaves a place free.
        title, subtitle: the heading; none without a title.
        names: at the left of the rows.
        group: tiles side by side that belong together; 0 for all.
        scales: a colour bar for all rows, or one for each, or for each two, ....
        unit: written above the bar.
        legend: words -> what matplotlib's legend shows.
        notes: sentences for the foot of the sheet.
    """
    # Columns
    high, wide = next(tile for tile in rows[0] if tile).pixels.shape[:2]
    columns = np.arange(max(map(len, rows)))
    left = MARGIN
    if names:
        left += 2 * GAP + round(max(text_width(name, 8.5) for name in names) / 72 * DPI)
    lefts = left + columns * (wide + GAP) + columns // (group or len(columns)) * APART
    right = int(lefts[-1]) + wide
    width = max(right + (BAR if scales else MARGIN), NARROWEST)

    # Each row is a strip of paper, with the lines of words that its tiles need
    strips = []
    words: list[tuple[float, float, list[str], dict[str, Any]]] = []
    tops: list[int] = []
    foot = 0
    under = {"va": "top", "color": COLOURS.quiet}
    for row in rows:
        tiles = [(x, tile) for x, tile in zip(lefts.tolist(), row, strict=False) if tile]
        top = 6 + LINE * max(len(caption(tile.above, wide)) for _, tile in tiles)
        below = LINE * max(len(caption(tile.below, wide)) for _, tile in tiles)
        strip = blank(top + high + below + 8, width)
        for x, tile in tiles:
            # White patches (uniform attention) need an edge
            strip[top - 1 : top + high + 1, x - 1 : x + wide + 1] = as_bytes(COLOURS.absent)
            strip[top : top + high, x : x + wide] = tile.pixels
            middle = x + wide / 2
            words.append((middle, foot + top - 5, caption(tile.above, wide), {}))
            words.append((middle, foot + top + high + 4, caption(tile.below, wide), under))
        tops.append(foot + top)
        foot += len(strip)
        strips.append(strip)

    # Legend and notes take the width of the sheet
    room = (width - 2 * MARGIN) / DPI
    in_line = legend_columns(legend, room) if legend else 1
    notes_top = foot + 8 + math.ceil(len(legend) / in_line) * 26
    lines = [*chain(*(wrapped(note, room * 72, SMALL) for note in notes))]
    strips.append(blank(notes_top - foot + len(lines) * LINE + 12, width))

    # The array, and words over it
    figure, axes = canvas_figure(np.concatenate(strips), title, subtitle)
    for x, y, text, look in words:
        axes.text(x, y, "\n".join(text), ha="center", linespacing=1.1, fontsize=SMALL, **look)
    for top, name in zip(tops, names, strict=False):
        axes.text(MARGIN, top + high / 2, name, fontsize=8.5, va="center")
    axes.text(MARGIN, notes_top, "\n".join(lines), linespacing=1.3, fontsize=SMALL, **under)
    above_bar = fitted(unit, (BAR - 21) / DPI * 72, SMALL)
    axes.text(right + 18, tops[0] - 14, above_bar, fontsize=SMALL, color=COLOURS.quiet)

    # A bar beside the rows of its tiles, within about 5 inches: a longer one is no easier to read
    for scale, its_tops in zip(scales, np.array_split(tops, len(scales) or 1), strict=False):
        length = min(its_tops[-1] + high - its_tops[0], max(high, 720))
        place = (right + 18, its_tops[0], 18, length)
        scale.draw_bar(axes.inset_axes(place, transform=axes.transData), length / DPI)
    if legend:
        axes.legend(
            legend.values(),
            legend,
            loc="upper left",
            ncols=in_line,
            handlelength=1.1,
            handleheight=1.1,
            bbox_to_anchor=(MARGIN, foot + 12),
            bbox_transform=axes.transData,
            borderaxespad=0,
            borderpad=0,
            columnspacing=1.6,
            labelcolor=COLOURS.quiet,
        )
    return figure


def caption(text: str, dots: int) -> list[str]:
    """Return text in up to two lines a line that fit so many dots."""
    room = dots / DPI * 72
    lines = []
    for part in text.splitlines():
        first, *further = wrapped(part, room, SMALL) or [""]
        lines.append(first)
        if further:
            lines.append(fitted(" ".join(further), room, SMALL))
    return lines


def with_size(title: str, size: Sequence[int]) -> str:
    """Return a title with the size of the images, (H, W) pixels; "" stays empty."""
    return f"{title} ({size[0]} x {size[1]} pixels)" if title else ""


# --- Pixels --------------------------------------------------------------------------------------


def blank(height: int, width: int) -> np.ndarray:
    """Return white paper: uint8 (height, width, 3)."""
    return np.full((height, width, 3), 255, dtype=np.uint8)


def to_bytes(picture: Any) -> np.ndarray:
    """0 to 1 -> uint8."""
    return (np.clip(picture, 0, 1) * 255).round().astype(np.uint8)


def as_bytes(colour: Any) -> np.ndarray:
    """Return a colour of matplotlib as uint8 (3,)."""
    return to_bytes(to_rgb(colour))


def image_bytes(images: Tensor) -> np.ndarray:
    """Images (B, C, H, W) from 0 to 1, C 1 or 3 -> uint8 (B, H, W, 3)."""
    # A grey image gets three equal channels, a view without a copy
    colours = images.detach().float().cpu().expand(-1, 3, -1, -1).permute(0, 2, 3, 1)
    return to_bytes(colours.nan_to_num().numpy())


def tile_size(size: Sequence[int], side: float) -> tuple[int, int]:
    """Return the (height, width) in dots of a tile for images of (H, W) pixels, about `side` wide.

    A small image gets a whole number of dots per pixel. A very wide one is up to twice as wide, a
    tall one up to three times as high.
    """
    height, width = size
    scale = side / max(min(width, 2 * height), height / 3)
    if scale > 1:
        scale = round(scale)
    return max(round(scale * height), 1), max(round(scale * width), 1)


def resized(pixels: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """uint8 (B, H, W, 3) -> uint8 (B, height, width, 3): `size` is (height, width).

    Pixels stay squares if each becomes a whole number of dots; else they are resampled smoothly.
    """
    height, width = size
    is_whole = height % pixels.shape[1] == 0 and width % pixels.shape[2] == 0
    method = Image.Resampling.NEAREST if is_whole else Image.Resampling.LANCZOS
    pictures = [Image.fromarray(picture).resize((width, height), method) for picture in pixels]
    return np.stack([np.asarray(picture) for picture in pictures])


def outlined(picture: np.ndarray, patch: ArrayLike, size: ArrayLike) -> np.ndarray:
    """Return an image, uint8 (height, width, 3), with a patch (row, column) outlined.

    The outline has dark rims, since it has to show on every colour.

    Args:
        size: (height, width) of a patch.
    """
    # At the edge of the image the outline moves inwards
    corner = np.multiply(patch, size)
    top, left = np.maximum(corner, 3)
    bottom, right = np.minimum(corner + size, np.array(picture.shape[:2]) - 3)
    marked = picture.copy()
    for reach, colour in ((3, COLOURS.ink), (2, MARK), (-1, COLOURS.ink)):
        marked[top - reach : bottom + reach, left - reach : right + reach] = as_bytes(colour)
    inside = slice(top + 2, bottom - 2), slice(left + 2, right - 2)
    marked[inside] = picture[inside]
    return marked
