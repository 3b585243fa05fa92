"""Attention maps beside or over their images, and the attention of a masked model's decoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch as Swatch
from matplotlib.patheffects import Normal, Stroke
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from vit.figures.mosaic import (
    GAP,
    MARK,
    Tile,
    as_bytes,
    image_bytes,
    mosaic,
    outlined,
    resized,
    tile_size,
    to_bytes,
    with_size,
)
from vit.figures.scale import REDS, Scale, short
from vit.figures.style import COLOURS, evenly, styled

Patch = tuple[int, int]
MOST_A_LINE = 13
"""Maps side by side: the mean and twelve heads."""
# In dots: the width of a tile, which grows until a line of tiles is about 6 inches wide
NARROWEST_TILE = 135
WIDEST_TILE = 360
FILLED = 900
UNIFORM = "× uniform"
NO_PLACE = "tokens without a place in the image (class token, registers)"
MOST = 0.9
"""A map with less of its attention on patches has that as a percentage below it."""
SCALES = {
    "shared": "one scale for all maps",
    "row": "each image has its own scale: compare within a row",
    "log": "one logarithmic scale for all maps",
}
"""The scales of colours, by name, in words."""
OUTLINED = Swatch(
    facecolor=COLOURS.absent,
    edgecolor=MARK,
    linewidth=1.3,
    path_effects=[Stroke(linewidth=2.6, foreground=COLOURS.ink), Normal()],
)
ABSENT = Swatch(facecolor=COLOURS.absent, edgecolor=COLOURS.stroke, hatch="///", linewidth=0)
CROSSED = Swatch(facecolor=REDS(0.25), edgecolor=COLOURS.quiet, hatch="///", linewidth=0)


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
    """Draw attention maps beside their images: a map for each head, layer or method.

    Attention weights are drawn in multiples of uniform over the patches: white is that, red more,
    blue less. A line holds up to 13 maps; images with one or two maps stand side by side if they
    share a scale. Notes at the foot explain the colours, the percentage and the marks; the caller
    names layer, head, query, model and data.

    An overlay lays values above uniform over the image in pale grey, higher ones more opaque, so
    that the image shows where attention is low.

    Args:
        images: (B, C, H, W) from 0 to 1, C 1 or 3.
        maps: (B, P, rows, columns), never below 0 unless `unit` is given; nan where a patch was
            masked.
        panels: P names: "mean of heads", "head 0", "layer 3".
        labels: B names; may be empty strings.
        masses: (B, P), the share on tokens without a place in the image, 0 if there are none; a
            map with less than 90% on patches has "69% on patches" below it.
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
    sheet = Sheet(images, maps, beside=scale != "row")
    values, scales, notes = _scaled(maps, scale, unit, quantity, overlay)
    below, elsewhere = _on_patches(masses, maps, quantity)
    legend = {mark: OUTLINED} if query else {}
    if maps.isnan().any():
        legend["masked patch: no value, not zero"] = ABSENT
    tiles = []
    for image, picture in enumerate(sheet.image_tiles):
        own = scales[image % len(scales)]
        painted = [_painted(sheet, own, map_, picture) for map_ in values[image]]
        tiles.append([*map(Tile, [picture, *painted], [labels[image], *panels], below[image])])
    return sheet.figure(
        tiles,
        title,
        subtitle,
        query,
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
    masses: Tensor,
    query: Patch | Sequence[Patch] | None = None,
) -> Figure:
    """Draw the fewest patches that together hold a share of a map's attention, as DINO does at 60%.

    They keep their colours inside an outline; all others are dimmed to grey. Their number stands
    below each tile.

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
    sheet = Sheet(images, maps)
    present = ~maps.isnan()
    below, elsewhere = _on_patches(masses, maps)
    tiles = []
    for image, picture in enumerate(sheet.image_tiles):
        pictures = [picture]
        for panel, strongest in enumerate(kept[image].cpu().numpy()):
            pictures.append(_lit(picture, sheet.enlarged(strongest)))
            count = f"{strongest.sum()} of {present[image, panel].sum()} patches"
            below[image][1 + panel] = f"{count}\n{below[image][1 + panel]}"
        tiles.append([*map(Tile, pictures, [labels[image], *panels], below[image])])

    # There is no bar, since the colours are the images' own
    notes = [
        f"In colour: the fewest patches that together hold {share:.0%} of the attention on patches."
    ]
    if not present.all():
        notes.append("Masked patches are dimmed too and not counted.")
    legend = {"query patch": OUTLINED} if query else {}
    return sheet.figure(tiles, title, subtitle, query, legend=legend, notes=notes + elsewhere)


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
    masses: Tensor,
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
        masses: (B, P), the share on tokens without a place in the image, 0 if there are none.
        scale: "shared", "row" or "log", as in `attention_figure`.
    """
    sheet = Sheet(images, maps, lead=3)
    values, scales, notes = _scaled(maps, scale)
    masked = hidden.cpu().numpy()
    # The mean of values in multiples of uniform is a share; with the mass beside it, all are 1
    on_visible = (values * ~masked[:, None]).mean((-2, -1))
    note = f"%: attention on visible patches, which are {1 - masked.mean():.0%} of all patches."
    if masses.any():
        note += f" The attention on neither kind of patch is on {NO_PLACE}."

    # Masked patches are grey in the second tile, and crossed in the maps
    tiles = []
    reconstructions = sheet.tiles(filled)
    for image, original in enumerate(sheet.image_tiles):
        covered = _absent(sheet, original, masked[image])
        pictures = [original, covered, reconstructions[image]]
        strokes = sheet.strokes(masked[image])
        for map_ in values[image]:
            painted = _painted(sheet, scales[image % len(scales)], map_, original)
            pictures.append(_mixed(painted, COLOURS.quiet, 0.6 * strokes))
        names = [labels[image] or "original", "masked input", "reconstruction"]
        names += [f"decoder {panel}" for panel in panels]
        words = ["", "", "", *(f"{share:.0%} on visible" for share in on_visible[image])]
        tiles.append([*map(Tile, pictures, names, words)])
    return sheet.figure(
        tiles,
        title,
        subtitle,
        patch,
        legend={
            "query patch": OUTLINED,
            "masked patch": ABSENT,
            "masked patch in a map: the decoder has only its position": CROSSED,
        },
        scales=scales,
        unit=UNIFORM,
        notes=[*notes, note],
    )


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
    """
    sheet = Sheet(images, colours.movedim(-1, 1)[:, :1])
    tiles = []
    for label, picture, patches in zip(labels, sheet.image_tiles, colours.numpy(), strict=True):
        tiles.append([Tile(picture, label), Tile(sheet.enlarged(to_bytes(patches)))])
    notes = [
        "Patches with similar features have similar colours, across images too: red, green and"
        " blue are the first three principal components. A colour alone has no meaning."
    ]
    return sheet.figure(tiles, title, subtitle, notes=notes)


# --- The sheet -----------------------------------------------------------------------------------


class Sheet:
    """How images and their maps stand on a sheet, and how many dots a patch has.

    Tiles grow until a line of them is about 6 inches wide; images with one or two maps may stand
    side by side.

    Args:
        images: (B, C, H, W) from 0 to 1, C 1 or 3.
        maps: (B, P, rows, columns).
        lead: tiles of each image before its maps.
        beside: whether images may stand side by side.

    Attributes:
        patch: (height, width) of a patch in dots.
        image_tiles: uint8 (B, height, width, 3), the images as tiles.
    """

    def __init__(self, images: Tensor, maps: Tensor, lead: int = 1, beside: bool = True):
        # Maps in lines, and images with few maps side by side: six tiles in a row
        self.lead = lead
        self.a_line = evenly(maps.shape[1], MOST_A_LINE)
        tiles = lead + self.a_line
        self.across = evenly(len(images), 6 // tiles) if beside else 1

        # A whole number of dots for a patch
        self.size = images.shape[-2:]
        side = min(max(FILLED / (self.across * tiles) - GAP, NARROWEST_TILE), WIDEST_TILE)
        grid = np.array(maps.shape[2:])
        self.patch = np.maximum(tile_size(self.size, side) // grid, 1)
        self.tile = self.patch * grid
        self.image_tiles = self.tiles(images)

    def tiles(self, images: Tensor) -> np.ndarray:
        """Images (B, C, H, W) from 0 to 1 -> uint8 (B, height, width, 3), as large as a tile."""
        return resized(image_bytes(images), self.tile.tolist())

    def enlarged(self, values: np.ndarray) -> np.ndarray:
        """(rows, columns, ...) -> (height, width, ...), each dot with the value of its patch."""
        return values.repeat(self.patch[0], 0).repeat(self.patch[1], 1)

    def strokes(self, patches: np.ndarray) -> np.ndarray:
        """Bool (rows, columns) -> (height, width, 1): the opacity of strokes across the patches."""
        # The distance of each dot of a patch from its rising diagonal, in dots
        high, wide = self.patch
        y, x = np.indices((high, wide)) + 0.5
        distance = np.abs(y / high + x / wide - 1) * high * wide / math.hypot(high, wide)
        return np.kron(patches, np.clip(1.1 - distance, 0, 1))[..., None]

    def figure(
        self,
        images: Sequence[Sequence[Tile]],
        title: str,
        subtitle: str,
        query: Patch | Sequence[Patch] | None = None,
        **look: Any,
    ) -> Figure:
        """Draw the tiles of each image: the leading ones, then the maps, in lines.

        Args:
            images: tiles of each.
            title, subtitle: the heading.
            query: (row, column) of the patch to outline, of all images or of each; None for none.
            look: further arguments of `mosaic`.
        """
        rows: list[list[Tile | None]] = []
        first = self.lead + self.a_line
        for image, tiles in enumerate(images):
            row: list[Tile | None] = [*tiles]
            if query:
                patch = np.broadcast_to(query, (len(images), 2))[image]
                row = [
                    tile._replace(pixels=outlined(tile.pixels, patch, self.patch)) for tile in tiles
                ]
            # Images with few maps share a row; many maps go on below each other
            if image % self.across:
                rows[-1] += row
            else:
                rows.append(row[:first])
            for place in range(first, len(row), self.a_line):
                rows.append([*[None] * self.lead, *row[place : place + self.a_line]])
        return mosaic(rows, with_size(title, self.size), subtitle, group=first, **look)


# --- Tiles ---------------------------------------------------------------------------------------


def _painted(sheet: Sheet, scale: Scale, values: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Return a map as a tile, over the image in pale grey where its colours are not opaque."""
    rgba = sheet.enlarged(scale.paint(values))
    faded = 0.4 + 0.6 * brightness(under)
    picture = to_bytes(rgba[..., 3:] * rgba[..., :3] + (1 - rgba[..., 3:]) * faded)
    return _absent(sheet, picture, np.isnan(values))


