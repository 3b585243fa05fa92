"""Figures of images: reconstructions, mistakes, and contact sheets of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap, hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from vit.figures.mosaic import (
    Tile,
    as_bytes,
    image_bytes,
    mosaic,
    resized,
    tile_size,
    with_size,
)
from vit.figures.style import COLOURS, styled

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
        hidden: bool (B, rows, columns), True for masked patches.
        labels: B names for the columns; may be empty strings.
        subtitle: model, data, mask, and the source of the brightness of masked patches.
    """
    # Up to seven images fill the width; with more, they shrink to 90 dots
    size = tile_size(original.shape[2:], min(max(1050 / len(original), 90), 150))
    pixels = image_bytes(original)
    patch = np.array(original.shape[2:]) // hidden.shape[1:]
    covered = np.kron(hidden.numpy(), np.ones((1, *patch), bool))[..., None]
    masked = np.where(covered, as_bytes(COLOURS.absent), pixels)
    rows = [[*map(Tile, resized(pixels, size), labels)]]
    for pictures in (masked, image_bytes(filled)):
        rows.append([*map(Tile, resized(pictures, size))])
    return mosaic(rows, with_size(title, original.shape[2:]), subtitle, names=ROWS)


@styled
def mistakes_figure(
    images: Tensor, mistakes: Sequence[Mapping[str, Any]], title: str, subtitle: str
) -> Figure:
    """Draw wrongly classified images between their class and the prediction.

    Args:
        images: uint8 (M, C, H, W).
        mistakes: of each image its "class", what was "predicted", and the "confidence".
    """
    tiles = []
    pictures = resized(image_bytes(images / 255), tile_size(images.shape[2:], 150))
    for picture, mistake in zip(pictures, mistakes, strict=True):
        prediction = f"{mistake['predicted']}, {mistake['confidence']:.0%}"
        tiles.append(Tile(picture, mistake["class"], prediction))
    rows = [tiles[start : start + 6] for start in range(0, len(tiles), 6)]
    notes = ["Above each image: its class. Below: the prediction and its confidence."]
    return mosaic(rows, with_size(title, images.shape[2:]), subtitle, notes=notes)


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
    size = tile_size(images.shape[2:], 93)
    # The last row may be shorter
    free = [None] * (-len(labels) % columns)
    pictures = resized(image_bytes(images / 255), size)
    halves = [[*map(Tile, pictures, labels), *free]]
    legend = {}
    if parts is not None:
        colours = ListedColormap(_distinct_colours(len(part_names)))
        painted = resized(colours(parts.numpy(), bytes=True)[..., :3], size)
        halves.append([*map(Tile, painted), *free])
        legend = {name: Patch(color=colours(part)) for part, name in enumerate(part_names)}

    # Images at the left, parts at the right
    rows = []
    for start in range(0, len(labels), columns):
        rows.append([tile for half in halves for tile in half[start : start + columns]])
    return mosaic(rows, with_size(title, images.shape[2:]), subtitle, group=columns, legend=legend)


def _distinct_colours(count: int) -> np.ndarray:
    """Return colours (count, 3), neighbours far apart on the colour wheel: golden-section steps."""
    golden = 0.618034
    numbers = np.arange(count)
    saturation = 0.45 + 0.35 * (numbers % 2)
    value = 0.95 - 0.15 * (numbers % 3)
    return hsv_to_rgb(np.column_stack([numbers * golden % 1, saturation, value]))
