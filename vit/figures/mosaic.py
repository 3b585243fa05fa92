"""A sheet of small pictures: how they, their outlines, headings, bars and notes are drawn on it, dot by dot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.patches import Polygon, Rectangle
from PIL import Image
from torch import Tensor

from vit.figures.layout import MARGIN, PIXELATED, Box, Layout
from vit.figures.scale import Scale, short, to_bytes
from vit.figures.style import DPI, Theme, escaped, fitted, text_width, titled_figure, wrapped

BAR = 118  # room for the numbers of a bar
LEAST_WIDTH = 5.6 * DPI  # for the heading and the notes
SMALL, NOTE = 7.5, 7.5  # points
MARK, MARK_EDGE = "#00e5ff", "#06262b"  # the outline of a query: a colour that no map has, and its dark rim


def pictures_of(images: Tensor, layout: Layout) -> np.ndarray:
    """Images (B, C, H, W) from 0 to 1, C 1 or 3 -> (B, height, width, 3) as they fill a cell, 0 to 1.

    Small ones keep their pixels as squares; ones of more than 64 pixels a side are resampled.

    Raises:
        ValueError: they have another number of channels.
    """
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"images are (B, 1 or 3, H, W), got {tuple(images.shape)}")
    pixels = to_bytes(images.detach().float().cpu().expand(-1, 3, -1, -1).permute(0, 2, 3, 1).nan_to_num().numpy())
    large = max(pixels.shape[1:3]) > PIXELATED
    how = Image.Resampling.LANCZOS if large else Image.Resampling.NEAREST
    size = (layout.width, layout.height)
    return np.stack([np.asarray(Image.fromarray(one).resize(size, how)) for one in pixels]) / 255


def enlarged(grid: np.ndarray, box: tuple[int, int]) -> np.ndarray:
    """(rows, columns, ...) -> (height, width, ...), each value as often as it takes."""
    return grid.repeat(box[0] // grid.shape[0], 0).repeat(box[1] // grid.shape[1], 1)


class Sheet:
    """A figure whose content is placed dot by dot.

    Args:
        layout: of the pictures.
        bar: whether to leave room for a bar at the right.
        notes: sentences for the foot of the sheet.
        keys: what stands for what: ("query" | "absent" | "hidden", words), drawn before the notes.
        title, subtitle, theme: the heading, and the colours.
    """

    def __init__(
        self,
        layout: Layout,
        bar: bool,
        notes: Sequence[str],
        keys: Sequence[tuple[str, str]],
        title: str,
        subtitle: str,
        theme: Theme,
    ):
        self.layout, self.theme = layout, theme
        self.width = int(max(layout.right + (BAR + 34 if bar else MARGIN), LEAST_WIDTH))
        room = (self.width - 2 * MARGIN) / DPI * 72
        lines = [line for note in notes for line in wrapped(note, room, NOTE)]
        places = _flowed([text_width(words, NOTE) / 72 * DPI + 56 for _, words in keys], self.width - 2 * MARGIN)
        key_lines = max((line for line, _ in places), default=-1) + 1
        top = layout.bottom + 16
        height = top + 26 * key_lines + 20 * len(lines) + 14
        self.figure, free = titled_figure(self.width / DPI, height / DPI, title, subtitle, theme)
        self.axes = self.figure.add_axes((0, 0, 1, free))
        self.axes.set_axis_off()
        self.axes.set_autoscale_on(False)
        self.axes.set_xlim(0, self.width)
        self.axes.set_ylim(height, 0)
        for (kind, words), (line, x) in zip(keys, places, strict=True):
            self._key(kind, words, MARGIN + x, top + 26 * line)
        for number, text in enumerate(lines):
            self.text(MARGIN, top + 26 * key_lines + 20 * number, text, NOTE, theme.quiet, va="top")

    def _key(self, kind: str, words: str, x: int, y: int) -> None:
        box = Box(x, y, 18, 18)
        if kind == "query":
            self.axes.add_patch(Rectangle(box[:2], 18, 18, facecolor=self.theme.quiet, alpha=0.35, linewidth=0))
            self.outline(box, (1, 1), (0, 0))
        else:
            colour = np.array(self.theme.absent) if kind == "absent" else np.array([0.45, 0.16, 0.50])
            self.picture(box, np.broadcast_to(to_bytes(colour), (18, 18, 3)))
            self.strokes(box, np.ones((2, 2), bool), self.theme.stroke if kind == "absent" else None)
        self.text(x + 26, y + 9, words, NOTE, self.theme.quiet, va="center_baseline")

    def picture(self, box: Box, pixels: np.ndarray) -> None:
        """Draw (height, width, 3), uint8."""
        extent = (box.x, box.x + box.width, box.y + box.height, box.y)
        self.axes.imshow(pixels, extent=extent, aspect="auto", interpolation="nearest")

    def text(self, x: float, y: float, text: str, size: float, colour: str, **options: str) -> None:
        """Write printable text."""
        self.axes.text(x, y, escaped(text), fontsize=size, color=colour, **options)  # type: ignore[arg-type]

    def heading(self, box: Box, text: str, size: float, colour: str, below: bool = False) -> None:
        """Write in the middle over a cell, or under it."""
        y = box.y + box.height + 5 if below else box.y - 7
        self.text(box.x + box.width / 2, y, text, size, colour, ha="center", va="top" if below else "baseline")

    def outline(self, box: Box, grid: tuple[int, int], patch: tuple[int, int]) -> None:
        """Outline the patch (row, column) of a picture."""
        part = box.part(grid, *patch)
        for colour, width in ((MARK_EDGE, 2.6), (MARK, 1.3)):
            self.axes.add_patch(
                Rectangle(part[:2], part.width, part.height, fill=False, edgecolor=colour, linewidth=width, zorder=5)
            )

    def strokes(self, box: Box, where: np.ndarray, colour: str | None = None) -> None:
        """Draw a stroke across each patch that is True in (rows, columns); without a colour, one that shows on all maps."""
        if not where.any():
            return
        height, width = box.height / where.shape[0], box.width / where.shape[1]
        x, y = [], []
        for row, column in np.argwhere(where):
            x += [box.x + column * width, box.x + (column + 1) * width, np.nan]
            y += [box.y + (row + 1) * height, box.y + row * height, np.nan]
        # Grey is lighter than the dark half of the map and darker than the bright half.
        options = {
            "color": colour or "#9b9b9b",
            "alpha": 1 if colour else 0.5,
            "linewidth": 0.7,
            "solid_capstyle": "butt",
            "zorder": 4,
        }
        self.axes.plot(x, y, **options)  # type: ignore[arg-type]

    def border(self, box: Box, where: np.ndarray) -> None:
        """Draw a line around the patches that are True in (rows, columns)."""
        inside = np.pad(where, 1)
        patch = box.part((where.shape[0], where.shape[1]), 0, 0)
        x, y = [], []
        for row, column in np.argwhere(inside[1:, 1:-1] != inside[:-1, 1:-1]):  # between a patch and the one above
            x += [box.x + column * patch.width, box.x + (column + 1) * patch.width, np.nan]
            y += [box.y + row * patch.height] * 2 + [np.nan]
        for row, column in np.argwhere(inside[1:-1, 1:] != inside[1:-1, :-1]):  # and the one to the left
            x += [box.x + column * patch.width] * 2 + [np.nan]
            y += [box.y + row * patch.height, box.y + (row + 1) * patch.height, np.nan]
        self.axes.plot(x, y, color=self.theme.ink, linewidth=0.8, solid_capstyle="projecting", zorder=4)

    def bar(self, box: Box, scale: Scale, strip: np.ndarray, name: str, even: bool) -> None:
        """Draw a bar with its numbers into `box`; `even` names the 1 on it."""
        tip = 13  # values beyond the end have its colour
        over, under = tip * scale.over, tip * scale.under
        whole, box = box, Box(box.x, box.y + over, box.width, box.height - over - under)
        self.picture(box, strip)
        for y, away, colour in ((box.y, -over, strip[0]), (box.y + box.height, under, strip[-1])):
            if away:
                corners = [(box.x, y), (box.x + box.width, y), (box.x + box.width / 2, y + away)]
                self.axes.add_patch(Polygon(corners, closed=True, facecolor=colour.mean(0) / 255, linewidth=0))
        most = min(1 + box.height // 40, 8)
        ticks = scale.ticks(most)
        names = short(ticks)
        if even and scale.within(np.array([1.0]))[0]:
            keep = [abs(scale.place(np.array(tick)) - scale.place(np.array(1.0))) * box.height > 22 for tick in ticks]
            ticks = [*(tick for tick, far in zip(ticks, keep, strict=True) if far), 1.0]
            names = [*(words for words, far in zip(names, keep, strict=True) if far), "1 = even"]
        for tick, words in zip(ticks, names, strict=True):
            level = box.y + box.height * (1 - float(scale.place(np.array(tick))))
            right = box.x + box.width
            self.axes.plot([right, right + 6], [level, level], color=self.theme.quiet, linewidth=0.7)
            self.text(right + 10, level, words, 7, self.theme.quiet, va="center_baseline")
        room = (self.width - box.x - 6) / DPI * 72
        self.text(box.x - 2, whole.y - 7, fitted(name, room, SMALL), SMALL, self.theme.quiet, va="baseline")


class Headings(NamedTuple):
    """Texts for each cell of each block, their font size, and whether a name had to be cut."""

    texts: list[list[str]]
    size: float
    cut: bool


def headings(names: Sequence[str], shares: Iterable[Sequence[str]], width: int) -> Headings:
    """Headings "name · share" that fit a cell of `width` dots.

    Their font size is the largest from 7.5 to 5.5 points at which all fit; where none is small enough, names end in an
    ellipsis.

    Args:
        names: P names.
        shares: for each block, P texts that are never cut; may be empty.
    """
    room = width / DPI * 72
    rows = [list(row) for row in shares]
    tails = {f" · {share}" if share else "" for row in rows for share in row}
    widest = {size: max(text_width(tail, size) for tail in tails) for size in (7.5, 7.0, 6.5, 6.0, 5.5)}
    for size, tail in widest.items():
        if all(fitted(name, room - tail, size) == name for name in names):
            break
    cut = [fitted(name, room - widest[size], size) for name in names]
    texts = [[f"{name} · {share}" if share else name for name, share in zip(cut, row, strict=True)] for row in rows]
    return Headings(texts, size, cut != list(names))


def _flowed(widths: Sequence[float], room: float) -> list[tuple[int, int]]:
    """(line, x) for things of these widths, left to right, in lines of `room`."""
    places: list[tuple[int, int]] = []
    line, x = 0, 0.0
    for width in widths:
        if x and x + width > room:
            line, x = line + 1, 0.0
        places.append((line, int(x)))
        x += width
    return places
