"""What the page about a run is made of: facts, tables, bars, pictures for light and dark, rows of small pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from vit.figures.document import Markup, data_uri, element

DOTS = 200
"""Dots an inch of the page's figures: on a phone, these are 80 CSS pixels to the inch and three dots to each."""
DARK_SCREEN = "screen and (prefers-color-scheme: dark)"


class Section(NamedTuple):
    """A part of the page: its place, for links, its title, and all of it."""

    place: str
    title: str
    content: Markup


def section(place: str, title: str, lede: str | None, *parts: Markup | None) -> Section:
    """A part of the page, with what it shows in a sentence or two."""
    content = element("section", element("h2", title), paragraph(lede, "lede"), *parts, id=place)
    return Section(place, title, content)


def paragraph(text: str | None, kind: str | None = None) -> Markup | None:
    """A paragraph; None for none."""
    return element("p", text, class_=kind, dir="auto") if text else None


def facts(rows: Iterable[tuple[str, str]]) -> Markup:
    """What is known, by name."""
    pairs = [element("div", element("dt", name), element("dd", value, dir="auto")) for name, value in rows]
    return element("dl", *pairs, class_="facts")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], about: str) -> Markup:
    """A table that scrolls by itself where it is too wide; the first cell of a row is its name."""
    lines = [
        element(
            "tr", element("th", row[0], scope="row", dir="auto"), *(element("td", cell, dir="auto") for cell in row[1:])
        )
        for row in rows
    ]
    names = element("thead", element("tr", *(element("th", name, scope="col") for name in head)))
    return scrolling(element("table", names, element("tbody", *lines)), about)


def bars(rows: Sequence[tuple[str, float]], write: Callable[[float], str], about: str) -> Markup:
    """Numbers beside each other, with bars from 0; the first row is the model's, the others what it is measured against."""
    most = max([value for _, value in rows if value > 0], default=1.0)
    lines = []
    for place, (name, value) in enumerate(rows):
        bar = element("rect", width=f"{100 * max(value, 0) / most:.2f}", height="1")
        drawn = element("svg", bar, viewBox="0 0 100 1", preserveAspectRatio="none", aria_hidden="true")
        cells = (element("th", name, scope="row"), element("td", drawn), element("td", write(value), class_="number"))
        lines.append(element("tr", *cells, class_=None if place else "ours"))
    return element("table", element("caption", about), element("tbody", *lines), class_="bars")


def scrolling(content: Markup, about: str, kind: str = "scroll") -> Markup:
    """A box in which what is too wide for the page moves by itself; it can be reached with the keyboard."""
    return element("div", content, class_=kind, tabindex="0", role="region", aria_label=about)


def figure(draw: Callable[[bool], bytes], alt: str, caption: str | None = None, kind: str | None = None) -> Markup:
    """A figure in both themes.

    Args:
        draw: called with whether it is for a dark page, gives a PNG.
        alt: what is seen, for whoever does not see it.
        caption: what to look at.
        kind: class of the element.
    """
    return picture(draw(False), draw(True), alt, caption, kind)


def picture(light: bytes, dark: bytes | None, alt: str, caption: str | None = None, kind: str | None = None) -> Markup:
    """A PNG for a light page and one for a dark; without the second, the first stands on white paper in both."""
    image = element("img", src=data_uri(light), alt=alt)
    if dark is None:
        shown, kind = image, f"{kind or ''} paper".strip()
    else:
        shown = element("picture", element("source", media=DARK_SCREEN, srcset=data_uri(dark)), image)
    words = element("figcaption", caption, dir="auto") if caption else None
    return element("figure", shown, words, class_=kind)


Row = tuple[str, str, bytes, str]
"""Of small pictures: its name, a quiet word below it or "", a PNG of `vit.figures.strip`, and what is seen."""


def strips(rows: Iterable[Row], labels: Sequence[str], about: str, smooth: bool = False) -> Markup:
    """Rows of small pictures, one below the other: the same images in each, their names on top.

    Args:
        rows: from the first to the last.
        labels: of the images; may be empty strings.
        about: all rows in a few words.
        smooth: the images are large, and their pixels need not show.
    """
    parts = []
    if any(labels):
        names = [element("li", element("span", label, dir="auto", title=label)) for label in labels]
        parts += [element("span"), element("ol", *names, aria_hidden="true")]
    for name, word, content, alt in rows:
        parts.append(element("p", element("span", name), element("small", word) if word else None))
        parts.append(element("img", src=data_uri(content), alt=alt, class_="smooth" if smooth else None))
    few = " few" if len(labels) < 5 else ""
    return scrolling(element("div", *parts, class_=f"strips{few}"), about)


def command(what: str, line: str) -> Markup:
    """A line for a shell, and what it does; it goes on in the next line between words only, not after a hyphen."""
    words = [part for word in line.split(" ") for part in (Markup(" "), element("span", word))][1:]
    typed = scrolling(element("code", *words), what, "line")
    return element("div", element("p", what), typed, class_="command")


def spelled(value: Any) -> str:
    """A setting as one writes it."""
    return value if isinstance(value, str) and value else json.dumps(value)


def duration(seconds: float) -> str:
    """A length of time in its two largest units: 2 h 5 min."""
    whole = max(round(seconds), 0)
    for unit, length, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def plural(count: int, what: str) -> str:
    """ "1 head", "3 heads", "50,000 images"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
