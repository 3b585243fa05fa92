"""How all figures look. Figures are made as objects, never through pyplot: no global state, no window, no leak."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit.atomic import replacing

INK, QUIET, HIDDEN = "#1b1f24", "#5b6470", (0.80, 0.82, 0.85)
BLUE, ORANGE, GREEN = "#2166ac", "#d95f02", "#1b7837"  # told apart in the common kinds of colour blindness
COLOURS = "magma"  # perceptually uniform
DPI = 150


def titled_figure(width: float, height: float, title: str, subtitle: str) -> tuple[Figure, float]:
    """A figure of width x height inches of content under a heading.

    Returns:
        The figure, and the share of its height, from the bottom, that is free for the content.
    """
    lines = textwrap.wrap(plain(subtitle), max(30, int(width * 13.5)))
    head = 0.46 + 0.17 * len(lines)  # inches
    figure = Figure(figsize=(width, height + head), dpi=DPI, facecolor="white")
    total = height + head
    margin = 0.15 / width
    figure.text(margin, 1 - 0.14 / total, plain(title), fontsize=13, weight="bold", color=INK, va="top")
    figure.text(margin, 1 - 0.42 / total, "\n".join(lines), fontsize=8.5, color=QUIET, va="top", linespacing=1.35)
    return figure, height / total


def bare(axes: Axes) -> None:
    """No ticks and no frame: for pictures."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def plain(text: str) -> str:
    """Text as it is: a dollar sign in a class name must not start a formula, nor a control character break a line."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text).replace("$", r"\$")


def save_figure(figure: Figure, path: Path) -> None:
    """Write `figure` to `path` (its suffix is the format), whole or not at all; equal figures give equal files."""
    with replacing(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "vit"}):
        options: dict[str, Any] = {"pil_kwargs": {"optimize": True}} if path.suffix == ".png" else {}
        figure.savefig(temporary, dpi=DPI, facecolor="white", **options)
