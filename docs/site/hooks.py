"""What the site does with a page besides Markdown: formulas, and letters in their colours.

MkDocs calls the functions that begin with `on_` (mkdocs.yml names this file).
"""

from __future__ import annotations

import html
import logging
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert_to_element
from mkdocs.structure.files import File, Files

from vit.figures.style import DARK_PALETTE, PALETTE

LOG = logging.getLogger("mkdocs.plugins.formulas")

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
"""A formula as pymdownx.arithmatex leaves it."""
MATRIX = re.compile(r"\bW_([EQKVO])\b")
LETTERS = {"E": "x", "X": "x", "Q": "q", "K": "k", "V": "v", "O": "o"}
"""The colour of a letter, by its name in vit/figures/palette.css. Small letters are rows of the large ones."""
LETTERS |= {letter.lower(): colour for letter, colour in LETTERS.items() if letter not in "EO"}
VERBATIM = {"code", "pre", "script", "style", "math", "title"}
"""Elements whose text is no prose."""


def render_formula(latex: str, block: bool) -> str:
    """Return a formula as MathML, which browsers draw without a script; letters have their colours."""
    element = convert_to_element(latex, display="block" if block else "inline")
    for child in element.iter():
        # latex2mathml writes signs as references, "&#x0003D;", which would be escaped once more
        child.text = html.unescape(child.text or "")
    colour_letters(element)
    return ElementTree.tostring(element, encoding="unicode", short_empty_elements=False)


def colour_letters(element: ElementTree.Element) -> None:
    """Mark W_E, Q, k and the like with the class of their colour.

    An index keeps the colour of its base: the q of q_i is the letter, and its i is not. The base W takes
    the colour of its index.
    """
    if element.tag in ("msub", "msubsup") and element[0].text == "W":
        letter = element[1].text or ""
        if letter in LETTERS:
            element.set("class", f"letter-{LETTERS[letter]}")
        return
    if element.tag in ("msub", "munder"):
        colour_letters(element[0])
        return
    if element.tag == "mi" and element.text in LETTERS and element.text != "E":
        element.set("class", f"letter-{LETTERS[element.text]}")
    for child in element:
        colour_letters(child)


class Prose(HTMLParser):
    """Copies HTML; in prose, W_Q gets its subscript and its colour. `dollars` are what no formula took."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []
        self.verbatim: list[str] = []
        self.dollars: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts.append(self.get_starttag_text() or "")
        if tag in VERBATIM:
            self.verbatim.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts.append(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        self.parts.append(f"</{tag}>")
        if self.verbatim and self.verbatim[-1] == tag:
            self.verbatim.pop()

    def handle_data(self, data: str) -> None:
        if not self.verbatim:
            if "$" in data:
                self.dollars.append(data.strip())
            data = MATRIX.sub(coloured_matrix, data)
        self.parts.append(data)

    def handle_entityref(self, name: str) -> None:
        self.parts.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.parts.append(f"&#{name};")

    def handle_comment(self, data: str) -> None:
        self.parts.append(f"<!--{data}-->")


def coloured_matrix(found: re.Match[str]) -> str:
    letter = found[1]
    return f'<b class="letter-{LETTERS[letter]}">W<sub>{letter}</sub></b>'


def finish_page(page: str) -> tuple[str, list[str]]:
    """Return a page's HTML with its formulas and letters, and the text of formulas that were not closed."""

    def rendered(found: re.Match[str]) -> str:
        return render_formula(html.unescape(found[2]), block=found[1] == "div")

    prose = Prose()
    prose.feed(FORMULA.sub(rendered, page))
    prose.close()
    return "".join(prose.parts), prose.dollars


def palette_css() -> str:
    """Return the colours of palette.css for the two themes of the site, a line each."""
    lines = []
    for theme, colours in (("default", PALETTE), ("slate", DARK_PALETTE)):
        declared = " ".join(f"--{name}: {colour};" for name, colour in colours.items())
        lines.append(f'[data-md-color-scheme="{theme}"] {{ {declared} }}')
    return "\n".join(lines)


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add what is made, not written: the colours."""
    files.append(File.generated(config, "site/palette.css", content=palette_css()))
    return files


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Finish a page; with --strict, a formula that is not closed stops the build."""
    content, dollars = finish_page(content)
    for text in dollars:
        LOG.warning("%s: a dollar sign outside of a formula: %s", page.file.src_uri, text)
    return content
