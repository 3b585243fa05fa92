"""Attention maps beside or over their images, and the attention of a masked model's decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from types import MappingProxyType
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch as Swatch
from matplotlib.patheffects import Normal, Stroke
from torch import Tensor

from vit.figures.mosaic import MARK, Sheet, Tile, as_bytes, brightness, to_bytes
from vit.figures.scale import Scale, short
from vit.figures.style import COLOURS, styled

Patch = tuple[int, int]
NO_PLACE = "tokens without a place in the image (class token, registers)"
UNIFORM = "× uniform"
MOST = 0.9
"""Share of the attention: a map with less on patches says so."""
SCALES = {
    "shared": "one scale for all maps",
    "row": "each image has its own scale, so compare within a row",
    "log": "one logarithmic scale for all maps",
}
"""Names of scales, and what they are."""
ON_MAPS = (COLOURS.quiet, 0.6)
"""A stroke over a map: colour and opacity."""
OUTLINED = Swatch(
    facecolor=COLOURS.absent,
    edgecolor=MARK,
    linewidth=1.3,
    path_effects=[Stroke(linewidth=2.6, foreground=COLOURS.ink), Normal()],
)
ABSENT = Swatch(facecolor=COLOURS.absent, edgecolor=ON_MAPS[0], hatch="///", linewidth=0)
CROSSED = Swatch(
    facecolor=matplotlib.colormaps[COLOURS.colours](0.25),
    edgecolor=ON_MAPS[0],
    hatch="///",
    linewidth=0,
)


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
    quantity: str = "attention",
    mark: str = "query patch",
    overlay: bool = False,
) -> Figure:
    """Draw where a model looks, image by image: a map for each head, layer or method.

    Shares are drawn in multiples of uniform: white is what every patch gets of attention spread
    evenly, red is more, blue is less. A line holds up to 13 maps, a sheet 480 pictures; images with
    one or two maps stand side by side if they share a scale. Notes at the foot explain the colours,
    the percentage and the marks; the caller names layer, head, query, model and data.

    An overlay lays values above uniform over the image in pale grey, higher ones more opaque, so
    that the image shows where attention is low.

    Args:
        images: (B, C, H, W) from 0 to 1, C 1 or 3.
        maps: (B, P, rows, columns), never below 0 unless `unit` is given; nan where a patch was
            masked.
        panels: P names: "mean of heads", "head 0", "layer 3".
        labels: B names; may be empty strings.
        masses: (B, P), the share on tokens without a place in the image, 0 if there are none; if
            less than 90% is left for patches, that stands below the map: "69% on patches".
        query: (row, column) of the query patch, outlined: one for all images, or one per image.
        scale: "shared" by all maps, so that a strong head looks strong beside a weak one; "row",
            one per image; "log", shared and logarithmic.
        unit: None for shares of a whole, such as attention weights, drawn in multiples of uniform;
            else a word or two for the values, drawn as they are.
        quantity: what is shared out: "attention", "relevance".
        mark: what the outlined patch is.
        overlay: lay the maps over the images.
    """
    # A row's own bar stands beside it, so images with scales of their own do not share rows
    sheet = Sheet(images, maps.shape[2:], len(panels), beside=scale != "row")
    values, scales, notes = _scaled(maps, scale, unit, quantity, overlay)
    pictures = []
    for picture, maps_of_image, scale_of_image in zip(
        sheet.pictures, values, cycle(scales), strict=False
    ):
        pictures.append(
            [picture, *(_painted(sheet, scale_of_image, map_, picture) for map_ in maps_of_image)]
        )
    below, elsewhere = _on_patches(masses, maps.shape[:2], quantity)
    legend = {"masked patch: no value, not zero": ABSENT} if maps.isnan().any() else {}
    return figure(
        sheet,
        pictures,
        labels,
        panels,
        below,
        query,
        title,
        subtitle,
        mark=mark,
        legend=legend,
        scales=scales,
        unit=unit or UNIFORM,
        notes=notes + elsewhere,
    )


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
    """Draw the fewest patches that together hold a share of a map's attention, as DINO does at 60%.

    They keep their colours inside an outline; all others are dimmed to grey. Their number stands
    below each picture.

    Args:
        images: (B, C, H, W) from 0 to 1, C 1 or 3.
        maps: (B, P, rows, columns); nan where a patch was masked.
        kept: bool (B, P, rows, columns), True for the strongest.
        panels: P names.
        labels: B names; may be empty strings.
        share: of the attention on patches, 0 to 1, that `kept` holds.
        masses: (B, P), the share on tokens without a place in the image, 0 if there are none.
        query: (row, column) of the query patch, outlined: one for all images, or one per image.
    """
    sheet = Sheet(images, maps.shape[2:], len(panels))
    strongest = kept.detach().bool().cpu().numpy()
    present = ~maps.isnan()
    below, elsewhere = _on_patches(masses, maps.shape[:2])
    pictures = []
    for image, picture in enumerate(sheet.pictures):
        pictures.append([picture])
        for panel, chosen in enumerate(strongest[image]):
            pictures[image].append(_lit(picture, sheet.enlarged(chosen)))
            count = f"{chosen.sum()} of {present[image, panel].sum()} patches"
            below[image][1 + panel] = f"{count}\n{below[image][1 + panel]}"

    # There is no bar, since the colours are the images' own
    notes = [
        f"In colour: the fewest patches that together hold {share:.0%} of the attention on patches."
    ]
    if not present.all():
        notes.append("Masked patches are dimmed too, and not counted.")
    return figure(
        sheet,
        pictures,
        labels,
        panels,
        below,
        query,
        title,
        subtitle,
        notes=notes + elsewhere,
    )


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
    """Draw original, masked input, reconstruction, and the decoder's attention.

    The query of the attention is one masked patch.

    In the maps, a stroke crosses each masked patch; the share of the attention on visible patches
    stands below each map.

    Args:
        images: (B, C, H, W) from 0 to 1, C 1 or 3.
        hidden: bool (B, rows, columns), True for masked patches.
        filled: (B, C, H, W), the images as the model reconstructs them.
        maps: (B, P, rows, columns), the decoder's attention weights from the patch to all patches.
        patch: (row, column) of the query patch, one per image; outlined.
        panels: P names.
        labels: B names; may be empty strings.
        masses: (B, P), the share on tokens without a place in the image; None or 0 if all is on
            patches.
        scale: "shared", "row" or "log", as in `attention_figure`.
    """
    sheet = Sheet(images, maps.shape[2:], len(panels), lead=3)
    reconstructions = sheet.tiles(filled)
    values, scales, notes = _scaled(maps, scale)
    masked = hidden.detach().bool().cpu().numpy()

    # The share of each map's attention on visible patches
    weights = maps.detach().cpu().double().numpy()
    total = weights.sum((-2, -1))
    note = f"%: share of the attention on visible patches, which are {percent(1 - masked.mean())}"
    note += " of all."
    if masses is not None and masses.any():
        total += masses.detach().cpu().double().numpy()
        note += f" What is on neither kind of patch stays on {NO_PLACE}."
    on_visible = (weights * ~masked[:, None]).sum((-2, -1)) / np.where(total > 0, total, 1)

    # Masked patches are grey in the second picture, and crossed in the maps
    pictures = []
    below = []
    scale_of = cycle(scales)
    for image, original in enumerate(sheet.pictures):
        strokes = sheet.strokes(masked[image])
        scale_of_image = next(scale_of)
        covered = _absent(sheet, original, masked[image])
        pictures.append([original, covered, reconstructions[image]])
        for map_ in values[image]:
            painted = _painted(sheet, scale_of_image, map_, original)
            pictures[image].append(_mixed(painted, ON_MAPS[0], ON_MAPS[1] * strokes))
        shares = [f"{percent(share)} on visible" for share in on_visible[image]]
        below.append(["", "", "", *shares])

    return figure(
        sheet,
        pictures,
        [label or "original" for label in labels],
        ["masked input", "reconstruction", *panels],
        below,
        patch,
        title,
        subtitle,
        legend={
            "masked patch": ABSENT,
            "masked patch in a map: the decoder has only its position": CROSSED,
        },
        scales=scales,
        unit=UNIFORM,
        notes=[*notes, note],
    )


def figure(
    sheet: Sheet,
    pictures: Sequence[Sequence[np.ndarray]],
    labels: Sequence[str],
    names: Sequence[str],
    below: Sequence[Sequence[str]],
    query: Patch | Sequence[Patch] | None,
    title: str,
    subtitle: str,
    *,
    mark: str = "query patch",
    legend: Mapping[str, Swatch] = MappingProxyType({}),
    **look: Any,
) -> Figure:
    """Draw pictures image by image, with names above, words below, and the query patch outlined.

    Args:
        sheet: how they stand.
        pictures: of each image, the image first.
        labels: a name for each image.
        names: of the other pictures of each image.
        below: words for each picture, in lines.
        query: (row, column) of the patch to outline, of all images or of each; None for none.
        title, subtitle: the heading.
        mark: what the outlined patch is.
        legend: what else is in the legend.
        look: scales, unit and notes, as `mosaic` takes them.
    """
    boxes: Any = [()] * len(pictures)
    if query:
        boxes = sheet.boxes(query)
        legend = {mark: OUTLINED, **legend}
    tiles = []
    for images_of_row, label, words, box in zip(pictures, labels, below, boxes, strict=True):
        parts = zip(images_of_row, [label, *names], words, strict=True)
        tiles.append([Tile(picture, name, lines, box) for picture, name, lines in parts])
    return sheet.figure(tiles, title, subtitle, legend=legend, **look)


# --- Pictures ------------------------------------------------------------------------------------


def _painted(sheet: Sheet, scale: Scale, values: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Return a map as a tile, over the image in pale grey where its colours are not opaque."""
    rgba = sheet.enlarged(scale.paint(values))
    faded = 0.4 + 0.6 * brightness(under)
    picture = to_bytes(rgba[..., 3:] * rgba[..., :3] + (1 - rgba[..., 3:]) * faded)
    return _absent(sheet, picture, np.isnan(values))


