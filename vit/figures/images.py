"""Figures made of images: reconstructions, sheets of a data set, patches pasted elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import ListedColormap, hsv_to_rgb, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from vit.figures.mosaic import QUERY, Mosaic, layout_for, with_size
from vit.figures.scale import PIXELATED, enlarged, image_bytes, resized, to_bytes
from vit.figures.style import COLOURS, DPI, canvas_figure, fitted, styled

ROWS = ("original", "masked input", "reconstruction")
"""The rows of a figure of reconstructions."""


@styled
def reconstruction_figure(
    original: Tensor,
    filled: Tensor,
    hidden: Tensor,
    labels: Sequence[str],
    title: str,
    subtitle: str,
) -> Figure:
    """Draw the rows original, masked input and reconstruction, with a column per image.

    Args:
        original: (B, C, H, W) from 0 to 1.
        filled: (B, C, H, W), the images as the model reconstructs them.
        hidden: bool (B, 1, H, W), True where masked.
        labels: B names for the columns; may be empty strings.
        subtitle: model, data, mask, and the source of the brightness of masked patches.
    """
    # Up to seven images fill the width; with more, they shrink to 0.6 inches
    count = len(original)
    down, across = _tile(original, max(min(1.0, 7 / count), 0.6))
    names_width = 168
    head = 30
    # A row is at least as high as its name
    gap = max(20 - down, 8)
    margin = 22

    # The three rows, uint8 (B, H, W, 3)
    pixels = image_bytes(original)
    absent = to_bytes(np.array(to_rgb(COLOURS.absent)))
    masked = np.where(hidden.permute(0, 2, 3, 1).numpy(), absent, pixels)
    rows = (pixels, masked, image_bytes(filled))

    # Pasted into one array
    size = (
        head + len(rows) * (down + gap) + 8,
        max(names_width + count * (across + gap) - gap + margin, int(5.6 * DPI)),
    )
    canvas = np.full((*size, 3), 255, dtype=np.uint8)
    for row, pictures in enumerate(rows):
        y = head + row * (down + gap)
        for column, picture in enumerate(resized(pictures, (down, across))):
            x = names_width + column * (across + gap)
            canvas[y : y + down, x : x + across] = picture

    # Words beside the rows and above the columns
    figure, axes = canvas_figure(canvas, with_size(title, original), subtitle)
    for row, name in enumerate(ROWS):
        middle = head + row * (down + gap) + down / 2
        axes.text(margin, middle, name, fontsize=8.5, va="center")
    for column in range(count):
        middle = names_width + column * (across + gap) + across / 2
        label = fitted(labels[column], across / DPI * 72, 7.5)
        axes.text(middle, head - 7, label, fontsize=7.5, ha="center", va="baseline")
    return figure


@styled
def patch_colours_figure(
    images: Tensor,
    colours: Tensor,
    labels: Sequence[str],
    title: str,
    subtitle: str,
) -> Figure:
    """Draw each image beside the colours of its patches.

    Args:
        images: (B, C, H, W) from 0 to 1, C 1 or 3.
        colours: (B, rows, columns, 3) from 0 to 1.
        labels: B names; may be empty strings.

    Raises:
        UserError: there are more pictures than one sheet holds.
    """
    # Each image and its patches, as two pictures side by side
    rows, columns = colours.shape[1:3]
    size = (images.shape[2], images.shape[3])
    layout = layout_for(
        len(labels), 1, 1, (rows, columns), size, beside=True, bar=False, names=labels
    )
    mosaic = Mosaic(layout, (rows, columns))
    patches = to_bytes(colours.movedim(-1, 1).numpy())  # (B, 3, rows, columns)
    for block, picture in enumerate(mosaic.tiles(images)):
        mosaic.paste(block, 0, picture)
        mosaic.above(block, 0, labels[block])
        mosaic.paste(block, 1, np.moveaxis(enlarged(patches[block], layout.tile), 0, -1))

    # What the picture means
    notes = [
        "Patches with similar features have similar colours, also across images: red, green and"
        " blue are the first three principal components. A colour by itself has no meaning."
    ]
    return mosaic.figure(with_size(title, images), subtitle, notes=notes)


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
    """Draw a sheet of images, and beside it the part that each pixel belongs to, if given.

    Args:
        images: uint8 (N, C, H, W).
        labels: N names; may be empty strings.
        columns: images per row.
        parts: uint8 (N, H, W), an index into `part_names`.
        part_names: names of the parts, for the legend.
    """
    down, across = _tile(images, 0.62)
    rows = -(-len(images) // columns)
    head = 24
    gap = 6
    margin = 22
    side_width = columns * (across + gap) - gap + margin

    # One or two halves, and below them a legend of up to eight columns
    in_line = min(8, max(len(part_names), 1))
    halves = 1
    legend = 0
    if parts is not None:
        halves = 2
        legend = 12 + 24 * -(-len(part_names) // in_line)
    bottom = rows * (down + head) + 12
    sheet_width = max(halves * side_width + margin, int(5.6 * DPI))
    canvas = np.full((bottom + legend + 8, sheet_width, 3), 255, dtype=np.uint8)

    # Images at the left, parts at the right
    colours = ListedColormap(_distinct_colours(len(part_names)))
    pictures = [resized(image_bytes(images / 255), (down, across))]
    if parts is not None:
        painted = colours(parts.numpy(), bytes=True)[..., :3]
        pictures.append(resized(painted, (down, across)))
    for half, tiles in enumerate(pictures):
        for number, tile in enumerate(tiles):
            x = margin + half * side_width + number % columns * (across + gap)
            y = head + number // columns * (down + head)
            canvas[y : y + down, x : x + across] = tile

    # Names above the images, and the legend of the parts
    figure, axes = canvas_figure(canvas, with_size(title, images), subtitle)
    for number, label in enumerate(labels):
        middle = margin + number % columns * (across + gap) + across / 2
        baseline = head + number // columns * (down + head) - 5
        name = fitted(label, across / DPI * 72, 6.5)
        axes.text(middle, baseline, name, fontsize=6.5, ha="center", va="baseline")
    # Entries in the colours of the parts
    if parts is not None:
        axes.legend(
            [Patch(color=colours(part)) for part in range(len(part_names))],
            part_names,
            loc="upper left",
            bbox_to_anchor=(margin, bottom),
            bbox_transform=axes.transData,
            borderaxespad=0,
            borderpad=0,
            ncols=in_line,
        )
    return figure


def _tile(images: Tensor, inches: float) -> tuple[int, int]:
    """Return the (height, width) in dots of a tile for images (..., H, W), `inches` wide at most.

    A small image gets a whole number of dots per pixel; a tall one is narrower.
    """
    height, width = images.shape[-2:]
    across = inches * DPI * min(math.sqrt(width / height), 1)
    dots = across / width
    if max(height, width) <= PIXELATED:
        dots = max(round(dots), 1)
    return max(round(dots * height), 1), round(dots * width)


def _distinct_colours(count: int) -> list[tuple[float, float, float]]:
    """Return colours whose neighbours are far apart on the colour wheel: golden-section steps."""
    golden = 0.618034
    colours = []
    for number in range(count):
        saturation = 0.45 + 0.35 * (number % 2)
        value = 0.95 - 0.15 * (number % 3)
        red, green, blue = hsv_to_rgb((number * golden % 1, saturation, value))
        colours.append((float(red), float(green), float(blue)))
    return colours


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
    layout = layout_for(len(rows), 0, len(columns), grid, size, roof=0.22, feet=1, bar=False)
    # A row of images, each with its name above and its text below
    mosaic = Mosaic(layout, grid)
    for block, images in enumerate(rows):
        mosaic.over(block, names[block], 9)
        for number, picture in enumerate(mosaic.tiles(images)):
            mosaic.paste(block, number, picture)
            mosaic.outline(block, number, patch)
            mosaic.above(block, number, columns[number])
            mosaic.below(block, number, words[block][number])
    keys = [(QUERY, "the patch that is the same in all images of a row")]
    return mosaic.figure(title, subtitle, keys=keys)