def _absent(sheet: Sheet, picture: np.ndarray, patches: np.ndarray) -> np.ndarray:
    """Return a tile with patches grey and crossed: they have no value."""
    grey = _mixed(picture, COLOURS.absent, sheet.enlarged(patches)[..., None])
    return _mixed(grey, COLOURS.stroke, sheet.strokes(patches))


def _mixed(picture: np.ndarray, colour: str, opacity: np.ndarray) -> np.ndarray:
    return ((1 - opacity) * picture + opacity * as_bytes(colour)).round().astype(np.uint8)


def brightness(picture: np.ndarray) -> np.ndarray:
    """uint8 (..., 3) -> (..., 1): its brightness from 0 to 1, by the weights of Rec. 709."""
    return picture @ np.array([[0.2126], [0.7152], [0.0722]]) / 255


def dimmed(picture: np.ndarray) -> np.ndarray:
    """Return an image, uint8 (H, W, 3), in grey of low contrast, near the colour of the page."""
    return to_bytes((0.66 + 0.26 * brightness(picture)).repeat(3, -1))


def _lit(picture: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return a tile that is dimmed but for what is chosen (H, W), which has an outline."""
    lit = np.where(chosen[..., None], picture, dimmed(picture))
    # The outline: dots of which not all others within two steps are chosen
    inner = sliding_window_view(np.pad(chosen, 2), (5, 5)).all((-2, -1))
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
    """Return the values to draw, one scale for all or one per image, and notes on them."""
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
        note += f" 1 is uniform {quantity}"
        note += "." if overlay else " (white)."
    notes = [note]
    if overlay:
        which = "above uniform " if share else ""
        notes.append(f"Values {which}lie over the grey image; higher ones are more opaque.")
    above = np.concatenate([scale.values[scale.values > scale.top] for scale in scales])
    if above.size:
        part = above.size / (~np.isnan(values)).sum()
        highest = short(above.max())
        notes.append(f"{part:.1%} of the values lie above the bar, the highest {highest}.")
    return values, scales, notes


def _on_patches(
    masses: Tensor | None, maps: Tensor, quantity: str = "attention"
) -> tuple[list[list[str]], list[str]]:
    """Return the words below each image and its maps, B of 1 + P, and a note that explains them.

    Args:
        masses: (B, P), the share on tokens without a place in the image.
        maps: (B, P, rows, columns).
        quantity: what is shared out.
    """
    below = [[""] * (1 + maps.shape[1]) for _ in maps]
    if masses is None:
        return below, []
    # As written: 89.7% is 90%, and not below it
    shares = 1 - masses.detach().cpu().double().numpy()
    few = np.argwhere(shares.round(2) < MOST)
    for image, panel in few:
        below[image][1 + panel] = f"{shares[image, panel]:.0%} on patches"
    note = f"A percentage below a map is its {quantity} on patches, if less than {MOST:.0%}."
    note += f" The rest is on {NO_PLACE}."
    return below, [note] if few.size else []
