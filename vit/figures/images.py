"""Figures made of images: reconstructions, sheets of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap, hsv_to_rgb, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from vit.figures.sheet import QUERY, SMALL, Page, Sheet, whole
from vit.figures.style import COLOURS, DPI, fitted, styled


@styled
def reconstruction_figure(
    original: Tensor,
    filled: Tensor,
    hidden: Tensor,
    labels: Sequence[str],
    title: str,
    subtitle: str,
) -> Figure:
    """Draw the rows original, masked and filled in, with a column per image.

    Args:
        original: (B, C, H, W) from 0 to 1.
        filled: likewise.
        hidden: bool (B, 1, H, W), True where hidden from the model.
        labels: B names for the columns; may be empty strings.
        subtitle: model, data, mask, and how hidden patches got their brightness.
    """
    seen = np.where(hidden.permute(0, 2, 3, 1).numpy(), to_rgb(COLOURS.absent), _pixels(original))
    rows = {
        "original": _pixels(original),
        "what the\nmodel sees": seen,
        "filled in": _pixels(filled),
    }
    count, (height, width) = len(original), original.shape[-2:]
    across = whole(max(min(1.0, 7 / count), 0.6) * DPI, width)
    down = across // width * height
    left, head, gap, margin = 140, 30, 8, 22
    page = Page(
        left + count * (across + gap) - gap + margin,
        head + len(rows) * (down + gap) + 8,
        title,
        subtitle,
    )
    canvas = page.canvas()
    for row, (name, pictures) in enumerate(rows.items()):
        y = head + row * (down + gap)
        page.text(left - 12, y + down / 2, name, 9, ha="right")
        for column, picture in enumerate(pictures):
            x = left + column * (across + gap)
            canvas.imshow(picture, aspect="auto", extent=(x, x + across, y + down, y))
            if row == 0:
                label = fitted(labels[column], across / DPI * 72, 7)
                page.text(x + across / 2, y - 6.25, label, 7, ha="center", va="baseline")
    return page.figure


@styled
def sheet_figure(
    images: Tensor,
    labels: Sequence[str],
    title: str,
    subtitle: str,
    columns: int = 10,
    parts: Tensor | None = None,
    part_names: Sequence[str] = (),
) -> Figure:
    """Draw a sheet of images, and beside it the part that each pixel belongs to, if known.

    Args:
        images: uint8 (N, C, H, W).
        labels: N names; may be empty strings.
        columns: images per row.
        parts: uint8 (N, H, W), an index into `part_names`.
        part_names: names of the parts, for the legend.
    """
    rows, sides = -(-len(images) // columns), 1 if parts is None else 2
    height, width = images.shape[-2:]
    across = whole(0.62 * DPI, width)
    down = across // width * height
    head, gap, margin = 24, 6, 22
    side_width = columns * (across + gap) - gap + 2 * margin
    in_line = min(8, max(len(part_names), 1))
    pictures = rows * (down + head) + 12
    legend = 0 if parts is None else 12 + 24 * -(-len(part_names) // in_line)
    page = Page(sides * side_width - margin * (sides - 1), pictures + 8 + legend, title, subtitle)
    canvas, colours = page.canvas(), ListedColormap(_distinct_colours(len(part_names)))
    for number, image in enumerate(images):
        x, y = margin + number % columns * (across + gap), head + number // columns * (down + head)
        canvas.imshow(
            image.permute(1, 2, 0).numpy(), aspect="auto", extent=(x, x + across, y + down, y)
        )
        name = fitted(labels[number], across / DPI * 72, 6.5)
        page.text(x + across / 2, y - 4.2, name, 6.5, ha="center", va="baseline")
        if parts is not None:
            x += side_width - margin
            look: Any = {
                "cmap": colours,
                "vmin": -0.5,
                "vmax": len(part_names) - 0.5,
                "aspect": "auto",
            }
            canvas.imshow(parts[number].numpy(), extent=(x, x + across, y + down, y), **look)
    if parts is not None:
        handles = [Patch(color=colours(i)) for i in range(len(part_names))]
        corner = page.share(margin, pictures)
        page.figure.legend(
            handles,
            part_names,
            loc="upper left",
            bbox_to_anchor=corner,
            borderaxespad=0,
            borderpad=0,
            ncols=in_line,
        )
    return page.figure


def _pixels(images: Tensor) -> np.ndarray:
    return images.permute(0, 2, 3, 1).numpy()


def _distinct_colours(count: int) -> list[tuple[float, float, float]]:
    golden = (
        0.618034  # golden-section steps: neighbours in the list are far apart on the colour wheel
    )
    return [
        tuple(hsv_to_rgb((i * golden % 1, 0.45 + 0.35 * (i % 2), 0.95 - 0.3 * (i % 3) / 2)))
        for i in range(count)
    ]


@styled
def pasted_figure(
    rows: Sequence[Tensor],
    patch: tuple[int, int],
    grid: tuple[int, int],
    names: Sequence[str],
    columns: Sequence[str],
    words: Sequence[Sequence[str]],
    title: str,
    subtitle: str,
) -> Figure:
    """Draw rows of images, with the same place outlined in each.

    Args:
        rows: (n, C, H, W) from 0 to 1 each.
        patch: (row, column) of the place.
        grid: (rows, columns) of patches.
        names: of the rows.
        columns: names of the n images.
        words: for each row, the text under each image.
    """
    size = (rows[0].shape[-2], rows[0].shape[-1])
    keys = [(QUERY, "the patch that is the same in all images of a row")]
    sheet = Sheet(
        len(rows),
        0,
        len(columns),
        grid,
        size,
        title,
        subtitle,
        roof=34,
        foot=30,
        bar=False,
        keys=keys,
    )
    for block, images in enumerate(rows):
        sheet.over(block, names[block], 9)
        for axes, picture, name, under in zip(
            sheet.axes[block], sheet.pixels(images), columns, words[block], strict=True
        ):
            sheet.picture(axes, picture, fitted(name, sheet.room, SMALL))
            sheet.outline(axes, patch)
            axes.set_xlabel(fitted(under, sheet.room, SMALL), fontsize=SMALL, labelpad=3)
    return sheet.figure
