"""What a masked model sees, how it fills in the rest, and where its decoder looks for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from vit.figures.attention import Patch, checked, draw_bars, draw_panels, keys_of, notes_of, percent, scales_of
from vit.figures.layout import laid_out
from vit.figures.mosaic import SMALL, Sheet, enlarged, headings, pictures_of
from vit.figures.scale import in_multiples_of_even, to_bytes
from vit.figures.style import DPI, fitted, theme_of

LEAD = ("original", "what the model sees", "filled in")
ROOF = 32  # dots for the label over each row
HIDDEN_KEY = ("hidden", "stroke over a map: this patch is hidden from the model, the decoder has only its place")
GONE_KEY = ("absent", "hidden from the model")


def masked_figure(
    images: Tensor,
    hidden: Tensor,
    filled: Tensor,
    maps: Tensor,
    patch: Sequence[Patch],
    panels: Sequence[str],
    labels: Sequence[str],
    title: str,
    subtitle: str,
    *,
    masses: Tensor | None = None,
    scale: str = "shared",
    dark: bool = False,
) -> Figure:
    """Image by image: the original, what the model sees, how it fills in, and where the decoder looks from one patch.

    In the maps, a stroke crosses each hidden patch, and each heading says how much of the attention is on visible ones.

    Args:
        images: (B, C, H, W) from 0 to 1, C 1 or 3.
        hidden: bool (B, rows, columns), True where the model did not see.
        filled: as images.
        maps: (B, P, rows, columns), the decoder's attention weights from the patch to all patches.
        patch: (row, column) of the patch that asks, one for each image; outlined.
        panels: P names of heads or layers.
        labels, title, subtitle, scale, dark: as in `attention_figure`.
        masses: (B, P), what fell on tokens without a place in the picture; None where all fell on patches.

    Raises:
        ValueError: shapes or counts do not fit, or there are more pictures than one sheet holds.
    """
    theme = theme_of(dark)
    drawn = checked(images, maps, panels, labels, masses, patch)
    grid = drawn.grid
    if hidden.shape != (len(images), *grid):
        raise ValueError(f"hidden is (images, rows, columns), {(len(images), *grid)}, got {tuple(hidden.shape)}")
    if filled.shape != images.shape:
        raise ValueError(f"filled is of the images' shape, {tuple(images.shape)}, got {tuple(filled.shape)}")
    gone = hidden.detach().bool().cpu().numpy()
    values = in_multiples_of_even(drawn.values)
    scales = scales_of(values, scale)
    layout = laid_out(len(images), len(LEAD), len(panels), grid, (images.shape[-2], images.shape[-1]), roof=ROOF)
    parts = [[percent(share) for share in row] for row in shares_of_visible(drawn.values, drawn.masses, gone)]
    names, size, cut = headings(panels, [[f"{part} visible" for part in row] for row in parts], layout.width)
    if cut:  # the notes say it too
        names, size, _ = headings(panels, parts, layout.width)
    lead, lead_size, _ = headings(LEAD, [[""] * len(LEAD)], layout.width)
    seen = float(1 - gone.mean())
    notes = [
        *notes_of(values, scales, scale, None, False),
        f"%: the share of the attention that falls on patches visible to the model; they are {percent(seen)} of all."
        + (
            " What is on neither kind of patch stays on tokens without a place in the image (class token, registers)."
            if drawn.masses is not None
            else ""
        ),
    ]
    keys = [*keys_of(values, drawn.queries), GONE_KEY, HIDDEN_KEY]
    sheet = Sheet(layout, True, notes, keys, title, subtitle, theme)
    size_in = (layout.height, layout.width)
    originals, fillings = pictures_of(images, layout), pictures_of(filled, layout)
    for block, (original, filling) in enumerate(zip(originals, fillings, strict=True)):
        covered = np.where(enlarged(gone[block], size_in)[..., None], np.array(theme.absent), original)
        cells = [layout.cell(block, column) for column in range(len(LEAD))]
        asks = drawn.queries[block] if drawn.queries else (0, 0)
        for cell, picture, name in zip(cells, (original, covered, filling), lead[0], strict=True):
            sheet.picture(cell, to_bytes(picture))
            sheet.heading(cell, name, lead_size, theme.ink if block < layout.across else theme.quiet)
        sheet.strokes(cells[1], gone[block], theme.stroke)
        room = (layout.right - cells[0].x) / DPI * 72
        label = fitted(labels[block], room, SMALL + 1, "bold")
        sheet.text(cells[0].x, cells[0].y - layout.head - 1, label, SMALL + 1, theme.ink, weight="bold")
        draw_panels(sheet, block, values[block], names[block], size, scales[block])
        boxes = [layout.panel(block, panel) for panel in range(len(panels))]
        for box in boxes:
            sheet.strokes(box, gone[block])
        for box in (*cells, *boxes):
            sheet.outline(box, grid, asks)
    draw_bars(sheet, scales, scale, None)
    return sheet.figure


def shares_of_visible(maps: np.ndarray, masses: np.ndarray | None, hidden: np.ndarray) -> list[list[float]]:
    """The share of the attention that falls on visible patches: (B, P, rows, columns) -> B lists of P."""
    there = np.nan_to_num(maps)
    visible = (there * ~hidden[:, None]).sum((-2, -1))
    whole = there.sum((-2, -1)) + (0 if masses is None else masses)
    return (visible / np.where(whole > 0, whole, 1)).tolist()
