"""Attention maps beside or over their images; the patches with most attention; what a masked model looks at."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from vit.figures.scale import SCALES, Scale, brightness, enlarged, in_multiples_of_even, short
from vit.figures.sheet import ABSENT, HIDDEN, QUERY, FigureError, Sheet, headings
from vit.figures.style import COLOURS, fitted, styled, text_width

Patch = tuple[int, int]
NO_PLACE = "tokens without a place in the image (class token, registers)"
ON_PATCHES = " on patches"
MOST = 0.9  # share of the attention: a map with less on patches says so beside its name
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
) -> Figure:
    """Draw where a model looks, image by image: a map for each head, layer or method.

    A line holds up to 13 panels, a sheet 480 pictures; images with one or two panels stand side by side if they share a scale.
    Notes at the foot explain the colours, the percentage and the marks; the caller names layer, head, query, model and data.

    An overlay lays values above even over the image in pale grey, higher ones more opaque, so that the image shows where
    attention is low. Its bar has a width, from black pixels to white ones, to hold every colour of the picture.

    Args:
        images: (B, C, H, W) from 0 to 1, C 1 or 3.
        maps: (B, P, rows, columns), never below 0 unless `unit` is given; nan where a patch was hidden from the model.
        panels: P names: "mean of heads", "head 0", "layer 3".
        labels: B names; may be empty strings.
        masses: (B, P), the share on tokens without a place in the image, 0 if there are none; if less than 90% is left for
            patches, that stands beside the name: "69% on patches", or "69%" on small pictures.
        query: (row, column) of the query patch, outlined: one for all images, or one per image.
        scale: "shared" by all maps, so that a strong head looks strong beside a weak one; "row", one per image; "log", shared
            and logarithmic.
        unit: None for shares of a whole, such as attention weights, drawn in multiples of an even share; else a word or two
            for the values, drawn as they are.
        what: the quantity shared out: "attention", "relevance".
        mark: what the outlined patch is.
        overlay: lay the maps over the images.

    Raises:
        ValueError: shapes, counts or the scale do not fit, or there are more pictures than one sheet holds.
    """
    panels = [""] if list(panels) == [what] else panels  # the notes say it
    drawn = ImageMaps(images, maps, panels, labels, masses, query, scale, unit, overlay)
    words = {"keys": drawn.keys(mark), "notes": drawn.notes(what)}
    sheet = drawn.sheet(1, images, title, subtitle, beside=scale != "row", **words)
    for block, picture in enumerate(sheet.pixels(images)):
        drawn.draw(sheet, block, picture, block)
    sheet.bars(drawn.scales, unit, scale == "row", overlay)
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
) -> Figure:
    """Draw the fewest patches that together hold a share of a map's attention to patches, as DINO does at 60%.

    They keep their colours inside an outline; all others are dimmed to grey. Their number stands below each picture.

    Args:
        kept: bool (B, P, rows, columns), True for the strongest.
        share: of the attention on patches, 0 to 1, that `kept` holds.
        images, maps, panels, labels, masses, query: as in `attention_figure`.

    Raises:
        ValueError: shapes or counts do not fit, or there are more pictures than one sheet holds.
    """
    drawn = ImageMaps(images, maps, panels, labels, masses, query)
    chosen, absent = kept.detach().bool().cpu().numpy(), np.isnan(drawn.values)
    notes = [
        f"Not dimmed: the fewest patches that together hold {share:.0%} of the attention on patches; their number stands below."
    ]
    if absent.any():
        notes.append("Patches that were hidden from the model are dimmed too, and not counted.")
    if drawn.some_elsewhere:
        notes.append(drawn.on_patches())
    keys = [(QUERY, "the patch that asks")] if drawn.queries else []
    sheet = drawn.sheet(
        1, images, title, subtitle, foot=32, beside=True, bar=False, keys=keys, notes=notes
    )
    names, size = headings(panels, drawn.shares, ON_PATCHES, sheet.room)
    most = drawn.grid[0] * drawn.grid[1]
    unit = " patches" if text_width(f"{most} of {most} patches", size) <= sheet.room else ""
    for block, (picture, axes) in enumerate(zip(sheet.pixels(images), sheet.axes, strict=True)):
        sheet.picture(axes[0], picture, fitted(labels[block], sheet.room, 8), 8)
        rest = dimmed(picture)
        for panel, name in enumerate(names[block]):
            one, here = axes[1 + panel], chosen[block, panel]
            pixels = np.where(enlarged(here, picture.shape)[..., None], picture, rest)
            sheet.picture(one, pixels, name, size, not sheet.top[block])
            sheet.border(one, here)
            count = f"{here.sum()} of {(~absent[block, panel]).sum()}{unit}"
            one.set_xlabel(count, fontsize=size, labelpad=3)
        for one in axes if drawn.queries else []:
            sheet.outline(one, drawn.queries[block])
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
) -> Figure:
    """Draw, image by image, the original, what the model sees, what it fills in, and where the decoder looks from one patch.

    In the maps, a stroke crosses each hidden patch, and each heading says how much of the attention is on visible ones.

    Args:
        hidden: bool (B, rows, columns), True for patches hidden from the model.
        filled: (B, C, H, W), as images.
        maps: (B, P, rows, columns), the decoder's attention weights from the patch to all patches.
        patch: (row, column) of the query patch, one per image; outlined.
        masses: (B, P), the share on tokens without a place in the image; None or 0 if all is on patches.
        images, panels, labels, scale: as in `attention_figure`.

    Raises:
        ValueError: shapes or counts do not fit, or there are more pictures than one sheet holds.
    """
    drawn = ImageMaps(images, maps, panels, labels, None, patch, scale)
    gone = hidden.detach().bool().cpu().numpy()
    visible = percent(1 - gone.mean())
    note = f"%: the share of the attention that falls on patches visible to the model; they are {visible} of all."
    if masses is not None and masses.any():
        note += f" What is on neither kind of patch stays on {NO_PLACE}."
    keys = [
        *drawn.keys(),
        (ABSENT, "hidden from the model"),
        (
            HIDDEN,
            "stroke over a map: this patch is hidden from the model, the decoder has only its place",
        ),
    ]
    sheet = drawn.sheet(
        len(LEAD), images, title, subtitle, roof=32, keys=keys, notes=[*drawn.notes(), note]
    )
    # Above each map, its name and the share of attention on visible patches.
    there = np.nan_to_num(maps.detach().double().cpu().numpy())
    whole = there.sum((-2, -1)) + (0 if masses is None else masses.detach().double().cpu().numpy())
    seen = (there * ~gone[:, None]).sum((-2, -1)) / np.where(whole > 0, whole, 1)
    shares = [[percent(share) for share in row] for row in seen]
    names, size = headings(panels, shares, " visible", sheet.room)
    (lead,), lead_size = headings(LEAD, [[""] * len(LEAD)], "", sheet.room)
    # The three pictures of each image, and its maps.
    for block, (original, filling) in enumerate(
        zip(sheet.pixels(images), sheet.pixels(filled), strict=True)
    ):
        axes, quiet = sheet.axes[block], not sheet.top[block]
        covered = np.where(
            enlarged(gone[block], original.shape)[..., None], to_rgb(COLOURS.absent), original
        )
        for one, picture, name in zip(axes, (original, covered, filling), lead, strict=False):
            sheet.picture(one, picture, name, lead_size, quiet)
        sheet.strokes(axes[1], gone[block], COLOURS.stroke)
        sheet.over(block, labels[block], 8.5)
        for one, value, name in zip(
            axes[len(LEAD) :], drawn.values[block], names[block], strict=True
        ):
            sheet.map(one, value, drawn.scales[block], name, size, quiet)
            sheet.strokes(one, gone[block])
        for one in axes:
            sheet.outline(one, drawn.queries[block])
    sheet.bars(drawn.scales, None, scale == "row")
    return sheet.figure


class ImageMaps:
    """The maps of images as they are drawn: values, their colours, and the words beside them.

    Takes arguments of `attention_figure`, and raises ValueError if they do not fit together.

    Attributes:
        values: (B, P, rows, columns), in `unit`, or in multiples of even if that is None.
        shares: the text beside the name of each map, B x P.
        queries: the query patch of each image; empty if not outlined.
        scales: one per image.
    """

    def __init__(
        self,
        images: Tensor,
        maps: Tensor,
        panels: Sequence[str],
        labels: Sequence[str],
        masses: Tensor | None,
        query: Patch | Sequence[Patch] | None,
        scale: str = "shared",
        unit: str | None = None,
        overlay: bool = False,
    ):
        if (
            maps.ndim != 4
            or len(maps) != len(images)
            or maps.shape[1] != len(panels)
            or len(labels) != len(images)
        ):
            raise FigureError(
                f"maps of shape {tuple(maps.shape)} do not fit {len(images)} images with {len(labels)} labels"
                f" and {len(panels)} panels: they are (images, panels, rows, columns)"
            )
        if scale not in SCALES:
            raise FigureError(f"scale is one of {', '.join(SCALES)}, got {scale!r}")
        self.panels, self.labels, self.scale, self.unit, self.overlay = (
            panels,
            labels,
            scale,
            unit,
            overlay,
        )
        values = maps.detach().double().cpu().numpy()
        self.values = values if unit else in_multiples_of_even(values)
        self.grid: tuple[int, int] = values.shape[2:]
        self.shares = [[""] * len(panels) for _ in labels]
        if masses is not None:
            on_patches = 1 - masses.detach().double().cpu().numpy()
            self.shares = [
                [percent(share) if share < MOST else "" for share in row] for row in on_patches
            ]
        self.some_elsewhere = masses is not None and bool(masses.any())
        self.queries: list[Any] = list(query or [])
        if self.queries and isinstance(self.queries[0], Integral):  # one for all images
            self.queries = [query] * len(images)
        rows, columns = self.grid
        for row, column in self.queries:
            if not (0 <= row < rows and 0 <= column < columns):
                raise FigureError(
                    f"there is no patch in row {row}, column {column} of a grid of {rows} x {columns}"
                )
        shared = Scale.of(self.values, scale == "log")
        self.scales = [Scale.of(image) if scale == "row" else shared for image in self.values]

    def sheet(self, lead: int, images: Tensor, title: str, subtitle: str, **options: Any) -> Sheet:
        """Return a sheet for images (B, C, H, W), each with `lead` pictures before its maps."""
        size = (images.shape[-2], images.shape[-1])
        return Sheet(
            len(images), lead, len(self.panels), self.grid, size, title, subtitle, **options
        )

    def draw(self, sheet: Sheet, block: int, picture: np.ndarray, image: int) -> None:
        """Draw an image (H, W, 3) and its maps as a block of a sheet."""
        names, size = headings(self.panels, self.shares, ON_PATCHES, sheet.room)
        first, *rest = sheet.axes[block]
        sheet.picture(first, picture, fitted(self.labels[image], sheet.room, 8), 8)
        for axes, value, name in zip(rest, self.values[image], names[image], strict=True):
            over = picture if self.overlay else None
            clear = 1.0 if self.unit is None else self.scales[image].low
            sheet.map(
                axes, value, self.scales[image], name, size, not sheet.top[block], over, clear
            )
        for axes in sheet.axes[block] if self.queries else []:
            sheet.outline(axes, self.queries[image])

    def keys(self, mark: str = "the patch that asks") -> list[tuple[str, str]]:
        """Return the entries of the legend: kind and words."""
        absent = (ABSENT, "a patch hidden from the model: no value, not zero")
        return [
            *([(QUERY, mark)] if self.queries else []),
            *([absent] if np.isnan(self.values).any() else []),
        ]

    def notes(self, what: str = "attention") -> list[str]:
        """Return sentences that say what the colours and the percentage mean."""
        values, absent = self.values, np.isnan(self.values)
        which = {
            "shared": "one scale for all maps",
            "row": "each image has a scale of its own, so compare within a row",
            "log": "one logarithmic scale for all maps",
        }[self.scale]
        notes = [f"Colour: {self.unit or f'{what} in multiples of even'}; {which}."]
        if self.unit is None:
            there = " that the model sees" if absent.any() else ""
            notes[0] += (
                f" 1 is what each patch would get of {what} spread evenly over all patches{there}."
            )
        if self.overlay:
            where = "Above even the map" if self.unit is None else "The map"
            notes.append(
                f"{where} covers the grey image, the more the higher its value; the bar has dark pixels at the left."
            )
        drawn, count, beyond = list(zip(values, self.scales, strict=True)), (~absent).sum(), []
        if (above := np.concatenate([image[image > scale.top] for image, scale in drawn])).size:
            beyond.append(
                f"{percent(above.size / count)} of the values lie above it, the highest {short(above.max())}"
            )
        if (below := np.concatenate([image[image < scale.low] for image, scale in drawn])).size:
            beyond.append(
                f"{percent(below.size / count)} of the values lie below it, the lowest {short(below.min())}"
            )
        if beyond:
            notes.append(f"Pointed end of a bar: {'; '.join(beyond)}.")
        if self.some_elsewhere:
            notes.append(self.on_patches(what))
        return notes

    def on_patches(self, what: str = "attention") -> str:
        """Return a sentence on how much of the attention the maps show."""
        if any(map(any, self.shares)):
            below = f"where that is below {MOST:.0%}; the rest stays on {NO_PLACE}."
            return f"%: the share of the {what} that falls on patches, {below}"
        return f"At least {MOST:.0%} of each map's {what} falls on patches, the rest on class token and registers."


def percent(share: float) -> str:
    """Return a share in whole percents; "<1%" and ">99%" are not none and all."""
    if 0 < share < 0.005:
        return "<1%"
    if 0.995 <= share < 0.9999:
        return ">99%"
    return f"{share:.0%}"


def dimmed(picture: np.ndarray) -> np.ndarray:
    """Return a picture (H, W, 3) from 0 to 1 in grey of low contrast, near the colour of the page."""
    grey = brightness(picture)[..., None].repeat(3, -1)
    return 0.66 + 0.26 * grey
