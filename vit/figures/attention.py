"""Attention maps beside the images they belong to, or over them."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from vit.figures.layout import laid_out
from vit.figures.mosaic import SMALL, Sheet, enlarged, headings, pictures_of
from vit.figures.scale import SCALES, Scale, blended, brightness, in_multiples_of_even, short, to_bytes
from vit.figures.style import DPI, fitted, theme_of

Patch = tuple[int, int]
ABSENT_KEY = ("absent", "a patch hidden from the model: no value, not zero")
QUERY_KEY = ("query", "the patch that asks")


def attention_figure(
    images: Tensor,
    maps: Tensor,
    panels: Sequence[str],
    labels: Sequence[str],
    title: str,
    subtitle: str,
    *,
    masses: Tensor | None = None,
    query: Patch | Sequence[Patch] | None = None,
    scale: str = "shared",
    unit: str | None = None,
    what: str = "attention",
    mark: str = "the patch that asks",
    overlay: bool = False,
    dark: bool = False,
) -> Figure:
    """Image by image, where something looks: a map for each head, or layer, or method.

    Up to 13 panels stand in one line and more go on in the next; images with one or two panels stand beside each other where
    they share a scale; a sheet holds 480 pictures. The notes at its foot say what the colours, the percentage and the marks
    mean; layer, head, query, model and data are the caller's to say.

    An overlay lays the map, at a fixed opacity of 50%, over the image in grey. The bar beside it is then as wide as the image
    is bright: each colour in the picture stands in it, at the height of its value and between black and white where its
    pixel lies, so that a bright pixel cannot pass for a strong weight.

    Args:
        images: (B, C, H, W) from 0 to 1, C 1 or 3.
        maps: (B, P, rows, columns), never below 0 unless `unit` is given; nan where a patch was hidden from the model.
        panels: P names: "mean of heads", "head 0", "layer 3".
        labels: B names; may be empty strings.
        title: says what it is.
        subtitle: model, data, layer, query.
        masses: (B, P), what fell on tokens that have no place in the picture; beside each name stands the rest of 1.
        query: (row, column) of the patch that asks, outlined: one for all images, or one for each.
        scale: "shared" by all maps, so that a strong head looks strong beside a weak one; "row", each image its own; "log",
            shared and logarithmic.
        unit: None for shares of a whole, as attention weights are: they are shown in multiples of an even share; else the
            name of what the maps hold, in a word or two, which is shown as it is.
        what: it is that is shared out: "attention", "relevance".
        mark: what the outlined patch is.
        overlay: lay the maps over the images.
        dark: for a dark page.

    Raises:
        ValueError: shapes, counts or the scale do not fit, or there are more pictures than one sheet holds.
    """
    theme = theme_of(dark)
    drawn = checked(images, maps, panels, labels, masses, query)
    values, grid = (drawn.values if unit else in_multiples_of_even(drawn.values)), drawn.grid
    scales = scales_of(values, scale)
    image = (images.shape[-2], images.shape[-1])
    layout = laid_out(len(values), 1, len(panels), grid, image, beside=scale != "row")
    names, size, _ = headings(panels, drawn.shares, layout.width)
    notes = notes_of(values, scales, scale, unit, drawn.masses is not None, overlay, what)
    sheet = Sheet(layout, True, notes, keys_of(values, drawn.queries, mark), title, subtitle, theme)
    for block, picture in enumerate(pictures_of(images, layout)):
        asks = drawn.queries[block] if drawn.queries else None
        draw_block(
            sheet, block, picture, labels[block], values[block], names[block], size, scales[block], asks, overlay
        )
    draw_bars(sheet, scales, scale, unit, overlay)
    return sheet.figure


class Drawn(NamedTuple):
    """What the figures take, checked: maps as numbers, the text beside each name, the patch that asks in each image."""

    values: np.ndarray
    grid: tuple[int, int]
    masses: np.ndarray | None
    shares: list[list[str]]
    queries: list[Patch] | None


def checked(
    images: Tensor,
    maps: Tensor,
    panels: Sequence[str],
    labels: Sequence[str],
    masses: Tensor | None,
    query: Patch | Sequence[Patch] | None,
) -> Drawn:
    """The arguments of a figure, see `attention_figure`.

    Raises:
        ValueError: they do not fit each other.
    """
    if maps.ndim != 4 or len(maps) != len(images) or maps.shape[1] != len(panels) or len(labels) != len(images):
        raise ValueError(
            f"maps of shape {tuple(maps.shape)} do not fit {len(images)} images with {len(labels)} labels"
            f" and {len(panels)} panels: they are (images, panels, rows, columns)"
        )
    values = maps.detach().double().cpu().numpy()
    grid = (values.shape[2], values.shape[3])
    if np.isinf(values).any():
        raise ValueError("maps hold infinite values")
    shares = [[""] * len(panels) for _ in labels]
    mass = None
    if masses is not None:
        if masses.shape != maps.shape[:2]:
            raise ValueError(f"masses are (images, panels), {tuple(maps.shape[:2])}, got {tuple(masses.shape)}")
        mass = masses.detach().double().cpu().numpy()
        shares = [[percent(1 - one) for one in row] for row in mass]
    return Drawn(values, grid, mass, shares, queries_of(query, len(images), grid))


def queries_of(query: Patch | Sequence[Patch] | None, count: int, grid: tuple[int, int]) -> list[Patch] | None:
    """The patch that asks in each of `count` images.

    Raises:
        ValueError: there is no such patch, or they are not as many as images.
    """
    if query is None:
        return None
    queries: list[Any] = [query] * count if all(isinstance(part, Integral) for part in query) else list(query)
    if len(queries) != count:
        raise ValueError(f"{len(queries)} patches that ask, for {count} images")
    result: list[Patch] = []
    for row, column in queries:
        if not (0 <= row < grid[0] and 0 <= column < grid[1]):
            raise ValueError(f"there is no patch in row {row}, column {column} of a grid of {grid[0]} x {grid[1]}")
        result.append((int(row), int(column)))
    return result


def scales_of(values: np.ndarray, scale: str) -> list[Scale]:
    """A scale for each image: the same for all, or each its own.

    Raises:
        ValueError: there is no such scale, or it is logarithmic and has negative values to show.
    """
    if scale not in SCALES:
        raise ValueError(f"scale is one of {', '.join(SCALES)}, got {scale!r}")
    if scale == "row":
        return [Scale.of(image) for image in values]
    if scale == "log" and (values < 0).any():
        raise ValueError("a logarithmic scale has no place for negative values")
    return [Scale.of(values, scale == "log")] * len(values)


def draw_block(
    sheet: Sheet,
    block: int,
    picture: np.ndarray,
    label: str,
    values: np.ndarray,
    names: Sequence[str],
    size: float,
    scale: Scale,
    query: Patch | None,
    overlay: bool = False,
) -> None:
    """One image and its maps (P, rows, columns)."""
    layout, grid = sheet.layout, values.shape[1:]
    cell = layout.cell(block, 0)
    sheet.picture(cell, to_bytes(picture))
    name = fitted(label, layout.width / DPI * 72, SMALL + 0.5)
    sheet.heading(cell, name, SMALL + 0.5, sheet.theme.ink)
    draw_panels(sheet, block, values, names, size, scale, brightness(picture) if overlay else None)
    if query is not None:
        for box in (cell, *(layout.panel(block, panel) for panel in range(len(values)))):
            sheet.outline(box, (grid[0], grid[1]), query)


def draw_panels(
    sheet: Sheet,
    block: int,
    values: np.ndarray,
    names: Sequence[str],
    size: float,
    scale: Scale,
    grey: np.ndarray | None = None,
) -> None:
    """The maps (P, rows, columns) of one image; over `grey` (height, width), where that is given."""
    layout, theme = sheet.layout, sheet.theme
    for panel, (one, name) in enumerate(zip(values, names, strict=True)):
        box = layout.panel(block, panel)
        painted = enlarged(scale.colours(one, theme), (box.height, box.width))
        if grey is not None:
            absent = enlarged(np.isnan(one), (box.height, box.width))
            painted = np.where(absent[..., None], painted, blended(painted, grey))
        sheet.picture(box, painted)
        sheet.strokes(box, np.isnan(one), theme.stroke)
        sheet.heading(box, name, size, theme.ink if block < layout.across else theme.quiet)


def draw_bars(sheet: Sheet, scales: Sequence[Scale], scale: str, unit: str | None, overlay: bool = False) -> None:
    """One bar for the sheet, or one for each image."""
    layout = sheet.layout
    # One bar for all need not be longer than is easy to read; it ends where a row ends.
    spans = [(block, block) for block in range(len(scales))] if scale == "row" else [(0, layout.tall(5))]
    for first, last in spans:
        room = layout.beside(first, last)
        box = room._replace(width=36 if overlay else 18)
        one = scales[first]
        strip = one.blended_strip(box.height, box.width) if overlay else one.strip(box.height, box.width)
        name = (unit or "× even") if first == 0 else ""
        sheet.bar(box, one, strip, name, even=unit is None)


def keys_of(values: np.ndarray, queries: list[Patch] | None, mark: str = QUERY_KEY[1]) -> list[tuple[str, str]]:
    """What of the marks a sheet needs to explain."""
    return [*([(QUERY_KEY[0], mark)] if queries else []), *([ABSENT_KEY] if np.isnan(values).any() else [])]


def notes_of(
    values: np.ndarray,
    scales: Sequence[Scale],
    scale: str,
    unit: str | None,
    masses: bool,
    overlay: bool = False,
    what: str = "attention",
) -> list[str]:
    """Sentences that say what the colours and the percentage mean."""
    shown = unit or f"{what} in multiples of even"
    which = {
        "shared": "one scale for all maps",
        "row": "each image has a scale of its own, so compare within a row",
        "log": "one logarithmic scale for all maps",
    }[scale]
    notes = [f"Colour: {shown}; {which}."]
    if unit is None:
        there = " that the model sees" if np.isnan(values).any() else ""
        notes[0] += f" 1 is what each patch would get of {what} spread evenly over all patches{there}."
    if overlay:
        notes.append(
            "The image lies in grey under the map: in the bar, its dark pixels are at the left, its bright ones at the right."
        )
    beyond = []
    for far, where, name, end in (
        ([row > one.top for row, one in zip(values, scales, strict=True)], "above", "highest", np.nanmax),
        ([row < one.low for row, one in zip(values, scales, strict=True)], "below", "lowest", np.nanmin),
    ):
        if np.any(far):
            share = np.sum(far) / (~np.isnan(values)).sum()
            most = short([end(values[np.asarray(far)])])[0]
            beyond.append(f"{percent(float(share))} of the values lie {where} it, the {name} {most}")
    if beyond:
        notes.append(f"Pointed end of a bar: {'; '.join(beyond)}.")
    if masses:
        notes.append(
            f"%: the share of the {what} that falls on patches; the rest stays on tokens without a place in the image"
            " (class token, registers)."
        )
    return notes


def percent(share: float) -> str:
    """A share as whole percents, but for what would look like none or all and is not."""
    if 0 < share < 0.005:
        return "<1%"
    if 0.995 <= share < 0.9999:
        return ">99%"
    return f"{share:.0%}"
