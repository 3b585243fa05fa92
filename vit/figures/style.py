"""How all figures look: the style sheet, the heading, text that fits, saving.

Figures are made as objects, never through pyplot: no global state, no window, no leak.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import lru_cache, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.style import context
from matplotlib.textpath import text_to_path

from vit.atomic import replacing
from vit.errors import printable

P = ParamSpec("P")
DPI = 150
TITLE_SIZE = 13
SUBTITLE_SIZE = 8.5
"""Of the heading, in points."""
ELLIPSIS = "…"
PALETTE_FILE = Path(__file__).with_name("palette.css")


LIGHT, DARK = PALETTE_FILE.read_text(encoding="utf-8").split("@media", 1)
DECLARATION = r"--([a-z-]+): (#[0-9a-f]{6});"
PALETTE = dict(re.findall(DECLARATION, LIGHT))
DARK_PALETTE = dict(re.findall(DECLARATION, DARK))
"""A colour by its meaning, `PALETTE["q"]` that of queries and W_Q, on a light page."""
COLOURS = SimpleNamespace(
    paper="white",
    ink=PALETTE["ink"],
    quiet=PALETTE["quiet"],
    absent=PALETTE["absent"],  # a masked patch, and the stroke across it
    stroke=PALETTE["absent-stroke"],
    # Blue, orange, green, purple, brown: distinct in the common kinds of colour blindness
    series=[PALETTE[name] for name in ("x", "q", "k", "v", "position")],
    colours="Reds",  # from near white to dark: low values recede, and lightness falls all the way
)
"""The colours of figures: main and secondary text, series, the map of values."""


def read_sheet() -> Any:
    """Return the style sheet, with the colours of the palette."""
    sheet: Any = matplotlib.rc_params_from_file(
        Path(__file__).with_name("vit.mplstyle"), use_default_template=False
    )
    # matplotlib reports each font that is missing, at every drawing
    installed = fontManager.get_font_names()
    sheet["font.family"] = [name for name in sheet["font.family"] if name in installed]
    for key in ("text.color", "axes.titlecolor", "legend.labelcolor"):
        sheet[key] = COLOURS.ink
    for key in ("axes.edgecolor", "axes.labelcolor", "grid.color", "xtick.color", "ytick.color"):
        sheet[key] = COLOURS.quiet
    sheet["axes.prop_cycle"] = cycler("color", COLOURS.series)
    return sheet


SHEET = read_sheet()


def style() -> AbstractContextManager[None]:
    """Give new artists our style in a block, whatever the matplotlibrc holds."""
    return context(["default", SHEET])


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Make a function draw its figure in our style, laid out once."""

    @wraps(draw)
    def draw_in_style(*args: P.args, **options: P.kwargs) -> Figure:
        with style():
            figure = draw(*args, **options)
            # Ticks take the style of the moment in which they are made: the first drawing
            figure.draw_without_rendering()
        if figure.get_layout_engine():
            # The solver adds in an order that depends on addresses in memory, so the last digits
            # change from figure to figure, and now and then a pixel with them
            figure.set_layout_engine("none")
            for axes in figure.axes:
                bounds = axes.get_position(original=True).bounds
                axes.set_position(np.round(bounds, 9), which="original")
        return figure

    return draw_in_style


# --- Figures under a heading ---------------------------------------------------------------------

CAPTION = ""
"""The beginning of every subtitle; a study holds its own here while it draws."""


def headed_figure(width: float, height: float, title: str, subtitle: str) -> Figure:
    """Return a figure with width x height inches of paper under title and subtitle.

    Both take as many lines as they need. Without a title there is no heading: a page labels the
    figure itself.
    """
    room = (width - 0.3) * 72
    titles = wrapped(title, room, TITLE_SIZE, "bold")
    lines = []
    head = 0.12
    if titles:
        lines = wrapped(" · ".join(filter(None, (CAPTION, subtitle))), room, SUBTITLE_SIZE)
        head = 0.22 + 0.24 * len(titles) + 0.17 * len(lines)

    # Whole dots above the paper: an array stays sharp, one dot for each of its pixels
    total = height + math.ceil(head * DPI) / DPI
    figure = Figure(figsize=(width, total), dpi=DPI)
    figure.text(
        0.15 / width,
        1 - 0.14 / total,
        "\n".join(titles),
        va="top",
        fontsize=TITLE_SIZE,
        weight="bold",
        linespacing=1.3,
    )
    figure.text(
        0.15 / width,
        1 - (0.18 + 0.24 * len(titles)) / total,
        "\n".join(lines),
        va="top",
        fontsize=SUBTITLE_SIZE,
        color=COLOURS.quiet,
        linespacing=1.35,
    )
    return figure


