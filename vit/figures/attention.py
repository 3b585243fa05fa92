"""Attention maps beside the images they belong to, or over them; what they hold most of; what a masked model looks at."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from vit.figures.scale import SCALES, Scale, brightness, in_multiples_of_even, short
from vit.figures.sheet import ABSENT, HIDDEN, QUERY, FigureError, Sheet, headings
from vit.figures.style import fitted, styled, text_width, theme

Patch = tuple[int, int]
ABSENT_KEY = (ABSENT, "a patch hidden from the model: no value, not zero")
QUERY_KEY = (QUERY, "the patch that asks")
NO_PLACE = "tokens without a place in the image (class token, registers)"
LEAD = ("original", "what the model sees", "filled in")  # of a masked model's images


@styled
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
    given = checked(images, maps, panels, labels, masses, query)
    values = given.values if unit else in_multiples_of_even(given.values)
    scales = scales_of(values, scale)
    sheet = Sheet(
        len(values),
        1,
        len(panels),
        given.grid,
        (images.shape[-2], images.shape[-1]),
        title,
        subtitle,
        beside=scale != "row",
        keys=keys_of(values, given.queries, mark),
        notes=notes_of(values, scales, scale, unit, given.masses is not None, overlay, what),
    )
    draw_maps(sheet, images, values, given, panels, labels, scales, overlay)
    sheet.bars(scales, unit, scale == "row", overlay)
    return sheet.figure


@styled
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
    given = checked(images, maps, panels, labels, masses, query)
    if kept.shape != maps.shape:
        raise FigureError(f"kept is of the shape of the maps, {tuple(maps.shape)}, got {tuple(kept.shape)}")
    chosen, absent = kept.detach().bool().cpu().numpy(), np.isnan(given.values)
    notes = [
        f"Not dimmed: the fewest patches that together hold {share:.0%} of the attention on patches; their number stands below."
    ]
    if absent.any():
        notes.append("Patches that were hidden from the model are dimmed too, and not counted.")
    if given.masses is not None:
        notes.append(f"%: the share of the attention that falls on patches; the rest stays on {NO_PLACE}.")
    sheet = Sheet(
        len(images),
        1,
        len(panels),
        given.grid,
        (images.shape[-2], images.shape[-1]),
        title,
        subtitle,
        foot=32,
        beside=True,
        bar=False,
        keys=[QUERY_KEY] if given.queries else [],
        notes=notes,
    )
    names, size, _ = headings(panels, given.shares, sheet.room)
    most = given.grid[0] * given.grid[1]
    unit = " patches" if text_width(f"{most} of {most} patches", size) <= sheet.room else ""
    for block, (picture, axes) in enumerate(zip(sheet.pixels(images), sheet.axes, strict=True)):
        sheet.picture(axes[0], picture, fitted(labels[block], sheet.room, 8), 8)
        rest = dimmed(picture, dark)
        for panel, (one, name) in enumerate(zip(axes[1:], names[block], strict=True)):
            here = chosen[block, panel]
            sheet.picture(
                one, np.where(enlarged(here, picture.shape)[..., None], picture, rest), name, size, not sheet.top[block]
            )
            sheet.border(one, here)
            sheet.below(one, f"{here.sum()} of {(~absent[block, panel]).sum()}{unit}", size)
        for one in axes if given.queries else []:
            sheet.outline(one, given.queries[block])
    return sheet.figure


@styled
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
    given = checked(images, maps, panels, labels, masses, patch)
    if hidden.shape != (len(images), *given.grid):
        raise FigureError(f"hidden is (images, rows, columns), {(len(images), *given.grid)}, got {tuple(hidden.shape)}")
    if filled.shape != images.shape:
        raise FigureError(f"filled is of the images' shape, {tuple(images.shape)}, got {tuple(filled.shape)}")
    gone = hidden.detach().bool().cpu().numpy()
    values = in_multiples_of_even(given.values)
    scales = scales_of(values, scale)
    notes = [
        *notes_of(values, scales, scale, None, masses=False),
        f"%: the share of the attention that falls on patches visible to the model; they are {percent(1 - gone.mean())} of all."
        + (f" What is on neither kind of patch stays on {NO_PLACE}." if given.masses is not None else ""),
    ]
    keys = [
        *keys_of(values, given.queries),
        (ABSENT, "hidden from the model"),
        (HIDDEN, "stroke over a map: this patch is hidden from the model, the decoder has only its place"),
    ]
    sheet = Sheet(
        len(images),
        len(LEAD),
        len(panels),
        given.grid,
        (images.shape[-2], images.shape[-1]),
        title,
        subtitle,
        roof=32,
        keys=keys,
        notes=notes,
    )
    # Over each map its name and the share of the attention on visible patches.
    there = np.nan_to_num(given.values)
    whole = there.sum((-2, -1)) + (0 if given.masses is None else given.masses)
    seen = (there * ~gone[:, None]).sum((-2, -1)) / np.where(whole > 0, whole, 1)
    shares = [[percent(share) for share in row] for row in seen]
    names, size, cut = headings(panels, [[f"{share} visible" for share in row] for row in shares], sheet.room)
    if cut:  # the notes say it too
        names, size, _ = headings(panels, shares, sheet.room)
    (lead,), lead_size, _ = headings(LEAD, [[""] * len(LEAD)], sheet.room)
    for block, (original, filling) in enumerate(zip(sheet.pixels(images), sheet.pixels(filled), strict=True)):
        axes, quiet = sheet.axes[block], not sheet.top[block]
        covered = np.where(enlarged(gone[block], original.shape)[..., None], to_rgb(theme().absent), original)
        for one, picture, name in zip(axes, (original, covered, filling), lead, strict=False):
            sheet.picture(one, picture, name, lead_size, quiet)
        sheet.strokes(axes[1], gone[block], theme().stroke)
        sheet.over(block, labels[block], 8.5)
        for one, value, name in zip(axes[len(LEAD) :], values[block], names[block], strict=True):
            sheet.map(one, value, scales[block], name, size, quiet)
            sheet.strokes(one, gone[block])
        for one in axes:
            sheet.outline(one, given.queries[block])
    sheet.bars(scales, None, scale == "row")
    return sheet.figure


class Given(NamedTuple):
    """What the figures take, checked: maps as numbers, the text beside each name, the patch that asks in each image."""

    values: np.ndarray
    grid: tuple[int, int]
    masses: np.ndarray | None
    shares: list[list[str]]
    queries: list[Patch]


def checked(
    images: Tensor,
    maps: Tensor,
    panels: Sequence[str],
    labels: Sequence[str],
    masses: Tensor | None,
    query: Patch | Sequence[Patch] | None,
) -> Given:
    """The arguments of a figure, see `attention_figure`.

    Raises:
        ValueError: they do not fit each other.
    """
    if maps.ndim != 4 or len(maps) != len(images) or maps.shape[1] != len(panels) or len(labels) != len(images):
        raise FigureError(
            f"maps of shape {tuple(maps.shape)} do not fit {len(images)} images with {len(labels)} labels"
            f" and {len(panels)} panels: they are (images, panels, rows, columns)"
        )
    values = maps.detach().double().cpu().numpy()
    rows, columns = values.shape[2:]
    if np.isinf(values).any():
        raise FigureError("maps hold infinite values")
    shares, mass = [[""] * len(panels) for _ in labels], None
    if masses is not None:
        if masses.shape != maps.shape[:2]:
            raise FigureError(f"masses are (images, panels), {tuple(maps.shape[:2])}, got {tuple(masses.shape)}")
        mass = masses.detach().double().cpu().numpy()
        shares = [[percent(1 - one) for one in row] for row in mass]
    asks: list[Any] = []
    if query is not None:
        asks = [query] * len(images) if all(isinstance(part, Integral) for part in query) else list(query)
        if len(asks) != len(images):
            raise FigureError(f"{len(asks)} patches that ask, for {len(images)} images")
    for row, column in asks:
        if not (0 <= row < rows and 0 <= column < columns):
            raise FigureError(f"there is no patch in row {row}, column {column} of a grid of {rows} x {columns}")
    return Given(values, (rows, columns), mass, shares, [(int(row), int(column)) for row, column in asks])


def scales_of(values: np.ndarray, scale: str) -> list[Scale]:
    """A scale for each image: the same for all, or each its own.

    Raises:
        ValueError: there is no such scale, or it is logarithmic and has negative values to show.
    """
    if scale not in SCALES:
        raise FigureError(f"scale is one of {', '.join(SCALES)}, got {scale!r}")
    if scale == "row":
        return [Scale.of(image) for image in values]
    if scale == "log" and (values < 0).any():
        raise FigureError("a logarithmic scale has no place for negative values")
    return [Scale.of(values, scale == "log")] * len(values)


def draw_maps(
    sheet: Sheet,
    images: Tensor,
    values: np.ndarray,
    given: Given,
    panels: Sequence[str],
    labels: Sequence[str],
    scales: Sequence[Scale],
    overlay: bool,
) -> None:
    """Draw each image and its maps (B, P, rows, columns)."""
    names, size, _ = headings(panels, given.shares, sheet.room)
    for block, (picture, axes) in enumerate(zip(sheet.pixels(images), sheet.axes, strict=True)):
        sheet.picture(axes[0], picture, fitted(labels[block], sheet.room, 8), 8)
        for one, value, name in zip(axes[1:], values[block], names[block], strict=True):
            sheet.map(one, value, scales[block], name, size, not sheet.top[block], picture if overlay else None)
        for one in axes if given.queries else []:
            sheet.outline(one, given.queries[block])


def keys_of(values: np.ndarray, queries: list[Patch], mark: str = QUERY_KEY[1]) -> list[tuple[str, str]]:
    """Legend entries that maps (B, P, rows, columns) need."""
    return [*([(QUERY, mark)] if queries else []), *([ABSENT_KEY] if np.isnan(values).any() else [])]


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
    which = {
        "shared": "one scale for all maps",
        "row": "each image has a scale of its own, so compare within a row",
        "log": "one logarithmic scale for all maps",
    }[scale]
    notes = [f"Colour: {unit or f'{what} in multiples of even'}; {which}."]
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
            beyond.append(
                f"{percent(share)} of the values lie {where} it, the {name} {short(end(values[np.asarray(far)]))}"
            )
    if beyond:
        notes.append(f"Pointed end of a bar: {'; '.join(beyond)}.")
    if masses:
        notes.append(f"%: the share of the {what} that falls on patches; the rest stays on {NO_PLACE}.")
    return notes


def percent(share: float) -> str:
    """A share as whole percents, but for what would look like none or all and is not."""
    if 0 < share < 0.005:
        return "<1%"
    if 0.995 <= share < 0.9999:
        return ">99%"
    return f"{share:.0%}"


def dimmed(picture: np.ndarray, dark: bool = False) -> np.ndarray:
    """(H, W, 3) from 0 to 1 -> grey, of little contrast, near the colour of the page: likewise (H, W, 3)."""
    grey = brightness(picture)[..., None].repeat(3, -1)
    return 0.10 + 0.22 * grey if dark else 0.66 + 0.26 * grey


def enlarged(grid: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """(rows, columns) -> (H, W), each pixel that of its patch."""
    rows, columns = (np.arange(pixels) * old // pixels for pixels, old in zip(size, grid.shape, strict=False))
    return grid[rows[:, None], columns]
