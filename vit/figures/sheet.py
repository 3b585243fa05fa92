"""A sheet of small pictures: images, and maps of their patches beside them.

Under constrained layout axes get any size, so that the patches of a map may differ by a dot. Here the size of each picture in
dots is a multiple of the grid's: all patches are equally large and have sharp edges. All axes count in patches; the centre of
the first is (0, 0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.patches import Patch as Swatch
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Normal, Stroke
from torch import Tensor

from vit.errors import UserError
from vit.figures.scale import Scale, brightness, image_bytes, resized, short
from vit.figures.style import (
    COLOURS,
    DPI,
    bare,
    fitted,
    legend_columns,
    text_width,
    titled_figure,
    wrapped,
)

MOST_PICTURES = 480  # on one legible sheet
MOST_A_LINE = 13  # panels side by side: the mean and twelve heads
SMALLEST, LARGEST = 0.9 * DPI, 2.4 * DPI  # side of a square picture, in dots
WIDEST = 13.8 * DPI  # a line of pictures, so that 13 panels fit
FILLED, HIGHEST = (
    6.0 * DPI,
    10.0 * DPI,
)  # what pictures may grow to fill: any wider, their text is illegible on a phone
MARGIN, GAP, BETWEEN = 22, 10, 34  # dots on the left, between pictures, between images side by side
HEAD, BAR = 27, 152  # dots above a picture, and for a bar with its numbers
PIXELATED = 64  # pixels a side up to which an image is drawn with square pixels
SMALL = 7.5  # points
MARK, MARK_EDGE = (
    "#00e5ff",
    "#06262b",
)  # the outline of a query: a colour that no map has, and its dark rim
RIM = [Stroke(linewidth=2.6, foreground=MARK_EDGE), Normal()]
FADED = 0.6  # opacity of an image under a map
ON_MAPS = (
    "#9b9b9b",
    0.5,
)  # a stroke lighter than the dark half of the colours and darker than the bright half
QUERY, ABSENT, HIDDEN = "query", "absent", "hidden"  # kinds of legend entries


def whole(dots: float, parts: int) -> int:
    """Return the multiple of `parts` nearest to `dots`, at least one."""
    return max(round(dots / parts), 1) * parts


class FigureError(UserError, ValueError):
    """A figure that cannot be drawn; the message is one line."""


class Page:
    """A figure with width x height dots of content below the heading; parts are placed in dots from its upper left."""

    def __init__(self, width: float, height: float, title: str, subtitle: str):
        self.width, self.height = max(width, 5.6 * DPI), height
        self.figure = titled_figure(self.width / DPI, height / DPI, title, subtitle, placed=True)
        self._total = round(self.figure.get_figheight() * DPI)

    def share(self, x: float, y: float) -> tuple[float, float]:
        """Dots from the upper left -> shares of the figure from its lower left."""
        return x / self.width, (self.height - y) / self._total

    def place(self, x: float, y: float, width: float, height: float) -> Axes:
        """Add axes for a picture."""
        axes = self.figure.add_axes(
            (*self.share(x, y + height), width / self.width, height / self._total)
        )
        bare(axes)
        return axes

    def canvas(self) -> Axes:
        """Add axes over all the content, in dots: for many pictures, faster than axes for each."""
        axes = self.place(0, 0, self.width, self.height)
        axes.set(xlim=(0, self.width), ylim=(self.height, 0))
        return axes

    def text(self, x: float, y: float, words: str, size: float, **options: Any) -> None:
        """Write printable text, in ink and vertically centred on `y` unless `options` say otherwise."""
        look: dict[str, Any] = {"color": COLOURS.ink, "va": "center"} | options
        self.figure.text(*self.share(x, y), words, fontsize=size, **look)


class Sheet(Page):
    """A figure of blocks, one per image: leading pictures, and beside them the panels, in one or more lines.

    A line holds up to 13 panels (fewer if images are wide); more take several lines of equal length. Images with one or two
    panels may stand side by side, up to six pictures in a row. Pictures grow, from 0.9 to 2.4 inches a side, until together
    they are about 6 inches wide or 10 high; many images make it higher.

    Args:
        blocks, lead, panels: number of images, of pictures before the panels, and of panels.
        grid: (rows, columns) of patches.
        image: (H, W) of the images, for the shape of a picture.
        roof, foot: dots above a block, and below each picture.
        beside: whether images with few panels may stand side by side.
        bar: whether to leave room for bars at the right.
        keys: the legend: (QUERY | ABSENT | HIDDEN, words).
        notes: sentences for the foot of the sheet.

    Attributes:
        axes: per block, those of the leading pictures and then of the panels.
        size: (width, height) of a picture, in dots; room: its width in points.
        right: where the last picture of a row ends, in dots; inside: width from the first one to there, in points.
        top: per block, whether it is in the first row.

    Raises:
        FigureError: there are more pictures than fit one legible sheet.
    """

    def __init__(
        self,
        blocks: int,
        lead: int,
        panels: int,
        grid: tuple[int, int],
        image: tuple[int, int],
        title: str,
        subtitle: str,
        *,
        roof: int = 0,
        foot: int = 0,
        beside: bool = False,
        bar: bool = True,
        keys: Sequence[tuple[str, str]] = (),
        notes: Sequence[str] = (),
    ):
        if (count := blocks * (lead + panels)) > MOST_PICTURES:
            raise FigureError(
                f"{count} pictures do not fit one legible figure, which holds {MOST_PICTURES}: leave out images or panels"
            )
        self.grid = grid
        # The number of panels in a line, lines in a block, blocks side by side.
        stretch = math.sqrt(image[0] / image[1])
        fit = int((WIDEST + GAP) // (SMALLEST / stretch + GAP)) - lead
        lines = math.ceil(panels / min(MOST_A_LINE, max(fit, 1)))
        a_line = math.ceil(panels / lines)
        few = beside and lines == 1 and lead + a_line <= 3
        rows = (
            math.ceil(blocks / max(int(FILLED // (SMALLEST + GAP)) // (lead + a_line), 1))
            if few
            else blocks
        )
        across = math.ceil(blocks / rows)
        # The size of a picture: the largest that fits, in whole dots per patch, and per pixel where these show.
        fill_width = (FILLED / (across * (lead + a_line)) - GAP) * stretch
        fill_height = (HIGHEST / (rows * lines) - HEAD - foot - roof / lines) / stretch
        side = min(max(min(fill_width, fill_height), SMALLEST), LARGEST)
        width = max(whole(side / stretch, grid[1]), 2 * grid[1])
        if image[1] % grid[1] == 0 and image[1] <= min(width, PIXELATED):
            width = whole(width, image[1])
        height = max(whole(width * image[0] / image[1], grid[0]), 2 * grid[0])
        # The figure: pictures, keys, notes.
        line_height = HEAD + height + foot
        self._row_height = roof + lines * line_height
        block_width = (lead + a_line) * (width + GAP) - GAP
        self.right = MARGIN + across * (block_width + BETWEEN) - BETWEEN
        self.inside = (self.right - MARGIN) / DPI * 72
        width_of_all = max(self.right + (BAR if bar else MARGIN), int(5.6 * DPI))
        inside = (width_of_all - 2 * MARGIN) / DPI
        columns = legend_columns([words for _, words in keys], inside) if keys else 1
        key_height = 24 * math.ceil(len(keys) / columns)
        written = [line for note in notes for line in wrapped(note, inside * 72, SMALL)]
        foot_of_pictures = rows * self._row_height + 16
        super().__init__(
            width_of_all, foot_of_pictures + key_height + 20 * len(written) + 14, title, subtitle
        )
        self.size, self.room = (width, height), width / DPI * 72
        self.top = [block < across for block in range(blocks)]
        self.axes: list[list[Axes]] = []
        for block in range(blocks):
            row, place = divmod(block, across)
            left = MARGIN + place * (block_width + BETWEEN)
            above = row * self._row_height + roof + HEAD
            cells = [(0, column) for column in range(lead)]
            cells += [(panel // a_line, lead + panel % a_line) for panel in range(panels)]
            step = width + GAP
            self.axes.append(
                [
                    self.place(left + x * step, above + y * line_height, width, height)
                    for y, x in cells
                ]
            )
        self._tops = [row * self._row_height + roof + HEAD for row in range(rows)]
        self._reach = (
            lines - 1
        ) * line_height + height  # from the top of a row's pictures to their foot
        if keys:
            self.figure.legend(
                [_swatches()[kind] for kind, _ in keys],
                [words for _, words in keys],
                loc="upper left",
                ncols=columns,
                handlelength=1.1,
                handleheight=1.1,
                bbox_to_anchor=self.share(MARGIN, foot_of_pictures - 4),
                borderaxespad=0,
                borderpad=0,
                labelcolor=COLOURS.quiet,
                columnspacing=1.6,
            )
        for number, text in enumerate(written):
            self.text(
                MARGIN,
                foot_of_pictures + key_height + 20 * number,
                text,
                SMALL,
                color=COLOURS.quiet,
                va="top",
            )

    def pixels(self, images: Tensor) -> np.ndarray:
        """Images (B, C, H, W) from 0 to 1 -> (B, H, W, 3); those above 64 pixels a side become as large as a picture."""
        pixels = image_bytes(images)
        return (resized(pixels, self.size) if max(pixels.shape[1:3]) > PIXELATED else pixels) / 255

    def picture(
        self,
        axes: Axes,
        pixels: np.ndarray,
        name: str = "",
        size: float = SMALL,
        quiet: bool = False,
    ) -> None:
        """Draw (H, W, 3) from 0 to 1 under a name."""
        self._draw(axes, pixels)
        self._name(axes, name, size, quiet)

    def map(
        self,
        axes: Axes,
        values: np.ndarray,
        scale: Scale,
        name: str,
        size: float,
        quiet: bool,
        over: np.ndarray | None = None,
        clear: float = 0.0,
    ) -> None:
        """Draw (rows, columns), perhaps `over` an image (H, W, 3); a patch is nan if absent, and crossed by a stroke.

        The image shows wherever the value is not above `clear`.
        """
        absent = np.isnan(values)
        colours = matplotlib.colormaps[COLOURS.colours]
        if over is not None:
            colours = laid_over(colours, float(scale(clear)))
            self._draw(axes, faded(brightness(over)))
        self._draw(axes, values, cmap=colours.with_extremes(bad=COLOURS.absent), norm=scale)
        self.strokes(axes, absent, COLOURS.stroke)
        self._name(axes, name, size, quiet)

    def _draw(self, axes: Axes, pixels: np.ndarray, **options: object) -> None:
        rows, columns = self.grid
        extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
        axes.imshow(pixels, aspect="auto", extent=extent, **options)  # type: ignore[arg-type]

    def _name(self, axes: Axes, name: str, size: float, quiet: bool) -> None:
        axes.set_title(
            name,
            fontsize=size,
            loc="center",
            pad=3.4,
            color=COLOURS.quiet if quiet else COLOURS.ink,
        )

    def over(self, row: int, words: str, size: float) -> None:
        """Write above a row of pictures, in its roof."""
        y = self._tops[row] - HEAD - 4
        self.text(
            MARGIN, y, fitted(words, self.inside, size, "bold"), size, weight="bold", va="baseline"
        )

    def outline(self, axes: Axes, patch: tuple[int, int]) -> None:
        """Outline the patch (row, column)."""
        corner = (patch[1] - 0.5, patch[0] - 0.5)
        look: Any = {"edgecolor": MARK, "linewidth": 1.3, "path_effects": RIM, "zorder": 5}
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, clip_on=False, **look))

    def strokes(
        self, axes: Axes, where: np.ndarray, colour: str | tuple[str, float] = ON_MAPS
    ) -> None:
        """Draw a stroke across each patch that is True in (rows, columns)."""
        lines = [[(x - 0.5, y + 0.5), (x + 0.5, y - 0.5)] for y, x in np.argwhere(where)]
        axes.add_collection(
            LineCollection(lines, colors=[colour], linewidths=0.7, capstyle="butt", zorder=4)
        )

    def border(self, axes: Axes, where: np.ndarray) -> None:
        """Draw a line around the patches that are True in (rows, columns)."""
        inside = np.pad(where, 1)
        over = (
            np.argwhere(inside[1:, 1:-1] != inside[:-1, 1:-1]) - 0.5
        )  # between a patch and the one above
        left = np.argwhere(inside[1:-1, 1:] != inside[1:-1, :-1]) - 0.5
        lines = [[(x, y), (x + 1, y)] for y, x in over] + [[(x, y), (x, y + 1)] for y, x in left]
        edge = LineCollection(
            lines,
            colors=COLOURS.ink,
            linewidths=0.8,
            capstyle="projecting",
            zorder=4,
            clip_on=False,
        )
        axes.add_collection(edge)

    def bars(
        self, scales: Sequence[Scale], unit: str | None, each: bool, overlay: bool = False
    ) -> None:
        """Draw the bar of the first scale beside the first rows, or that of `each` row beside it.

        Args:
            scales: one per image.
            unit: of the values; None for multiples of even.
            each: whether images have scales of their own.
            overlay: the bar goes from dark to bright pixels across, to hold each colour of the picture.
        """
        # A bar spans the rows within about 5 inches: a longer one is no easier to read.
        further = min(len(self._tops) - 1, max(round(5 * DPI / self._row_height) - 1, 0))
        high = self._reach + self._row_height * (0 if each else further)
        for top, scale in zip(self._tops if each else self._tops[:1], scales, strict=False):
            axes = self.place(self.right + 16, top, 36 if overlay else 18, high)
            tips = 13 / (high - 13 * (scale.over + scale.under))
            ends = {
                (False, False): "neither",
                (True, False): "max",
                (False, True): "min",
                (True, True): "both",
            }
            colours = matplotlib.colormaps[COLOURS.colours]
            if overlay:
                clear = 1.0 if unit is None else scale.low
                rgba = laid_over(colours, float(scale(clear)))(np.arange(256))[:, None]
                # over an image from black to white
                mixed = rgba[..., 3:] * rgba[..., :3] + (1 - rgba[..., 3:]) * faded(
                    np.linspace(0, 1, 256)
                )
                colours = colours.with_extremes(
                    under=tuple(mixed[0, 128]), over=tuple(mixed[-1, 128])
                )
            bar = self.figure.colorbar(
                ScalarMappable(scale, colours),
                cax=axes,
                extend=ends[scale.over, scale.under],
                extendfrac=tips,
            )
            bar.outline.set_visible(False)
            if overlay:
                axes.autoscale(False)
                options: Any = {
                    "extent": (0, 1, 0, 1),
                    "transform": axes.transAxes,
                    "aspect": "auto",
                    "zorder": 3,
                }
                axes.imshow(mixed, origin="lower", **options)
            ticks = {tick: short(tick) for tick in scale.ticks(min(1 + int(high) // 40, 8))}
            if unit is None and scale.low <= 1 <= scale.top:
                near = 22 / high
                ticks = {
                    tick: name
                    for tick, name in ticks.items()
                    if abs(float(scale(tick) - scale(1.0))) > near
                }
                ticks[1.0] = "1 = even"
            bar.set_ticks(list(ticks), labels=list(ticks.values()))
            axes.tick_params(labelsize=7, width=0.7)
            if top == self._tops[0]:
                name = fitted(unit or "× even", (BAR - 20) / DPI * 72, SMALL)
                axes.set_title(
                    name, fontsize=SMALL, color=COLOURS.quiet, pad=4.2 + 6.2 * scale.over
                )


def faded(grey: np.ndarray) -> np.ndarray:
    """Brightness (...) of an image under a map, 0 to 1 -> (..., 3): paler, nearer to the paper."""
    return (1 - FADED) * np.array(matplotlib.colors.to_rgb(COLOURS.paper)) + FADED * grey[..., None]


def laid_over(colours: Colormap, clear: float) -> ListedColormap:
    """Return the colours of a map over an image: transparent up to the place `clear`, 0 to 1, then increasingly opaque.

    The palest colours are left out: over an image they would look like a veil.
    """
    much = np.clip((np.linspace(0, 1, 256) - clear) / max(1 - clear, 1 / 256), 0, 1)
    return ListedColormap(np.column_stack([colours(0.4 + 0.6 * much)[:, :3], 0.9 * much]))


def _swatches() -> dict[str, Swatch]:
    """Return the legend's swatch for each kind of mark."""
    shade = (*matplotlib.colors.to_rgb(COLOURS.quiet), 0.35)
    return {
        QUERY: Swatch(facecolor=shade, edgecolor=MARK, linewidth=1.3, path_effects=RIM),
        ABSENT: Swatch(
            facecolor=COLOURS.absent, edgecolor=COLOURS.stroke, hatch="///", linewidth=0
        ),
        HIDDEN: Swatch(
            facecolor=matplotlib.colormaps[COLOURS.colours](0.4),
            edgecolor=ON_MAPS[0],
            hatch="///",
            linewidth=0,
        ),
    }