def titled_figure(width: float, height: float, title: str, subtitle: str) -> Figure:
    """Return a figure with width x height inches of charts under a heading.

    To be drawn within `styled`; constrained layout places the axes.
    """
    figure = headed_figure(width, height, title, subtitle)
    total = figure.get_figheight()
    rect = (0.1 / width, 0.06 / total, 1 - 0.2 / width, (height - 0.12) / total)
    figure.set_layout_engine("constrained", rect=rect)
    return figure


def canvas_figure(pixels: np.ndarray, title: str, subtitle: str) -> tuple[Figure, Axes]:
    """Return a figure that shows an array under a heading, a dot for each pixel.

    Args:
        pixels: uint8 (H, W, 3).

    Returns:
        The figure, and axes over the array that count in dots from its upper left.
    """
    height, width = pixels.shape[:2]
    figure = headed_figure(width / DPI, height / DPI, title, subtitle)
    axes = figure.add_axes((0, 0, 1, height / DPI / figure.get_figheight()))
    # "none" keeps the pixels of the array in vector files too, where "nearest" would resample them
    axes.imshow(pixels, extent=(0, width, height, 0), aspect="auto", interpolation="none")
    axes.set_axis_off()
    return figure, axes


def line_look(count: int, line: Any = "-", mark: str = "o") -> dict[str, Any]:
    """Return the look of a curve of `count` values: a single one has no line, and is a mark."""
    if count < 2:
        return {"linestyle": "none", "marker": mark}
    return {"linestyle": line}


def begin_at(axes: Axes, low: float) -> None:
    """Begin the value axis at `low`, with matplotlib's margin above the largest value."""
    # The margin is a share of the range of the data, which so includes `low`
    axes.update_datalim([(0, low)], updatex=False)
    axes.autoscale_view(scalex=False)
    axes.set_ylim(bottom=low)


def percent_tick(share: float, _: float = 0) -> str:
    """Return a share as the label of a tick, with only the digits it needs: "5%", "42.5%"."""
    return f"{round(100 * share, 6):g}%"


# --- Text that fits ------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return the width of a line of text in points (1/72 inch), at a font size in points."""
    font = FontProperties(size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0])


def fitted(text: str, width: float, size: float) -> str:
    """Return `text` made printable, in one line of up to `width` points; an ellipsis stands for the
    words that do not fit."""
    lines = wrapped(text, width, size)
    if len(lines) > 1:
        lines = wrapped(text, width - text_width(ELLIPSIS, size), size)
        return lines[0] + ELLIPSIS
    return "".join(lines)


def wrapped(text: str, width: float, size: float, weight: str = "normal") -> list[str]:
    """Return `text` made printable, in lines of up to `width` points.

    It is broken between words, or within a word that is too long.
    """
    # Shorten the lines, in letters, until the widest fits in points
    text = printable(text)
    letters = max(len(text), 1)
    while True:
        lines = textwrap.wrap(text, letters, break_on_hyphens=False)
        widest = max((text_width(line, size, weight) for line in lines), default=0.0)
        if widest <= width or letters == 1:
            return lines
        letters = min(letters - 1, int(letters * max(width / widest, 0.5) + 1))


def legend_columns(names: Collection[str], width: float, size: float = 7.5) -> int:
    """Return how many entries of a legend fit side by side in `width` inches."""
    widest = max(text_width(name, size) for name in names) + 44
    return evenly(len(names), int(width * 72 / widest))


def evenly(count: int, most: int) -> int:
    """Return how many of `count` things stand in a line of at most `most`, at least 1.

    Lines are of equal length, so that none is nearly empty.
    """
    return math.ceil(count / math.ceil(count / max(most, 1)))


def png_of(figure: Figure) -> bytes:
    """Return a figure as a PNG; equal figures give equal bytes."""
    file = io.BytesIO()
    with style():
        figure.savefig(file, format="png")
    return file.getvalue()


def save_figure(figure: Figure, path: Path) -> None:
    """Write `figure` to `path` (its suffix is the format), whole or not at all.

    Equal figures give equal files.
    """
    # Without a date, equal figures give equal files
    dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    with replacing(path) as temporary, style():
        figure.savefig(temporary, metadata=dates.get(path.suffix))
