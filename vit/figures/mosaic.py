"""Pictures in rows and columns, in one array: images, and maps of their patches beside them.

Every picture is a tile of the same size, a whole number of dots per patch, so that all patches are
equally large and have sharp edges. The tiles are pasted into one array, which is drawn once;
outlines, strokes and words are laid over it. All places are in dots from its upper left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch as Swatch
from matplotlib.patheffects import Normal, Stroke
from torch import Tensor

from vit.errors import UserError
from vit.figures.scale import (
    PIXELATED,
    Scale,
    image_bytes,
    overlay_colours,
    resized,
    short,
    to_bytes,
)
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

# Lengths in inches.
# The side of a square tile
SMALLEST = 0.9
LARGEST = 2.4
# A line of tiles: 13 maps and their image fit
WIDEST = 13.8
# What tiles grow to fill: wider, the text is illegible on a phone
FILLED = 6.0
HIGHEST = 10.0
# At the left, between tiles, between images side by side
MARGIN = 0.15
GAP = 0.06
BETWEEN = 0.24
# A colour bar with its numbers
BAR = 1.0
# A line of small text
LINE = 0.145

# Small text, in points
SMALL = 7.5
# The outline of a query patch, and its dark rim
MARK = "#ffd400"
MARK_EDGE = COLOURS.ink
# Around each picture
RIM = to_bytes(np.array(to_rgb(COLOURS.absent)))
# A stroke over a map: colour and opacity
ON_MAPS = (COLOURS.quiet, 0.6)
# Kinds of legend entries
QUERY = "query"
ABSENT = "absent"
MASKED = "masked"


def dots(inches: float) -> int:
    """Return a length in dots."""
    return round(inches * DPI)


def with_size(title: str, images: Tensor) -> str:
    """Return a title that also says how many pixels the images (..., H, W) have; "" stays empty."""
    if not title:
        return ""
    return f"{title} ({images.shape[-2]} x {images.shape[-1]} pixels)"


@dataclass(frozen=True)
class Layout:
    """Where the tiles of a sheet stand, in dots.

    A block is an image: leading pictures, then its maps, in one or more lines.

    Attributes:
        blocks, lead, maps: number of images, of pictures before the maps, and of maps of each.
        maps_a_line: maps side by side; a block with more has several lines of equal length.
        across: blocks side by side.
        tile: (height, width) of a picture.
        roof: above a block; head, foot: above and below each line of tiles.
        width: of the sheet, with margins and the colour bar.
        name_lines: lines of text above each picture.
    """

    blocks: int
    lead: int
    maps: int
    maps_a_line: int
    across: int
    tile: tuple[int, int]
    roof: int
    head: int
    foot: int
    width: int
    name_lines: int

    @property
    def lines(self) -> int:
        """Lines of tiles in a block."""
        return math.ceil(self.maps / self.maps_a_line)

    @property
    def line_height(self) -> int:
        """From a line of tiles to the next."""
        return self.head + self.tile[0] + self.foot

    @property
    def block_height(self) -> int:
        """From a block to the one below."""
        return self.roof + self.lines * self.line_height

    @property
    def block_width(self) -> int:
        """Of the tiles of a block and the gaps between them."""
        gap = dots(GAP)
        return (self.lead + self.maps_a_line) * (self.tile[1] + gap) - gap

    @property
    def rows(self) -> int:
        """Rows of blocks."""
        return math.ceil(self.blocks / self.across)

    @property
    def right(self) -> int:
        """Where the last tile of a row ends."""
        widths = self.across * self.block_width + (self.across - 1) * dots(BETWEEN)
        return dots(MARGIN) + widths

    @property
    def room(self) -> float:
        """Width of a tile in points, for its name."""
        return self.tile[1] / DPI * 72

    def corner(self, block: int, number: int) -> tuple[int, int]:
        """Return (x, y) of the upper left of a picture: the leading ones come first."""
        # Leading pictures stand in the first line only; maps go on below each other
        row, place = divmod(block, self.across)
        line = 0
        column = number
        if number >= self.lead:
            line, column = divmod(number - self.lead, self.maps_a_line)
            column += self.lead
        # From blocks and tiles to dots
        x = dots(MARGIN) + place * (self.block_width + dots(BETWEEN))
        x += column * (self.tile[1] + dots(GAP))
        y = row * self.block_height + self.roof + line * self.line_height + self.head
        return x, y


def layout_for(
    blocks: int,
    lead: int,
    maps: int,
    grid: tuple[int, int],
    image: tuple[int, int],
    *,
    roof: float = 0.0,
    feet: int = 0,
    beside: bool = False,
    bar: bool = True,
    names: Sequence[str] = (),
) -> Layout:
    """Return a layout in which tiles are as large as fits, in whole dots per patch.

    Tiles grow, from 0.9 to 2.4 inches a side, until together they are about 6 inches wide or 10
    high; many images make the sheet higher.

    Args:
        blocks, lead, maps: number of images, of pictures before the maps, and of maps of each.
        grid: (rows, columns) of patches.
        image: (H, W) of the images.
        roof: inches above each block.
        feet: lines of text below each picture.
        beside: whether images with one or two maps may stand side by side.
        bar: whether to leave room for colour bars at the right.
        names: above the pictures; if one is wider than a tile, all have two lines of room.

    Raises:
        UserError: there are more pictures than fit one legible sheet.
    """
    # A sheet holds so many pictures
    count = blocks * (lead + maps)
    if count > MOST_PICTURES:
        raise UserError(
            f"{count} pictures do not fit one legible figure, which holds {MOST_PICTURES}:"
            " leave out images or maps"
        )
    stretch = math.sqrt(image[0] / image[1])

    # Maps in a line, and blocks side by side
    fit = int((WIDEST + GAP) // (SMALLEST / stretch + GAP)) - lead
    lines = math.ceil(maps / min(MOST_A_LINE, max(fit, 1)))
    maps_a_line = math.ceil(maps / lines)
    tiles = lead + maps_a_line
    across = 1
    # Images with few maps share a row: rows of equal length, so that none is nearly empty
    if beside and lines == 1 and tiles <= 3:
        most_across = int(FILLED // (SMALLEST + GAP)) // tiles
        rows = math.ceil(blocks / max(most_across, 1))
        across = math.ceil(blocks / rows)

    # The width of a tile, in inches
    foot = feet * LINE + 0.05
    rows = math.ceil(blocks / across)
    fill_width = (FILLED / (across * tiles) - GAP) * stretch
    fill_height = (HIGHEST / (rows * lines) - LINE - foot - roof / lines) / stretch
    side = min(max(min(fill_width, fill_height), SMALLEST), LARGEST)
    tile_width = side / stretch

    # The same in dots: a whole number per patch, and per pixel where these are large enough to show
    step = grid[1]
    if max(image) <= PIXELATED and image[1] % step == 0 and tile_width * DPI >= 3 * image[1]:
        step = image[1]
    columns = max(round(tile_width * DPI / step), 1) * step
    dots_high = max(round(columns * image[0] / image[1] / grid[0]), 1) * grid[0]

    # Names above the pictures take one line or two
    widest = max((text_width(printable(name), SMALL) for name in names), default=0.0)
    name_lines = 2 if widest > columns / DPI * 72 else 1
    head = name_lines * LINE + 0.04

    # The width of the sheet
    gap = dots(GAP)
    width = across * tiles * (columns + gap) - gap + (across - 1) * dots(BETWEEN - GAP)
    width += dots(MARGIN + (BAR if bar else MARGIN))
    return Layout(
        blocks,
        lead,
        maps,
        maps_a_line,
        across,
        tile=(dots_high, columns),
        roof=dots(roof),
        head=dots(head),
        foot=dots(foot),
        width=max(width, dots(5.6)),
        name_lines=name_lines,
    )


class Mosaic:
    """A sheet in the making: tiles are pasted, marks and words collected, and `figure` draws all.

    Args:
        layout: of its tiles.
        grid: (rows, columns) of patches.
    """

    def __init__(self, layout: Layout, grid: tuple[int, int]):
        self.layout = layout
        self.grid = grid
        # White paper for all rows; tiles are pasted on it
        height = layout.rows * layout.block_height + dots(0.06)
        self.canvas = np.full((height, layout.width, 3), 255, dtype=np.uint8)
        self._words: list[tuple[float, float, str, dict[str, Any]]] = []
        self._outlines: list[np.ndarray] = []
        self._edges: list[np.ndarray] = []
        self._strokes: list[np.ndarray] = []
        self._stroke_colours: list[Any] = []

    def tiles(self, images: Tensor) -> np.ndarray:
        """Images (B, C, H, W) from 0 to 1 -> uint8 (B, height, width, 3), as large as a tile."""
        return resized(image_bytes(images), self.layout.tile)

    def paste(self, block: int, number: int, picture: np.ndarray) -> None:
        """Paste a picture, uint8 (height, width, 3), of the size of a tile."""
        x, y = self.layout.corner(block, number)
        height, width = self.layout.tile
        # A rim of one dot: without it, white patches (uniform attention) would have no edge
        self.canvas[y - 1 : y + height + 1, x - 1 : x + width + 1] = RIM
        self.canvas[y : y + height, x : x + width] = picture

    def write(self, x: float, y: float, text: str, size: float, **options: Any) -> None:
        """Write at a place; matplotlib's `options` say how."""
        self._words.append((x, y, text, {"fontsize": size, "va": "baseline"} | options))

    def above(self, block: int, number: int, name: str) -> None:
        """Write a name above a picture, cut to its width."""
        layout = self.layout
        x, y = layout.corner(block, number)
        middle = x + layout.tile[1] / 2
        # A word a little wider than the picture is written smaller, not broken
        size = SMALL
        for smaller in (size, 0.9 * size, 0.8 * size):
            if all(text_width(word, smaller) <= layout.room for word in printable(name).split()):
                size = smaller
                break
        # In as many lines as there is room for; the last one is cut
        lines = wrapped(name, layout.room, size)
        if len(lines) > layout.name_lines:
            cut = fitted(" ".join(lines[layout.name_lines - 1 :]), layout.room, size)
            lines = [*lines[: layout.name_lines - 1], cut]
        text = "\n".join(lines)
        self.write(middle, y - dots(0.035), text, size, ha="center", linespacing=1.1)

    def below(self, block: int, number: int, text: str, words: str = "", line: int = 0) -> None:
        """Write one of the lines below a picture, cut to its width.

        `words` follow the text where both fit.
        """
        # The first baseline stands below the picture, the next ones a line further down
        layout = self.layout
        x, y = layout.corner(block, number)
        middle = x + layout.tile[1] / 2
        foot = y + layout.tile[0] + dots(0.12 + line * LINE)
        text = printable(text)
        longer = f"{text} {words}".rstrip()
        if text_width(longer, SMALL) <= layout.room:
            text = longer
        text = fitted(text, layout.room, SMALL)
        self.write(middle, foot, text, SMALL, color=COLOURS.quiet, ha="center")

    def over(self, block: int, words: str, size: float = 8.5) -> None:
        """Write above a block, in its roof."""
        x, y = self.layout.corner(block, 0)
        baseline = y - self.layout.head - dots(0.03)
        # It may be as wide as the block
        room = self.layout.block_width / DPI * 72
        self.write(x, baseline, fitted(words, room, size, "bold"), size, weight="bold")

    def outline(self, block: int, number: int, patch: tuple[int, int]) -> None:
        """Outline the patch (row, column) of a picture."""
        row, column = patch
        # A closed line around it, in patches
        square = [(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]
        corners = np.array([(column + x, row + y) for x, y in square])
        self._outlines.append(self._on_sheet(block, number, corners))

    def cross(
        self, block: int, number: int, patches: np.ndarray, colour: Any = COLOURS.stroke
    ) -> None:
        """Draw a stroke across each patch that is True in (rows, columns)."""
        for row, column in np.argwhere(patches):
            stroke = np.array([(column, row + 1), (column + 1, row)])
            self._strokes.append(self._on_sheet(block, number, stroke))
            self._stroke_colours.append(colour)

    def border(self, block: int, number: int, patches: np.ndarray) -> None:
        """Draw a line around the patches that are True in (rows, columns)."""
        # An edge is where a patch differs from the one above, or from the one at its left
        padded = np.pad(patches, 1)
        between_rows = np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1])
        between_columns = np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1])
        for row, column in between_rows:
            edge = np.array([(column, row), (column + 1, row)])
            self._edges.append(self._on_sheet(block, number, edge))
        for row, column in between_columns:
            edge = np.array([(column, row), (column, row + 1)])
            self._edges.append(self._on_sheet(block, number, edge))

    def _on_sheet(self, block: int, number: int, points: np.ndarray) -> np.ndarray:
        """(n, 2), x and y in patches of a picture -> in dots of the sheet."""
        height, width = self.layout.tile
        rows, columns = self.grid
        return self.layout.corner(block, number) + points * (width / columns, height / rows)

    def figure(
        self,
        title: str,
        subtitle: str,
        *,
        keys: Sequence[tuple[str, str]] = (),
        notes: Sequence[str] = (),
        bars: Sequence[ColourBar] = (),
    ) -> Figure:
        """Draw the sheet: the array, the marks and words over it, colour bars, legend and notes.

        Args:
            title, subtitle: the heading; none without a title.
            keys: the legend: (QUERY | ABSENT | MASKED, words).
            notes: sentences for the foot of the sheet.
            bars: one beside the first rows, or one for each row.
        """
        layout = self.layout
        room = (layout.width - 2 * dots(MARGIN)) / DPI

        # Paper for legend and notes below the pictures
        columns = legend_columns([words for _, words in keys], room) if keys else 1
        keys_height = math.ceil(len(keys) / columns) * dots(0.17)
        lines = []
        for note in notes:
            lines += wrapped(note, room * 72, SMALL)
        foot = len(self.canvas)
        paper = foot + keys_height + len(lines) * dots(LINE) + dots(0.08)
        canvas = np.full((paper, layout.width, 3), 255, dtype=np.uint8)
        canvas[:foot] = self.canvas

        # The array and what lies over it
        figure, axes = canvas_figure(canvas, title, subtitle)
        self._draw_marks(axes)
        for x, y, text, options in self._words:
            axes.text(x, y, text, **options)
        for row, bar in enumerate(bars):
            single = len(bars) == 1
            self._draw_bar(axes, bar, row, single)

        # Legend and notes
        if keys:
            axes.legend(
                [_swatch(kind) for kind, _ in keys],
                [words for _, words in keys],
                loc="upper left",
                ncols=columns,
                handlelength=1.1,
                handleheight=1.1,
                bbox_to_anchor=(dots(MARGIN), foot),
                bbox_transform=axes.transData,
                borderaxespad=0,
                borderpad=0,
                labelcolor=COLOURS.quiet,
                columnspacing=1.6,
            )
        for number, line in enumerate(lines):
            y = foot + keys_height + (number + 0.75) * dots(LINE)
            x = dots(MARGIN)
            axes.text(x, y, line, fontsize=SMALL, color=COLOURS.quiet, va="baseline")
        return figure

    def _draw_marks(self, axes: Axes) -> None:
        """Draw all strokes, borders and outlines, the last on top."""
        # Strokes across patches, then edges around groups of them
        look: dict[str, Any] = {"linewidths": 0.6, "capstyle": "butt"}
        axes.add_collection(LineCollection(self._strokes, colors=self._stroke_colours, **look))
        look = {"linewidths": 0.9, "capstyle": "projecting"}
        axes.add_collection(LineCollection(self._edges, colors=COLOURS.ink, **look))
        # Outlines have a dark rim, so that they show on every colour
        rim = [Stroke(linewidth=2.6, foreground=MARK_EDGE), Normal()]
        look = {"linewidths": 1.3, "path_effects": rim, "joinstyle": "miter"}
        axes.add_collection(LineCollection(self._outlines, colors=MARK, **look))

    def _draw_bar(self, axes: Axes, bar: ColourBar, row: int, single: bool) -> None:
        """Draw a colour bar beside a row, or a single one beside the first rows."""
        layout = self.layout
        # From the first line of its maps to the last
        scale = bar.scale
        block = row * layout.across
        _, top = layout.corner(block, layout.lead)
        _, last_top = layout.corner(block, layout.lead + layout.maps - 1)
        high = last_top + layout.tile[0] - top
        if single:
            # It spans the rows within about 5 inches: a longer one is no easier to read
            spanned = max(int(dots(5) // layout.block_height), 1)
            high += (min(layout.rows, spanned) - 1) * layout.block_height

        # The bar; a pointed end says that values lie beyond it
        place = (layout.right + dots(0.12), top, dots(0.12), high)
        beside = axes.inset_axes(place, transform=axes.transData)
        pointed = {(True, False): "max", (False, True): "min", (True, True): "both"}
        extend = pointed.get((scale.over, scale.under and not bar.overlay), "neither")
        colours = scale.colours
        # Over an image colours are opaque to some degree; the bar shows them over white
        if bar.overlay:
            rgba = overlay_colours(scale.centre is not None)(np.linspace(0, 1, 256))
            opacity = rgba[:, 3:]
            colours = ListedColormap(opacity * rgba[:, :3] + (1 - opacity))
        tip = dots(0.09) / high
        colour_bar = axes.figure.colorbar(
            ScalarMappable(scale, colours), cax=beside, extend=extend, extendfrac=tip
        )
        colour_bar.outline.set(linewidth=0.5, edgecolor=COLOURS.stroke)

        # Below uniform an overlay shows nothing but the image
        bottom = scale.low
        if bar.overlay and scale.centre is not None:
            bottom = scale.centre
            beside.set_ylim(bottom, scale.top)
        # Its numbers: the top, the centre, and round ones that touch no other
        inches = high / DPI
        wanted = [scale.top, *scale.ticks(min(1 + int(inches / 0.27), 8))]
        if scale.centre is not None:
            wanted.insert(1, scale.centre)
        start = float(scale(bottom))
        ticks: dict[float, str] = {}
        heights: list[float] = []
        for tick in wanted:
            height = inches * (float(scale(tick)) - start) / (1 - start)
            if height >= 0 and all(abs(height - other) >= 0.15 for other in heights):
                heights.append(height)
                ticks[tick] = short(tick)
                if tick == scale.centre:
                    ticks[tick] += " = uniform"
        colour_bar.set_ticks(list(ticks), labels=list(ticks.values()), minor=False)
        colour_bar.minorticks_off()
        beside.tick_params(labelsize=7, width=0.6, length=2.5)
        # The unit, above the pointed end if there is one
        if row == 0:
            size = SMALL
            room = (layout.width - layout.right - dots(0.14)) / DPI * 72
            x = layout.right + dots(0.12)
            y = top - dots(0.16 if scale.over else 0.09)
            axes.text(x, y, fitted(bar.unit, room, size), fontsize=size, color=COLOURS.quiet)


@dataclass(frozen=True)
class ColourBar:
    """A colour bar: its scale, the unit written above it, and whether maps lie over images."""

    scale: Scale
    unit: str
    overlay: bool = False


def _swatch(kind: str) -> Swatch:
    """Return the legend's swatch of a kind of mark."""
    if kind == QUERY:
        rim = [Stroke(linewidth=2.6, foreground=MARK_EDGE), Normal()]
        shade = (*to_rgb(COLOURS.quiet), 0.35)
        return Swatch(facecolor=shade, edgecolor=MARK, linewidth=1.3, path_effects=rim)
    # Masked patches are crossed: grey in an image, over the colours of a map
    face: Any = COLOURS.absent
    if kind == MASKED:
        face = matplotlib.colormaps[COLOURS.colours](0.25)
    return Swatch(facecolor=face, edgecolor=ON_MAPS[0], hatch="///", linewidth=0)
