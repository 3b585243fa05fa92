"""Law: one letter, one colour: pictures, pages, the lesson and the site take their colours from palette.css."""

import re

import pytest
from forks import ROOT

from studies.experiment import NARROW, XAVIER
from studies.figures import HOLLOW, NAMED, colours_of
from vit.figures.style import DARK_PALETTE, PALETTE, PALETTE_FILE

PLACES = ("vit", "studies", "docs", "notebooks", "examples", "bench", "mkdocs.yml")
WORLD = ROOT / "docs" / "world.html"
"""A file that stands alone, so that it opens in a clone: its colours are copies."""
KINDS = {".py", ".css", ".html", ".js", ".mplstyle", ".ipynb", ".yml"}
LETTERS = ("x", "q", "k", "v", "o", "g", "position", "image", "untrained", "trained")


def files():
    for place in PLACES:
        for path in [ROOT / place, *(ROOT / place).rglob("*")]:
            if path.suffix in KINDS and path not in (PALETTE_FILE, WORLD):
                yield path


def test_no_other_file_defines_a_colour_of_the_palette():
    own = {colour for palette in (PALETTE, DARK_PALETTE) for colour in palette.values()}
    own -= {"#ffffff"}
    for path in files():
        # with or without the sign, but no part of a hash or of a picture in base64
        found = re.findall(
            r"(?<![\w/+])#?([0-9a-f]{6})(?![\w/+=])", path.read_text("utf-8").lower()
        )
        assert not own & {f"#{digits}" for digits in found}, path


def test_the_page_of_the_world_has_the_colours_of_the_palette():
    light, dark = WORLD.read_text("utf-8").split("prefers-color-scheme: dark", 1)
    for text, palette in ((light, PALETTE), (dark, DARK_PALETTE)):
        named = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text))
        shared = named.keys() & palette.keys()
        assert len(shared) > 5
        assert {name: named[name] for name in shared} == {name: palette[name] for name in shared}


def test_a_drawing_has_the_colours_of_the_palette_and_no_others():
    """A picture of its own cannot read the palette; its colours are copies."""
    drawing = (ROOT / "docs" / "questions" / "matrices.svg").read_text("utf-8")
    assert set(re.findall(r"#[0-9a-f]{3,6}\b", drawing)) <= set(PALETTE.values())


def test_every_meaning_has_a_colour_that_no_other_has():
    for palette in (PALETTE, DARK_PALETTE):
        assert set(LETTERS) <= palette.keys()
        assert len({palette[name] for name in LETTERS}) == len(LETTERS)
    assert PALETTE.keys() == DARK_PALETTE.keys()


def brightness(colour: str) -> float:
    """The relative luminance of a colour (WCAG 2)."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [PALETTE, DARK_PALETTE], ids=["light", "dark"])
def test_letters_can_be_read_on_paper(palette):
    for ground in ("paper", "card"):
        for name in (*(letter for letter in LETTERS if letter != "untrained"), "ink", "quiet"):
            bright, dark = sorted([brightness(palette[name]), brightness(palette[ground])])[::-1]
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (name, ground)


def test_a_series_with_a_name_of_its_own_has_its_colour_in_every_chart():
    assert colours_of(["W_Q", "W_K", "W_V"]) == [PALETTE[name] for name in "qkv"]
    assert colours_of(["some", "W_E", "other"]) == [PALETTE[name] for name in "qxk"]
    assert {XAVIER, NARROW} < set(HOLLOW) <= NAMED.keys()
    assert set(NAMED.values()) <= PALETTE.keys()
