"""Attention maps beside or over their images, and the attention of a masked model's decoder."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from vit.errors import UserError
from vit.figures.mosaic import (
    ABSENT,
    MASKED,
    ON_MAPS,
    QUERY,
    ColourBar,
    Layout,
    Mosaic,
    layout_for,
    with_size,
)
from vit.figures.scale import (
    SCALES,
    Scale,
    brightness,
    enlarged,
    faded,
    in_multiples_of_uniform,
    overlay_colours,
    short,
    to_bytes,
)
from vit.figures.style import COLOURS, styled

Patch = tuple[int, int]
NO_PLACE = "tokens without a place in the image (class token, registers)"
MOST = 0.9
"""Share of the attention: a map with less on patches says so."""
LEAD = ("original", "masked input", "reconstruction")
"""The three pictures of each image that a masked model gets."""


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
        what: the quantity shared out: "attention", "relevance".
        mark: what the outlined patch is.
        overlay: lay the maps over the images.

    Raises:
        UserError: shapes, counts or the scale do not fit, or there are more pictures than one sheet
            holds.
    """
    # What is drawn: values, colours, words
    image_maps = ImageMaps(images, maps, panels, labels, masses, query, scale, unit, overlay)
    # A row's own bar stands beside it, so images with scales of their own do not share rows
    layout = image_maps.layout(1, beside=scale != "row")
    mosaic = Mosaic(layout, image_maps.grid)
    for block, picture in enumerate(mosaic.tiles(images)):
        image_maps.draw(mosaic, block, picture)
    return mosaic.figure(
        with_size(title, images),
        subtitle,
        keys=image_maps.keys(mark),
        notes=image_maps.notes(what),
        bars=image_maps.bars(each=scale == "row"),
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

    Raises:
        UserError: shapes or counts do not fit, or there are more pictures than one sheet holds.
    """
    image_maps = ImageMaps(images, maps, panels, labels, masses, query)
    _require_shape("kept patches", kept, maps.shape)
    strongest = kept.detach().bool().cpu().numpy()
    absent = np.isnan(image_maps.values)
    layout = image_maps.layout(1, feet=1, beside=True, bar=False)
    mosaic = Mosaic(layout, image_maps.grid)

    # Each image, and for each map the image dimmed where attention is low
    for block, picture in enumerate(mosaic.tiles(images)):
        image_maps.draw_image(mosaic, block, picture)
        dim = dimmed(picture)
        for panel in range(len(panels)):
            number = 1 + panel
            chosen = strongest[block, panel]
            bright = enlarged(chosen, layout.tile)[..., None]
            mosaic.paste(block, number, np.where(bright, picture, dim))
            mosaic.border(block, number, chosen)
            image_maps.draw_name(mosaic, block, panel)
            total = (~absent[block, panel]).sum()
            mosaic.below(block, number, f"{chosen.sum()} of {total}", "patches")
            if image_maps.shares[block][panel]:
                mosaic.below(block, number, image_maps.shares[block][panel], "on patches", line=1)
        image_maps.draw_query(mosaic, block)

    # What the picture means; there is no bar, since the colours are the images' own
    notes = [
        f"In colour: the fewest patches that together hold {share:.0%} of the attention on patches."
    ]
    if absent.any():
        notes.append("Masked patches are dimmed too, and not counted.")
    if image_maps.some_elsewhere:
        notes.append(image_maps.on_patches())
    keys = [(QUERY, "query patch")] if image_maps.queries else []
    return mosaic.figure(with_size(title, images), subtitle, keys=keys, notes=notes)


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

    Raises:
        UserError: shapes or counts do not fit, or there are more pictures than one sheet holds.
    """
    # The share on patches is not written below these maps, but the share on visible ones
    image_maps = ImageMaps(images, maps, panels, labels, None, patch, scale)
    _require_shape("hidden patches", hidden, (len(images), *image_maps.grid))
    _require_shape("filled images", filled, images.shape)
    if masses is not None:
        _require_shape("masses", masses, maps.shape[:2])
    masked = hidden.detach().bool().cpu().numpy()
    lead = len(LEAD)
    layout = image_maps.layout(lead, names=[*LEAD, *panels], feet=1)
    mosaic = Mosaic(layout, image_maps.grid)

    # The share of each map's attention on visible patches
    weights = np.nan_to_num(maps.detach().cpu().double().numpy())
    total = weights.sum((-2, -1))
    if masses is not None:
        total = total + masses.detach().cpu().double().numpy()
    on_visible = (weights * ~masked[:, None]).sum((-2, -1)) / np.where(total > 0, total, 1)

    # The three pictures of each image, and its maps
    absent = to_bytes(np.array(to_rgb(COLOURS.absent)))
    originals = mosaic.tiles(images)
    reconstructions = mosaic.tiles(filled)
    for block, original in enumerate(originals):
        # Masked patches are grey in the second picture
        covered = enlarged(masked[block], layout.tile)[..., None]
        pictures = (original, np.where(covered, absent, original), reconstructions[block])
        # Names of columns stand in the first row; the image's own stands above its original
        names = (labels[block] or LEAD[0], *LEAD[1:])
        for number, picture in enumerate(pictures):
            mosaic.paste(block, number, picture)
            if number == 0 or block == 0:
                mosaic.above(block, number, names[number])
        mosaic.cross(block, 1, masked[block])
        for panel in range(len(panels)):
            number = lead + panel
            image_maps.draw_map(mosaic, block, panel)
            image_maps.draw_name(mosaic, block, panel)
            # Strokes on the map, for patches whose content the decoder does not have
            mosaic.cross(block, number, masked[block], ON_MAPS)
            mosaic.below(block, number, percent(on_visible[block, panel]), "on visible")
        image_maps.draw_query(mosaic, block)

    # What the picture means
    visible = percent(1 - masked.mean())
    note = f"%: share of the attention on visible patches, which are {visible} of all."
    if masses is not None and masses.any():
        note += f" What is on neither kind of patch stays on {NO_PLACE}."
    keys = [
        *image_maps.keys(),
        (ABSENT, "masked patch"),
        (MASKED, "masked patch in a map: the decoder has only its position"),
    ]
    notes = [*image_maps.notes(), note]
    bars = image_maps.bars(each=scale == "row")
    return mosaic.figure(with_size(title, images), subtitle, keys=keys, notes=notes, bars=bars)


class ImageMaps:
    """The maps of images as they are drawn: values, their colours, and the words beside them.

    Takes arguments of `attention_figure`, and raises UserError if they do not fit together.

    Attributes:
        values: (B, P, rows, columns), in `unit`, or in multiples of uniform if that is None.
        shares: the share on patches below each map, B x P; empty strings for most.
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
        # Refuse what does not fit together
        counts_fit = len(maps) == len(images) == len(labels)
        if maps.ndim != 4 or not counts_fit or maps.shape[1] != len(panels):
            raise UserError(
                f"maps of shape {tuple(maps.shape)} do not fit {len(images)} images with"
                f" {len(labels)} labels and {len(panels)} panels:"
                " they are (images, panels, rows, columns)"
            )
        if scale not in SCALES:
            raise UserError(f"scale is one of {', '.join(SCALES)}, got {scale!r}")
        if masses is not None:
            _require_shape("masses", masses, maps.shape[:2])
        self.panels = panels
        self.labels = labels
        self.scale = scale
        self.unit = unit
        self.overlay = overlay
        self.image_size = (images.shape[-2], images.shape[-1])

        # Values in the unit of the picture, and their colours
        values = maps.detach().cpu().double().numpy()
        centre = None
        if unit is None:
            # Shares become comparable between grids: 1 is uniform, whatever their size
            values = in_multiples_of_uniform(values)
            centre = 1.0
        self.values = values
        self.grid: tuple[int, int] = values.shape[2:]
        self.scales = [Scale.of(values, scale == "log", centre)] * len(images)
        if scale == "row":
            self.scales = [Scale.of(image, centre=centre) for image in values]

        # The share of the attention that the maps show
        self.some_elsewhere = masses is not None and bool(masses.any())
        self.shares = [[""] * len(panels) for _ in labels]
        if masses is not None:
            on_patches = 1 - masses.detach().cpu().double().numpy()
            # As written: 89.7% is 90%, and not below it
            for image, panel in np.argwhere(on_patches.round(2) < MOST):
                self.shares[image][panel] = percent(on_patches[image, panel])
        self.some_low = any(any(row) for row in self.shares)

        # The outlined patches: one for all images, or one per image
        self.queries: list[Any] = list(query or [])
        if self.queries and isinstance(self.queries[0], Integral):
            self.queries = [query] * len(images)
        if self.queries and len(self.queries) != len(images):
            raise UserError(f"{len(self.queries)} query patches do not fit {len(images)} images")
        rows, columns = self.grid
        for row, column in self.queries:
            if not (0 <= row < rows and 0 <= column < columns):
                raise UserError(
                    f"there is no patch in row {row}, column {column} of a grid of"
                    f" {rows} x {columns}"
                )

    def layout(
        self,
        lead: int,
        *,
        names: Sequence[str] | None = None,
        feet: int = 0,
        beside: bool = False,
        bar: bool = True,
    ) -> Layout:
        """Return the layout of a sheet of images, each with `lead` pictures before its maps.

        `names` are those above the pictures that are not to be cut; None for the panels' and, of
        images side by side, the images' own.
        """
        if names is None:
            names = [*self.panels, *self.labels] if beside else self.panels
        return layout_for(
            len(self.labels),
            lead,
            len(self.panels),
            self.grid,
            self.image_size,
            # A line below the pictures where a map has a low share on patches
            feet=feet + self.some_low,
            beside=beside,
            bar=bar,
            names=names,
        )

    def draw(self, mosaic: Mosaic, block: int, picture: np.ndarray) -> None:
        """Draw an image, uint8 (height, width, 3), and its maps as a block of a sheet."""
        self.draw_image(mosaic, block, picture)
        for panel in range(len(self.panels)):
            self.draw_map(mosaic, block, panel, under=picture)
            self.draw_name(mosaic, block, panel)
            if self.shares[block][panel]:
                mosaic.below(block, 1 + panel, self.shares[block][panel], "on patches")
        self.draw_query(mosaic, block)

    def draw_image(self, mosaic: Mosaic, block: int, picture: np.ndarray) -> None:
        """Draw an image under its name, without its maps."""
        mosaic.paste(block, 0, picture)
        mosaic.above(block, 0, self.labels[block])

    def draw_map(
        self, mosaic: Mosaic, block: int, panel: int, under: np.ndarray | None = None
    ) -> None:
        """Draw a map, over the image `under` it if there is an overlay."""
        # A colour for each patch, uint8 (rows, columns, 3)
        values = self.values[block, panel]
        absent = np.isnan(values)
        scale = self.scales[block]
        size = mosaic.layout.tile
        patches = scale.colours(scale(values), bytes=True)[..., :3]
        # Each patch becomes a whole number of dots
        picture = enlarged(np.moveaxis(patches, -1, 0), size)
        picture = np.moveaxis(picture, 0, -1)
        if self.overlay and under is not None:
            rgba = overlay_colours(self.unit is None)(scale(np.nan_to_num(values)))
            # Laid over the pale image; a masked patch stays opaque
            rgba = np.moveaxis(enlarged(np.moveaxis(rgba, -1, 0), size), 0, -1)
            mixed = rgba[..., 3:] * rgba[..., :3] + (1 - rgba[..., 3:]) * faded(under / 255)
            picture = np.where(enlarged(absent, size)[..., None], picture, to_bytes(mixed))
        number = mosaic.layout.lead + panel
        mosaic.paste(block, number, picture)
        mosaic.cross(block, number, absent)

    def draw_name(self, mosaic: Mosaic, block: int, panel: int) -> None:
        """Write the name of a map above it: in the first row, or in all if lines differ."""
        # Below it, the columns are the same
        layout = mosaic.layout
        if block < layout.across or layout.lines > 1:
            mosaic.above(block, layout.lead + panel, self.panels[panel])

    def draw_query(self, mosaic: Mosaic, block: int) -> None:
        """Outline the query patch in all pictures of a block."""
        if self.queries:
            for number in range(mosaic.layout.lead + len(self.panels)):
                mosaic.outline(block, number, self.queries[block])

    def bars(self, each: bool) -> list[ColourBar]:
        """Return the colour bar of the sheet, or of `each` row."""
        unit = self.unit or "× uniform"
        bars = [ColourBar(scale, unit, self.overlay) for scale in self.scales]
        return bars if each else bars[:1]

    def keys(self, mark: str = "query patch") -> list[tuple[str, str]]:
        """Return the entries of the legend: kind and words."""
        # Only marks that are in the picture
        keys = []
        if self.queries:
            keys.append((QUERY, mark))
        if np.isnan(self.values).any():
            keys.append((ABSENT, "masked patch: no value, not zero"))
        return keys

    def notes(self, quantity: str = "attention") -> list[str]:
        """Return sentences that say what the colours and the percentage mean."""
        # The colours
        absent = np.isnan(self.values)
        scales = {
            "shared": "one scale for all maps",
            "row": "each image has its own scale, so compare within a row",
            "log": "one logarithmic scale for all maps",
        }
        if self.unit is None:
            scales["log"] = "one scale for all maps, logarithmic below and above uniform"
        words = self.unit or f"{quantity} in multiples of uniform"
        colour = f"Colour: {words}; {scales[self.scale]}."
        if self.unit is None:
            visible = "visible patches" if absent.any() else "patches"
            meaning = f"1 is what each patch gets if all {visible} get the same"
            counts = np.unique((~absent).sum((-2, -1)))
            if len(counts) == 1:
                meaning = f"1 is 1/{counts[0]} of the {quantity}, the same for all {visible}"
            if not self.overlay:
                meaning += ": white"
            colour += f" {meaning}."
        notes = [colour]
        if self.overlay:
            start = "Above uniform, the" if self.unit is None else "The"
            notes.append(f"{start} map covers the grey image: the higher, the more opaque.")

        # Values beyond the ends of the bar
        low = np.array([scale.low for scale in self.scales])[:, None, None, None]
        top = np.array([scale.top for scale in self.scales])[:, None, None, None]
        above = self.values[self.values > top]
        below = self.values[self.values < low]
        count = (~absent).sum()
        if above.size:
            notes.append(
                f"Pointed end of the bar: {percent(above.size / count)} of the values lie above it,"
                f" the highest {short(above.max())}."
            )
        if below.size:
            notes.append(
                f"Below the bar: {percent(below.size / count)} of the values,"
                f" the lowest {short(below.min())}."
            )
        # The attention that the maps leave out
        if self.some_elsewhere:
            notes.append(self.on_patches(quantity))
        return notes

    def on_patches(self, quantity: str = "attention") -> str:
        """Return a sentence on how much of the attention the maps show."""
        if self.some_low:
            return (
                f"%: share of the {quantity} on patches, where it is below {MOST:.0%};"
                f" the remainder stays on {NO_PLACE}."
            )
        return (
            f"At least {MOST:.0%} of each map's {quantity} falls on patches,"
            " the remainder on tokens without a place in the image."
        )


def _require_shape(name: str, values: Tensor, shape: Sequence[int]) -> None:
    """Refuse values of another shape, by name."""
    if tuple(values.shape) != tuple(shape):
        raise UserError(f"{name} have the shape {tuple(values.shape)}, not {tuple(shape)}")


def percent(share: float) -> str:
    """Return a share in whole percents; "<1%" and ">99%" are not none and all."""
    # Not none, and not all
    if 0 < share < 0.005:
        return "<1%"
    if 0.995 <= share < 0.9999:
        return ">99%"
    return f"{share:.0%}"


def dimmed(picture: np.ndarray) -> np.ndarray:
    """Return a picture, uint8 (H, W, 3), in grey of low contrast, near the colour of the page."""
    grey = brightness(picture / 255)[..., None].repeat(3, -1)
    return to_bytes(0.66 + 0.26 * grey)