def headings(
    names: Sequence[str], shares: Iterable[Sequence[str]], of: str, room: float
) -> tuple[list[list[str]], float]:
    """Return headings "name · share of ..." that fit `room` points, P names and P shares per block, and their font size.

    The size goes from 7.5 down to 6.5 points; then, without `of`, which the notes of a sheet say too, from 7.5 down to 5.5. If
    that is still too large, names end in an ellipsis, shares never.
    """
    rows = list(shares)

    def written(size: float, of: str) -> tuple[list[list[str]], bool]:
        tails = [
            [
                f"{' · ' * bool(name)}{share}{of}" * bool(share)
                for name, share in zip(names, row, strict=True)
            ]
            for row in rows
        ]
        widest = [
            max(text_width(tail, size) for tail in column) for column in zip(*tails, strict=True)
        ]
        cut = [fitted(name, room - width, size) for name, width in zip(names, widest, strict=True)]
        fits = cut == list(names) and max(widest) <= room
        return [[name + tail for name, tail in zip(cut, row, strict=True)] for row in tails], fits

    for size, ending in [
        *((size, of) for size in (7.5, 7.0, 6.5)),
        *((size, "") for size in (7.5, 7.0, 6.5, 6.0, 5.5)),
    ]:
        found, fits = written(size, ending)
        if fits:
            break
    return found, size