def _absent(sheet: Sheet, picture: np.ndarray, patches: np.ndarray) -> np.ndarray:
    """Return a tile with patches grey and crossed: they have no value."""
    covered = sheet.enlarged(patches)[..., None]
    grey = np.where(covered, as_bytes(COLOURS.absent), picture)
    return _mixed(grey, COLOURS.stroke, sheet.strokes(patches))


def _mixed(picture: np.ndarray, colour: str, opacity: np.ndarray) -> np.ndarray:
    return ((1 - opacity) * picture + opacity * as_bytes(colour)).round().astype(np.uint8)


def dimmed(picture: np.ndarray) -> np.ndarray:
    """Return a picture, uint8 (H, W, 3), in grey of low contrast, near the colour of the page."""
    return to_bytes((0.66 + 0.26 * brightness(picture)).repeat(3, -1))


def _lit(picture: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return a tile that is dimmed but for what is chosen (H, W), which has an outline."""
    lit = np.where(chosen[..., None], picture, dimmed(picture))
    # The outline: dots of which one two steps away, in either direction, is not chosen
    near = np.pad(chosen, 2)
    inner = near[:-4, 2:-2] & near[4:, 2:-2] & near[2:-2, :-4] & near[2:-2, 4:]
    lit[chosen & ~inner] = as_bytes(COLOURS.ink)
    return lit


# --- Values and words ----------------------------------------------------------------------------


def _scaled(
    maps: Tensor,
    kind: str,
    unit: str | None = None,
    quantity: str = "attention",
    overlay: bool = False,
) -> tuple[np.ndarray, list[Scale], list[str]]:
    """Return the values to draw, one scale for all or one per image, and what they mean."""
    values = maps.detach().cpu().double().numpy()
    share = unit is None
    # Shares become comparable between grids: 1 is uniform, whatever their size
    if share:
        values = values * (~np.isnan(values)).sum((-2, -1), keepdims=True)
    groups = values if kind == "row" else [values]
    scales = [Scale(group, share, kind == "log", overlay) for group in groups]

    # The colours, and values beyond the end of the bar
    note = f"Colour: {unit or f'{quantity} in multiples of uniform'}; {SCALES[kind]}."
    if share:
        note += " 1 is what a patch gets if all get the same"
        note += "." if overlay else ": white."
    notes = [note]
    if overlay:
        start = "Above uniform, the" if share else "The"
        notes.append(f"{start} map covers the grey image: the higher, the more opaque.")
    above = np.concatenate([scale.values[scale.values > scale.top] for scale in scales])
    if above.size:
        part = percent(above.size / (~np.isnan(values)).sum())
        highest = short(above.max())
        notes.append(f"{part} of the values lie above the bar, the highest {highest}.")
    return values, scales, notes


def _on_patches(
    masses: Tensor | None, shape: Sequence[int], quantity: str = "attention"
) -> tuple[list[list[str]], list[str]]:
    """Return the words below each image and its maps, (B, 1 + P), and a note that explains them.

    Args:
        masses: (B, P), the share on tokens without a place in the image.
        shape: (B, P).
        quantity: what is shared out.
    """
    count, panels = shape
    below = [[""] * (1 + panels) for _ in range(count)]
    if masses is None or not masses.any():
        return below, []
    # As written: 89.7% is 90%, and not below it
    shares = 1 - masses.detach().cpu().double().numpy()
    low = np.argwhere(shares.round(2) < MOST)
    for image, panel in low:
        below[image][1 + panel] = f"{percent(shares[image, panel])} on patches"
    if len(low):
        note = f"%: share of the {quantity} on patches, where it is below {MOST:.0%};"
        return below, [f"{note} the remainder stays on {NO_PLACE}."]
    note = f"At least {MOST:.0%} of each map's {quantity} falls on patches,"
    return below, [f"{note} the remainder on tokens without a place in the image."]


def percent(share: float) -> str:
    """Return a share in whole percents; "<1%" and ">99%" are not none and all."""
    # Not none, and not all
    if 0 < share < 0.005:
        return "<1%"
    if 0.995 <= share < 0.9999:
        return ">99%"
    return f"{share:.0%}"
