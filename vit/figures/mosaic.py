"""Pictures in rows, in one array: images, and maps of their patches beside them.

Every picture is a tile of the same size, a whole number of dots per patch, so that all patches are
equally large and have sharp edges; the size of the sheet follows from them. Marks are painted into
the array, which is drawn once; words are laid over it. All lengths are in dots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from vit.errors import UserError
from vit.figures.scale import Scale
from vit.figures.style import (
    COLOURS,
    DPI,
    canvas_figure,
    fitted,
    legend_columns,
    printable,
    text_width,
    wrapped,
)

MOST_PICTURES = 480
"""Pictures on one legible sheet."""
MOST_A_LINE = 13
"""Maps side by side: the mean and twelve heads."""

# The side of a square tile; what a line of tiles, and all lines, grow to fill; the widest line
SMALLEST = 135
LARGEST = 360
FILLED = 900
HIGHEST = 1500
WIDEST = 2070
# Around all tiles, between them, between groups of them, for a colour bar, of a line of text
MARGIN = 22
GAP = 10
APART = 26
BAR = 150
LINE = 22
NARROWEST = 840

SMALL = 7.5
"""Of words, in points."""
MARK = "#ffd400"
"""Of the outline of a query patch."""


class Tile(NamedTuple):
    """A picture of a sheet.

    Attributes:
        picture: uint8 (height, width, 3), as large as all others.
        above: its name, cut to its width.
        below: text, in lines.
        marked: (top, left, bottom, right) of a patch to outline, if any.
    """

    picture: np.ndarray
    above: str = ""
    below: str = ""
    marked: Sequence[int] = ()


EMPTY = Tile(np.empty((0, 0, 3), np.uint8))
"""Leaves a place on the sheet free."""


class Sheet:
    """How images and their maps stand on a sheet, and how many dots a patch has.

    Tiles grow until together they are about 6 inches wide or 10 high; many images make the sheet
    higher. Images with one or two maps may stand side by side.

    Args:
        images: (B, C, H, W) from 0 to 1, C 1 or 3.
        grid: (rows, columns) of patches.
        maps: of each image.
        lead: pictures of each image before its maps.
        beside: whether images may stand side by side.

    Attributes:
        patch: (height, width) of a patch in dots.
        pictures: uint8 (B, height, width, 3), the images as tiles.
        across: images side by side.
    """

    def __init__(
        self,
        images: Tensor,
        grid: Sequence[int],
        maps: int,
        lead: int = 1,
        beside: bool = True,
    ):
        count = len(images) * (lead + maps)
        if count > MOST_PICTURES:
            raise UserError(
                f"{count} pictures do not fit one legible figure, which holds {MOST_PICTURES}:"
                " leave out images or maps"
            )
        # Maps in lines of equal length, as many as fit if they are small
        height, width = self.size = images.shape[-2:]
        stretch = math.sqrt(width / height)
        fit = int(WIDEST / (SMALLEST * stretch + GAP)) - lead
        self.lead = lead
        self.lines = math.ceil(maps / min(MOST_A_LINE, max(fit, 1)))
        self.a_line = math.ceil(maps / self.lines)
        # Images with few maps share a row: rows of equal length, so that none is nearly empty
        tiles = lead + self.a_line
        self.across = 1
        if beside and self.lines == 1 and tiles <= 3:
            self.across = math.ceil(len(images) / math.ceil(len(images) * tiles / 6))

        # Dots for a pixel: a whole number, if they are large enough to show
        rows = math.ceil(len(images) / self.across) * self.lines
        side_in_line = (FILLED / (self.across * tiles) - GAP) / stretch
        side_in_column = (HIGHEST / rows - 2 * LINE) * stretch
        side = min(max(min(side_in_line, side_in_column), SMALLEST), LARGEST)
        scale = side / math.sqrt(height * width)
        if scale >= 3:
            scale = round(scale)
        down = max(int(height / grid[0] * scale), 1)
        across = max(int(width / grid[1] * scale), 1)
        self.patch = (down, across)
        self.tile = (down * grid[0], across * grid[1])
        self.pictures = self.tiles(images)

    def tiles(self, images: Tensor) -> np.ndarray:
        """Images (B, C, H, W) from 0 to 1 -> uint8 (B, height, width, 3), as large as a tile."""
        return resized(image_bytes(images), self.tile)

    def enlarged(self, values: np.ndarray) -> np.ndarray:
        """(rows, columns, ...) -> (height, width, ...), each dot with the value of its patch."""
        return values.repeat(self.patch[0], 0).repeat(self.patch[1], 1)

    def strokes(self, patches: np.ndarray) -> np.ndarray:
        """Bool (rows, columns) -> (height, width, 1): the opacity of strokes across the patches."""
        # The distance of each dot of a patch from its rising diagonal, in dots
        high, wide = self.patch
        y, x = np.indices(self.patch) + 0.5
        distance = np.abs(y / high + x / wide - 1) * high * wide / math.hypot(high, wide)
        return np.kron(patches, np.clip(1.1 - distance, 0, 1))[..., None]

    def boxes(self, patches: Any) -> list[list[int]]:
        """Return what to outline in each image: for a patch (row, column) of all, or of each."""
        corners = np.broadcast_to(patches, (len(self.pictures), 2)) * self.patch
        return np.hstack([corners, corners + self.patch]).tolist()

    def figure(
        self, tiles: Sequence[Sequence[Tile]], title: str, subtitle: str, **look: Any
    ) -> Figure:
        """Draw the tiles of each image: first the leading pictures, then the maps.

        `look` are further arguments of `mosaic`.
        """
        rows: list[list[Tile]] = []
        for start in range(0, len(tiles), self.across):
            row: list[Tile] = []
            for image in tiles[start : start + self.across]:
                # Below the first row the columns are the same, so only images have names
                if start and self.lines == 1:
                    image = [image[0], *(tile._replace(above="") for tile in image[1:])]
                row += image
            # Maps go on below each other
            first = self.across * (self.lead + self.a_line)
            rows.append(row[:first])
            for place in range(first, len(row), self.a_line):
                rows.append([*[EMPTY] * self.lead, *row[place : place + self.a_line]])
        group = self.lead + self.a_line if self.across > 1 else 0
        return mosaic(rows, with_size(title, self.size), subtitle, group=group, **look)


def mosaic(
    rows: Sequence[Sequence[Tile]],
    title: str,
    subtitle: str,
    *,
    names: Sequence[str] = (),
    group: int = 0,
    scales: Sequence[Scale] = (),
    unit: str = "",
    legend: Mapping[str, Any] = MappingProxyType({}),
    notes: Sequence[str] = (),
) -> Figure:
    """Draw tiles in rows, in one array.

    Args:
        rows: of tiles.
        title, subtitle: the heading; none without a title.
        names: at the left of the rows.
        group: tiles side by side that belong together; 0 for all.
        scales: a colour bar for all rows, or one for each, or for each two, ....
        unit: written above the bar.
        legend: words -> what matplotlib's legend shows.
        notes: sentences for the foot of the sheet.
    """
    # Columns
    high, wide = rows[0][0].picture.shape[:2]
    columns = np.arange(max(map(len, rows)))
    left = MARGIN
    if names:
        left += 2 * GAP + round(max(text_width(name, 8.5) for name in names) / 72 * DPI)
    lefts = (left + columns * (wide + GAP) + columns // (group or len(columns)) * APART).tolist()
    right = lefts[-1] + wide
    width = max(right + (BAR if scales else MARGIN), NARROWEST)

    # Rows, each with the lines of words that its tiles need
    tops = []
    foot = 0
    for tiles in rows:
        above = max(len(caption(printable(tile.above), wide)[0]) for tile in tiles)
        below = max(len(caption(tile.below, wide)[0]) for tile in tiles)
        tops.append(foot + above * LINE + 6)
        foot = tops[-1] + max(high + below * LINE + 8, LINE)

    # Legend and notes take the width of the sheet
    room = (width - 2 * MARGIN) / DPI
    in_line = legend_columns(list(legend), room) if legend else 1
    notes_top = foot + 8 + math.ceil(len(legend) / in_line) * 26
    lines = [*chain(*(wrapped(note, room * 72, SMALL) for note in notes))]

    # The array: tiles on white paper; words lie over it
    canvas = np.full((notes_top + len(lines) * LINE + 12, width, 3), 255, dtype=np.uint8)
    for top, tiles in zip(tops, rows, strict=True):
        for x, tile in zip(lefts, tiles, strict=False):
            if tile.picture.size:
                paste(canvas, top, x, tile)
    figure, axes = canvas_figure(canvas, title, subtitle)
    for top, name in zip(tops, names, strict=False):
        axes.text(MARGIN, top + high / 2, name, fontsize=8.5, va="center")
    for top, tiles in zip(tops, rows, strict=True):
        for x, tile in zip(lefts, tiles, strict=False):
            under = {"va": "top", "color": COLOURS.quiet}
            for words, y, look in (
                (printable(tile.above), top - 5, {}),
                (tile.below, top + high + 4, under),
            ):
                parts, size = caption(words, wide)
                text = "\n".join(parts)
                look |= {"ha": "center", "linespacing": 1.1, "fontsize": size}
                axes.text(x + wide / 2, y, text, **look)
    for number, line in enumerate(lines):
        y = notes_top + 17 + number * LINE
        axes.text(MARGIN, y, line, fontsize=SMALL, color=COLOURS.quiet)

    # A bar beside the rows of its tiles, within about 5 inches: a longer one is no easier to read
    of_each = len(tops) // max(len(scales), 1)
    for scale, first in zip(scales, range(0, len(tops), of_each), strict=False):
        top = tops[first]
        end = min(tops[first + of_each - 1] + high, top + max(high, 720))
        place = (right + 18, top, 18, end - top)
        scale.draw_bar(axes.inset_axes(place, transform=axes.transData), (end - top) / DPI)
    unit = fitted(unit, (width - right - 21) / DPI * 72, SMALL)
    axes.text(right + 18, tops[0] - 14, unit, fontsize=SMALL, color=COLOURS.quiet)
    if legend:
        axes.legend(
            list(legend.values()),
            list(legend),
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


def paste(canvas: np.ndarray, top: int, left: int, tile: Tile) -> None:
    """Paste a tile with a rim of one dot, and outline its marked patch, with dark rims.

    White patches (uniform attention) need an edge, and an outline has to show on every colour.
    """
    high, wide = tile.picture.shape[:2]
    canvas[top - 1 : top + high + 1, left - 1 : left + wide + 1] = as_bytes(COLOURS.absent)
    canvas[top : top + high, left : left + wide] = tile.picture
    if tile.marked:
        y, x, bottom, right = np.array(tile.marked) + [top, left] * 2
        inside = canvas[y + 2 : bottom - 2, x + 2 : right - 2].copy()
        for reach, colour in ((3, COLOURS.ink), (2, MARK), (-1, COLOURS.ink)):
            canvas[y - reach : bottom + reach, x - reach : right + reach] = as_bytes(colour)
        canvas[y + 2 : bottom - 2, x + 2 : right - 2] = inside


def caption(text: str, dots: int) -> tuple[list[str], float]:
    """Return text in up to two lines a line that fit so many dots, and its size in points."""
    # A word a little wider than the picture is written smaller, not broken
    room = dots / DPI * 72
    size = SMALL
    widest = max((text_width(printable(word), size) for word in text[:1000].split()), default=0)
    if room < widest < 1.25 * room:
        size *= 0.99 * room / widest
    lines = []
    for part in text[:1000].splitlines():
        first, *further = wrapped(part, room, size) or [""]
        lines.append(first)
        if further:
            lines.append(fitted(" ".join(further), room, size))
    return lines, size


def with_size(title: str, size: Sequence[int]) -> str:
    """Return a title that also says how many pixels the images have, (H, W); "" stays empty."""
    return f"{title} ({size[0]} x {size[1]} pixels)" if title else ""


# --- Pixels --------------------------------------------------------------------------------------


def to_bytes(picture: np.ndarray) -> np.ndarray:
    """0 to 1 -> uint8."""
    return (np.clip(picture, 0, 1) * 255).round().astype(np.uint8)


def as_bytes(colour: Any) -> np.ndarray:
    """Return a colour of matplotlib as uint8 (3,)."""
    return to_bytes(np.array(to_rgb(colour)))


def image_bytes(images: Tensor) -> np.ndarray:
    """Images (B, C, H, W) from 0 to 1, C 1 or 3 -> uint8 (B, H, W, 3)."""
    # A grey image gets three equal channels, a view without a copy
    colours = images.detach().float().cpu().expand(-1, 3, -1, -1).permute(0, 2, 3, 1)
    return to_bytes(colours.nan_to_num().numpy())


def resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 (B, H, W, 3) -> uint8 (B, height, width, 3): `size` is (height, width).

    Pixels stay squares if each becomes a whole number of dots; else they are resampled smoothly.
    """
    height, width = size
    is_whole = height % pixels.shape[1] == 0 and width % pixels.shape[2] == 0
    method = Image.Resampling.NEAREST if is_whole else Image.Resampling.LANCZOS
    pictures = [Image.fromarray(picture).resize((width, height), method) for picture in pixels]
    return np.stack([np.asarray(picture) for picture in pictures])


def brightness(picture: np.ndarray) -> np.ndarray:
    """uint8 (..., 3) -> (..., 1): its brightness from 0 to 1, by the weights of Rec. 709."""
    return picture @ np.array([[0.2126], [0.7152], [0.0722]]) / 255
