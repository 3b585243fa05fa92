"""Where each of many small pictures stands on one sheet.

Everything is placed in dots, of which DPI make an inch, from the upper left of the content. Cells are whole dots, and as many
for each patch, so that patches have sharp edges and equal sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from vit.errors import UserError
from vit.figures.style import DPI

MOST_PICTURES = 480  # on one sheet: beyond it nobody reads, and it takes minutes to draw
MOST_A_LINE = 13  # panels beside each other: the mean and twelve heads
WIDEST, HIGHEST = 11.5 * DPI, 10.0 * DPI  # what cells may grow to fill, in dots
SMALLEST, LARGEST = 0.9 * DPI, 2.4 * DPI  # side of a square cell
MARGIN, GAP, BETWEEN = 22, 10, 34
PIXELATED = 64  # pixels a side, up to which an image is shown with its pixels as squares
HEAD = 27  # the line over a picture


class FigureError(UserError, ValueError):
    """A figure that cannot be drawn so; the message is one line."""


class Box(NamedTuple):
    """A rectangle in dots."""

    x: int
    y: int
    width: int
    height: int

    def part(self, grid: tuple[int, int], row: int, column: int) -> Box:
        """One patch of it."""
        height, width = self.height // grid[0], self.width // grid[1]
        return Box(self.x + column * width, self.y + row * height, width, height)


@dataclass(frozen=True)
class Layout:
    """Blocks, one an image: pictures that lead, and beside them the panels, in one or more lines.

    Attributes:
        blocks: how many.
        across: blocks beside each other; those beyond go on in the next row.
        lead: pictures at the left of each block.
        panels: of each block.
        a_line: panels beside each other; those beyond go on in the next line.
        width, height: of a cell, multiples of the grid's columns and rows.
        roof: over each block; head, foot: over and under each cell.
    """

    blocks: int
    across: int
    lead: int
    panels: int
    a_line: int
    width: int
    height: int
    roof: int
    head: int
    foot: int

    @property
    def lines(self) -> int:
        """Lines of panels in a block."""
        return math.ceil(self.panels / self.a_line)

    @property
    def rows(self) -> int:
        """Rows of blocks."""
        return math.ceil(self.blocks / self.across)

    @property
    def right(self) -> int:
        """Where the last column ends."""
        return MARGIN + self.across * self._block_width + (self.across - 1) * BETWEEN

    @property
    def bottom(self) -> int:
        """Where the last row ends."""
        return self.rows * self._block_height

    @property
    def _line_height(self) -> int:
        return self.head + self.height + self.foot

    @property
    def _block_width(self) -> int:
        return (self.lead + self.a_line) * (self.width + GAP) - GAP

    @property
    def _block_height(self) -> int:
        return self.roof + self.lines * self._line_height

    def cell(self, block: int, column: int, line: int = 0) -> Box:
        """The cell in a column of a block, counted from its first leading picture."""
        row, place = divmod(block, self.across)
        x = MARGIN + place * (self._block_width + BETWEEN) + column * (self.width + GAP)
        y = row * self._block_height + self.roof + line * self._line_height + self.head
        return Box(x, y, self.width, self.height)

    def panel(self, block: int, panel: int) -> Box:
        """The cell of a panel."""
        return self.cell(block, self.lead + panel % self.a_line, panel // self.a_line)

    def beside(self, first: int, last: int) -> Box:
        """Room for a bar beside the rows from `first` to `last`."""
        top, end = self.cell(first * self.across, 0).y, self.cell(last * self.across, 0, self.lines - 1)
        return Box(self.right + 16, top, 18, end.y + end.height - top)

    def tall(self, inches: float) -> int:
        """The last row, counted from 0, that a bar of about this height reaches."""
        return min(self.rows - 1, max(round(inches * DPI / self._block_height) - 1, 0))


def laid_out(
    blocks: int,
    lead: int,
    panels: int,
    grid: tuple[int, int],
    image: tuple[int, int],
    roof: int = 0,
    foot: int = 0,
    beside: bool = False,
) -> Layout:
    """The layout with the largest legible cells.

    Up to 13 panels stand in one line (fewer when images are wide), more go on in lines of equal length. Images with but one
    or two panels may stand beside each other, up to eight pictures in a row. Cells grow until the sheet is about 12 inches
    wide or 10 high, from 0.9 to 2.4 inches a side; with many images it becomes higher.

    Args:
        blocks, lead, panels, roof, foot: as in `Layout`.
        grid: (rows, columns) of patches.
        image: (H, W) of the images, for the shape of a cell.
        beside: whether images with few panels may stand beside each other.

    Raises:
        ValueError: there are no pictures, or more than fit one legible sheet.
    """
    if not blocks or not panels:
        raise ValueError("a figure needs at least one image and one map")
    if (count := blocks * (lead + panels)) > MOST_PICTURES:
        raise FigureError(
            f"{count} pictures do not fit one legible figure, which holds {MOST_PICTURES}: leave out images or panels"
        )
    stretch = math.sqrt(image[0] / image[1])
    narrowest = SMALLEST / stretch
    a_line = int(min(MOST_A_LINE, max((WIDEST * 1.2 + GAP) // (narrowest + GAP) - lead, 1)))
    lines = math.ceil(panels / a_line)
    a_line = math.ceil(panels / lines)
    few = beside and lines == 1 and lead + a_line <= 3
    rows = math.ceil(blocks / (8 // (lead + a_line))) if few else blocks
    across = math.ceil(blocks / rows)
    fill_width = (WIDEST / (across * (lead + a_line)) - GAP) * stretch
    fill_height = (HIGHEST / (rows * lines) - HEAD - foot - roof / lines) / stretch
    side = min(max(min(fill_width, fill_height), SMALLEST), LARGEST)
    patch_width = max(round(side / stretch / grid[1]), 2)
    width = patch_width * grid[1]
    if image[1] % grid[1] == 0 and image[1] <= min(width, PIXELATED):  # whole dots a pixel too
        width = round(width / image[1]) * image[1]
    height = max(round(width * image[0] / image[1] / grid[0]), 2) * grid[0]
    return Layout(blocks, across, lead, panels, a_line, width, height, roof, HEAD, foot)
