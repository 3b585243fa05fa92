"""Pages are put together so that text stays text: what a name holds neither opens a tag nor leaves an attribute."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from vit.figures.document import Markup, as_text, data_uri, element, sealed_page

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "' onload='x", "&lt;b&gt;", "{{style}}"]


class Read(HTMLParser):
    """What a browser would take for tags and for text."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("name", HOSTILE)
def test_text_and_attributes_come_back_as_they_were(name):
    read = Read(element("p", name, element("b", name), None, title=name, class_="a", aria_label=None))
    assert read.tags == ["p", "b"]
    assert read.attributes == [("title", name), ("class", "a")]
    assert read.text == 2 * name


def test_controls_and_direction_are_replaced():
    assert as_text("a\u202eb\x00\n\udcff") == "a" + "\N{REPLACEMENT CHARACTER}" + "b" + "\N{REPLACEMENT CHARACTER}" * 3


def test_only_markup_passes_as_it_is():
    assert element("div", Markup("<br>"), "<br>") == "<div><br>&lt;br&gt;</div>"
    assert element("img", alt="x") == '<img alt="x">'
    assert isinstance(element("p"), Markup)


def test_data_uri_holds_the_file():
    assert base64.b64decode(data_uri(b"\x00PNG").removeprefix("data:image/png;base64,")) == b"\x00PNG"


def test_policy_allows_this_style_and_script_and_nothing_else():
    template = "{{policy}}|{{style}}|{{script}}|{{name}}"
    policy, style, script, name = sealed_page(template, {"name": "{{script}}"}, "p {}", "run()").split("|")
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in ("p {}", "run()")]
    assert policy.startswith("default-src 'none'; ")
    assert [f"'sha256-{found}'" for found in hashes] == re.findall(r"'sha256-[^']+'", policy)
    assert "img-src" not in policy
    assert (style, script, name) == ("p {}", "run()", "{{script}}")  # what is filled in is not read again
    still = sealed_page("{{policy}}", {}, "p {}", pictures=True)
    assert "script-src" not in still  # so default-src holds: none
    assert "img-src data:" in still


def test_a_place_that_nothing_fills_is_an_error():
    with pytest.raises(KeyError):
        sealed_page("{{nothing}}", {}, "")
