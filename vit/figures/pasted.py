"""The same patch in different images, and a line of words under each."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor

from vit.figures.layout import laid_out
from vit.figures.mosaic import NOTE, SMALL, Sheet, pictures_of
from vit.figures.scale import to_bytes
from vit.figures.style import DPI, LIGHT, Theme, fitted

ROOF, FOOT = 34, 30  # dots: for the name of a row, and for the words under a picture


def pasted_figure(
    rows: Sequence[Tensor],
    patch: tuple[int, int],
    grid: tuple[int, int],
    names: Sequence[str],
    columns: Sequence[str],
    words: Sequence[Sequence[str]],
    title: str,
    subtitle: str,
    theme: Theme = LIGHT,
) -> Figure:
    """Rows of images, in each of which the same place is outlined.

    Args:
        rows: (n, C, H, W) from 0 to 1 each.
        patch: (row, column) of the place.
        grid: (rows, columns) of patches.
        names: of the rows.
        columns: names of the n images.
        words: for each row, what stands under each image.
        title, subtitle: the heading.
        theme: the colours.
    """
    size = (rows[0].shape[-2], rows[0].shape[-1])
    layout = laid_out(len(rows), 0, len(columns), grid, size, roof=ROOF, foot=FOOT)
    sheet = Sheet(
        layout, False, [], [("query", "the patch that is the same in all images of a row")], title, subtitle, theme
    )
    room = layout.width / DPI * 72
    for block, images in enumerate(rows):
        first = layout.panel(block, 0)
        sheet.text(first.x, first.y - layout.head - 4, names[block], SMALL + 1.5, theme.ink, weight="bold")
        for column, picture in enumerate(pictures_of(images, layout)):
            cell = layout.panel(block, column)
            sheet.picture(cell, to_bytes(picture))
            sheet.outline(cell, grid, patch)
            sheet.heading(cell, fitted(columns[column], room, SMALL + 0.5), SMALL + 0.5, theme.ink)
            sheet.heading(cell, fitted(words[block][column], room, NOTE), NOTE, theme.quiet, below=True)
    return sheet.figure
