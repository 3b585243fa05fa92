"""Pictures of pictures: reconstructions, and sheets of a data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import ListedColormap, hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from vit.figures.style import HIDDEN, INK, bare, plain, titled_figure


def reconstruction_figure(
    original: Tensor, filled: Tensor, hidden: Tensor, labels: Sequence[str], title: str, subtitle: str
) -> Figure:
    """Rows original, masked, filled in; a column an image.

    Args:
        original: (B, C, H, W) from 0 to 1.
        filled: likewise.
        hidden: bool (B, 1, H, W), True where the model did not see.
        labels: B names for the columns; may be empty strings.
        title: says what it is.
        subtitle: model, data, mask, and how hidden patches got their brightness.
    """
    rows = {
        "original": _pixels(original),
        "what the\nmodel sees": np.where(hidden.permute(0, 2, 3, 1).numpy(), np.array(HIDDEN), _pixels(original)),
        "filled in": _pixels(filled),
    }
    count = len(original)
    cell = min(1.0, 11 / count)
    height = cell * original.shape[-2] / original.shape[-1]
    left = 0.95
    figure, free = titled_figure(left + count * cell + 0.12, len(rows) * height + 0.32, title, subtitle)
    bottom = 0.08 / figure.get_figheight()
    grid = figure.add_gridspec(
        len(rows), count, left=left / figure.get_figwidth(), right=1 - 0.12 / figure.get_figwidth(),
        top=free - 0.22 / figure.get_figheight(), bottom=bottom, wspace=0.05, hspace=0.05,
    )  # fmt: skip
    for row, (name, pictures) in enumerate(rows.items()):
        for column, picture in enumerate(pictures):
            axes = figure.add_subplot(grid[row, column])
            axes.imshow(picture, interpolation="nearest")
            bare(axes)
            if row == 0:
                axes.set_title(plain(labels[column]), fontsize=8, color=INK, pad=3)
            if column == 0:
                axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9, color=INK, labelpad=6)
    return figure


def sheet_figure(
    images: Tensor,
    labels: Sequence[str],
    title: str,
    subtitle: str,
    columns: int = 10,
    parts: Tensor | None = None,
    part_names: Sequence[str] = (),
) -> Figure:
    """A sheet of images, beside it the part each pixel belongs to, where that is known.

    Args:
        images: uint8 (N, C, H, W).
        labels: N names; may be empty strings.
        title, subtitle: the heading.
        columns: images a row.
        parts: uint8 (N, H, W), an index into `part_names`.
        part_names: names of the parts, for the legend.
    """
    rows = -(-len(images) // columns)
    sides = 1 if parts is None else 2
    cell, head = 0.68, 0.17
    height = cell * images.shape[-2] / images.shape[-1] + head
    legend = 0.0 if parts is None else 0.3 + 0.2 * -(-len(part_names) // 8)
    width = sides * columns * cell + 0.3 * sides
    figure, free = titled_figure(width, rows * height + legend + 0.1, title, subtitle)
    colours = ListedColormap(_distinct_colours(len(part_names)))
    for side in range(sides):
        grid = figure.add_gridspec(
            rows, columns, left=(side + 0.15 / (width / sides)) / sides, right=(side + 1 - 0.15 / (width / sides)) / sides,
            top=free - head / figure.get_figheight(), bottom=(legend + 0.05) / figure.get_figheight(),
            wspace=0.06, hspace=0.3,
        )  # fmt: skip
        for index in range(len(images)):
            axes = figure.add_subplot(grid[index // columns, index % columns])
            bare(axes)
            if side == 0:
                axes.imshow(images[index].permute(1, 2, 0).numpy(), interpolation="nearest")
                axes.set_title(plain(labels[index])[:14], fontsize=6.5, color=INK, pad=2)
            elif parts is not None:
                axes.imshow(
                    parts[index].numpy(), cmap=colours, vmin=-0.5, vmax=len(part_names) - 0.5, interpolation="nearest"
                )
    if parts is not None:
        handles = [Patch(color=colours(i)) for i in range(len(part_names))]
        figure.legend(
            handles, [plain(name) for name in part_names], loc="lower center", ncols=8, fontsize=7, frameon=False
        )
    return figure


def _pixels(images: Tensor) -> np.ndarray:
    return images.permute(0, 2, 3, 1).numpy()


def _distinct_colours(count: int) -> list[tuple[float, float, float]]:
    golden = 0.618034  # steps of the golden section: neighbours in the list are far apart on the wheel
    return [tuple(hsv_to_rgb((i * golden % 1, 0.45 + 0.35 * (i % 2), 0.95 - 0.3 * (i % 3) / 2))) for i in range(count)]
