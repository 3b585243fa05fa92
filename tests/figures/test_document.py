"""Law: in a page, text stays text: no name opens a tag or leaves an attribute."""

import base64
import hashlib
import re
from xml.etree import ElementTree

import jinja2
import pytest
from markupsafe import Markup

from vit.figures.document import render_page
from vit.figures.style import PALETTE_FILE

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "' onload='x",
    "{{ style }}",
]


@pytest.fixture
def template(tmp_path):
    """`template(text)`: the path of a template with style and script beside it."""

    def write(text: str):
        for suffix, content in ((".html", text), (".css", "p > b {}"), (".js", "run('<b>')")):
            (tmp_path / f"page{suffix}").write_text(content)
        return tmp_path / "page.html"

    return write


@pytest.mark.parametrize("name", HOSTILE)
def test_text_and_attributes_come_back_as_they_were(name, template):
    page = template('<p title="{{ name }}">{{ name }}{{ nothing }}{{ markup }}</p>')
    read = ElementTree.fromstring(
        render_page(page, name=name, nothing=None, markup=Markup("<br/>"))
    )
    assert (read.text, read.attrib) == (name, {"title": name})
    assert [part.tag for part in read] == ["br"]


def test_a_place_that_nothing_fills_is_an_error(template):
    with pytest.raises(jinja2.UndefinedError):
        render_page(template("{{ nothing }}"))


def test_policy_allows_this_style_and_script_and_nothing_else(template):
    page = template("{{ policy }}|{{ style }}|{{ script }}")
    policy, style, script = render_page(page).replace("&#39;", "'").split("|")
    assert style == PALETTE_FILE.read_text(encoding="utf-8") + "p > b {}"
    assert script == "run('<b>')"
    hashes = []
    for text in (style, script):
        hashes.append(base64.b64encode(hashlib.sha256(text.encode()).digest()).decode())
    assert policy.startswith("default-src 'none'; ")
    assert [f"'sha256-{digest}'" for digest in hashes] == re.findall(r"'sha256-[^']+'", policy)
    assert "img-src" not in policy
    page.with_suffix(".js").unlink()
    still = render_page(page, images=True)
    assert "script-src" not in still  # so default-src holds: none
    assert "img-src data:" in still
