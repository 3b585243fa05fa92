"""How all figures look. Figures are made as objects, never through pyplot: no global state, no window, no leak."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from vit.atomic import replacing

INK, QUIET, HIDDEN = "#1b1f24", "#5b6470", (0.80, 0.82, 0.85)
BLUE, ORANGE, GREEN, PURPLE = (
    "#2166ac",
    "#d95f02",
    "#1b7837",
    "#762a83",
)  # told apart in the common kinds of colour blindness
COLOURS = "magma"  # perceptually uniform
DPI = 150
ELLIPSIS = "…"


@dataclass(frozen=True)
class Theme:
    """The colours of a figure: its paper, what is written on it, and what stands for a patch that is not there.

    Attributes:
        paper, ink, quiet: background, main and secondary text.
        absent: of a patch that the model does not see; `stroke` is drawn across it, so that it is told from a value in
            black and white too.
        dots, line: of points and of the line through their means.
        third, fourth: of what else is drawn beside them.
    """

    paper: str
    ink: str
    quiet: str
    absent: tuple[float, float, float]
    stroke: str
    dots: str
    line: str
    third: str
    fourth: str


LIGHT = Theme("white", INK, QUIET, HIDDEN, "#98a1ad", BLUE, ORANGE, GREEN, PURPLE)
DARK = Theme("#14171c", "#f1f3f5", "#a7b0bc", (0.23, 0.26, 0.31), "#6b7482", "#6cb0f0", "#ff9d4d", "#72c98a", "#c9a0e6")


def theme_of(dark: bool) -> Theme:
    """The colours for a dark page, or for a white one."""
    return DARK if dark else LIGHT


def titled_figure(
    width: float, height: float, title: str, subtitle: str, theme: Theme = LIGHT, title_lines: int = 2
) -> tuple[Figure, float]:
    """A figure of width x height inches of content under a heading.

    The title takes up to `title_lines` lines and then ends in an ellipsis; the subtitle takes what it needs. Without a title
    there is no heading: a page says beside the figure what it is.

    Returns:
        The figure, and the share of its height, from the bottom, that is free for the content.
    """
    if not title:
        total = math.ceil((height + 0.12) * DPI - 1e-6) / DPI
        return Figure(figsize=(width, total), dpi=DPI, facecolor=theme.paper), height / total
    lines = textwrap.wrap(printable(subtitle), max(30, int(width * 13.5)))
    titles = wrapped(title[:500], (width - 0.3) * 72, 13, "bold")
    if len(titles) > title_lines:
        titles = [
            *titles[: title_lines - 1],
            fitted(" ".join(titles[title_lines - 1 :]), (width - 0.3) * 72, 13, "bold"),
        ]
    head = 0.46 + 0.17 * len(lines) + 0.24 * max(len(titles) - 1, 0)  # inches
    total = math.ceil((height + head) * DPI - 1e-6) / DPI  # whole pixels: what stands on them below stays sharp
    figure = Figure(figsize=(width, total), dpi=DPI, facecolor=theme.paper)
    margin = 0.15 / width
    below = 0.42 + 0.24 * max(len(titles) - 1, 0)
    top = 1 - 0.14 / total
    figure.text(
        margin, top, escaped("\n".join(titles)), fontsize=13, weight="bold", color=theme.ink, va="top", linespacing=1.3
    )
    text = escaped("\n".join(lines))
    figure.text(margin, 1 - below / total, text, fontsize=8.5, color=theme.quiet, va="top", linespacing=1.35)
    return figure, height / total


def bare(axes: Axes) -> None:
    """No ticks and no frame: for pictures."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def plain(text: str) -> str:
    """Text as it is: a dollar sign in a class name must not start a formula, nor a control character break a line."""
    return escaped(printable(text))


def printable(text: str) -> str:
    """`text` without what controls lines, direction or the terminal; such a character shows as U+FFFD."""
    if text.isprintable():  # as most is; a picture in a page is a long one
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def escaped(text: str) -> str:
    """`text` for matplotlib, to which a pair of dollar signs is a formula."""
    return text.replace("$", r"\$")


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """How wide a line of text is, in points (1/72 inch), at a font size in points."""
    if not text:
        return 0.0
    font = FontProperties(size=size, weight=weight)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of a missing glyph: drawing warns of it
        return float(text_to_path.get_text_width_height_descent(text, font, False)[0])


def fitted(text: str, width: float, size: float, weight: str = "normal") -> str:
    """`text` made printable and cut, with an ellipsis, to what fits into `width` points; not escaped yet."""
    text = printable(text)[:1000]  # no name needs more; measuring takes time
    if text_width(text, size, weight) <= width:
        return text
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if text_width(text[:middle].rstrip() + ELLIPSIS, size, weight) <= width:
            fits = middle
        else:
            too_long = middle
    return text[:fits].rstrip() + ELLIPSIS


def wrapped(text: str, width: float, size: float, weight: str = "normal") -> list[str]:
    """`text` made printable, in lines of up to `width` points; broken between words, or within one that is too long."""
    lines: list[str] = []
    line = ""
    for word in printable(text).split(" "):
        longer = f"{line} {word}" if line else word
        if text_width(longer, size, weight) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        while text_width(word, size, weight) > width and len(word) > 1:
            cut = max(len(fitted(word, width, size, weight)) - len(ELLIPSIS), 1)
            lines.append(word[:cut])
            word = word[cut:]
        line = word
    return [*lines, line] if line else lines


AS_PNG: dict[str, Any] = {"pil_kwargs": {"optimize": True}}


def png_of(figure: Figure, dpi: int = DPI) -> bytes:
    """`figure` as a PNG with so many dots an inch; equal figures give equal bytes."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi, facecolor=figure.get_facecolor(), **AS_PNG)
    return file.getvalue()


def save_figure(figure: Figure, path: Path) -> None:
    """Write `figure` to `path` (its suffix is the format), whole or not at all; equal figures give equal files."""
    kind = path.suffix.lower()
    options: dict[str, Any] = {}
    if kind == ".png":
        options = AS_PNG
    elif kind in (".pdf", ".svg"):
        options["metadata"] = {"CreationDate" if kind == ".pdf" else "Date": None}
    with replacing(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "vit"}):
        figure.savefig(temporary, dpi=DPI, facecolor=figure.get_facecolor(), **options)
