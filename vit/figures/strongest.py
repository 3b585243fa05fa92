"""The patches that hold most of the attention, cut out of their image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from vit.figures.attention import QUERY_KEY, Patch, checked
from vit.figures.layout import laid_out
from vit.figures.mosaic import NOTE, SMALL, Sheet, enlarged, headings, pictures_of
from vit.figures.scale import brightness, to_bytes
from vit.figures.style import DPI, fitted, text_width, theme_of

FOOT = 32  # dots for the count under a picture


def strongest_figure(
    images: Tensor,
    maps: Tensor,
    kept: Tensor,
    panels: Sequence[str],
    labels: Sequence[str],
    title: str,
    subtitle: str,
    *,
    share: float,
    masses: Tensor | None = None,
    query: Patch | Sequence[Patch] | None = None,
    dark: bool = False,
) -> Figure:
    """Image by image, the fewest patches that together hold a share of what a map gives to patches: DINO's picture, at 60%.

    They are shown as they are, within a line; all others are dimmed to grey. Under each picture stands how many they are.

    Args:
        images: (B, C, H, W) from 0 to 1, C 1 or 3.
        maps: (B, P, rows, columns); nan where a patch was hidden from the model.
        kept: bool (B, P, rows, columns), True for the strongest.
        panels, labels, title, subtitle, masses, query, dark: as in `attention_figure`.
        share: of the attention that falls on patches, 0 to 1, which `kept` holds.

    Raises:
        ValueError: shapes or counts do not fit, or there are more pictures than one sheet holds.
    """
    theme = theme_of(dark)
    drawn = checked(images, maps, panels, labels, masses, query)
    if kept.shape != maps.shape:
        raise ValueError(f"kept is of the shape of the maps, {tuple(maps.shape)}, got {tuple(kept.shape)}")
    chosen, absent = kept.detach().bool().cpu().numpy(), np.isnan(drawn.values)
    layout = laid_out(
        len(images), 1, len(panels), drawn.grid, (images.shape[-2], images.shape[-1]), foot=FOOT, beside=True
    )
    names, size, _ = headings(panels, drawn.shares, layout.width)
    notes = [
        f"Not dimmed: the fewest patches that together hold {share:.0%} of the attention on patches; their number stands below."
    ]
    if absent.any():
        notes.append("Patches that were hidden from the model are dimmed too, and not counted.")
    if drawn.masses is not None:
        notes.append(
            "%: the share of the attention that falls on patches; the rest stays on tokens without a place in the image"
            " (class token, registers)."
        )
    sheet = Sheet(layout, False, notes, [QUERY_KEY] if drawn.queries else [], title, subtitle, theme)
    patches = drawn.grid[0] * drawn.grid[1]
    room = layout.width / DPI * 72
    unit = " patches" if text_width(f"{patches} of {patches} patches", min(size, NOTE)) <= room else ""
    size_in = (layout.height, layout.width)
    for block, picture in enumerate(pictures_of(images, layout)):
        cell = layout.cell(block, 0)
        sheet.picture(cell, to_bytes(picture))
        sheet.heading(cell, fitted(labels[block], layout.width / DPI * 72, SMALL + 0.5), SMALL + 0.5, theme.ink)
        grey = dimmed(picture, dark)
        boxes = [cell]
        for panel, name in enumerate(names[block]):
            box = layout.panel(block, panel)
            boxes.append(box)
            here = chosen[block, panel]
            sheet.picture(box, to_bytes(np.where(enlarged(here, size_in)[..., None], picture, grey)))
            sheet.border(box, here)
            sheet.heading(box, name, size, theme.ink if block < layout.across else theme.quiet)
            there = int((~absent[block, panel]).sum())
            sheet.heading(box, f"{here.sum()} of {there}{unit}", min(size, NOTE), theme.quiet, below=True)
        if drawn.queries:
            for box in boxes:
                sheet.outline(box, drawn.grid, drawn.queries[block])
    return sheet.figure


def dimmed(picture: np.ndarray, dark: bool = False) -> np.ndarray:
    """(height, width, 3) from 0 to 1 -> grey, of little contrast, near the colour of the page: likewise (…, 3)."""
    grey = brightness(picture)[..., None].repeat(3, -1)
    return 0.10 + 0.22 * grey if dark else 0.66 + 0.26 * grey
