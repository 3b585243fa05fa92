"""Rows of small pictures for a page: one image file per row, cells side by side, all rows of one size.

A page enlarges them without smoothing and labels them in its own font. It shows through between cells, and a little where
something is hidden, so that one file serves a light page and a dark one; a row of ten images is a few kilobytes.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from torch import Tensor

from vit.figures.scale import PALETTE, Scale, enlarged, image_bytes, resized

LARGEST = 96
"""Most pixels a side: larger images are scaled down, so that a page of many rows stays small."""
GAP = 1
"""Transparent pixels between cells."""
VEIL = (128, 136, 148, 80)
"""The colour of a hidden pixel: an even grey, through which the page shows."""


def image_strip(images: Tensor, hidden: Tensor | None = None) -> bytes:
    """Return images (B, C, H, W) from 0 to 1 side by side, as a PNG; `hidden` bool (B, 1, H, W) is an even grey."""
    height, width = cell_of((images.shape[-2], images.shape[-1]))
    cells = _opaque(resized(image_bytes(images), (width, height)))
    if hidden is not None:
        cells[enlarged(hidden[:, 0].cpu().numpy(), (height, width))] = VEIL
    return _strip(cells)


def map_strip(maps: Tensor, image: tuple[int, int], scale: Scale) -> bytes:
    """Return maps (B, rows, columns) side by side, as a PNG, each as large as a cell of their (H, W) images."""
    places = np.asarray(scale(maps.detach().double().cpu().numpy()))
    return _strip(_opaque(PALETTE[(enlarged(places, cell_of(image)) * 255).round().astype(np.uint8)]))


def bar_strip() -> bytes:
    """Return the colours of maps from the lowest value, at the left, to the highest: a PNG of 256 x 1 pixels."""
    return _png(PALETTE[None])


def cell_of(image: tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) of a cell, in pixels: the image's own, scaled down to at most LARGEST a side."""
    smaller = min(LARGEST / max(image), 1)
    return max(round(image[0] * smaller), 1), max(round(image[1] * smaller), 1)


def _opaque(cells: np.ndarray) -> np.ndarray:
    """(B, height, width, 3) -> (B, height, width, 4), uint8."""
    return np.concatenate([cells, np.full_like(cells[..., :1], 255)], axis=-1)


def _strip(cells: np.ndarray) -> bytes:
    """Return cells (B, height, width, 4) side by side, as a PNG."""
    apart = np.pad(cells, ((0, 0), (0, 0), (0, GAP), (0, 0)))
    return _png(np.concatenate(list(apart), axis=1)[:, :-GAP])


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="png", optimize=True)
    return file.getvalue()
