"""The pages of docs as a site: what docs/site/hooks.py makes of formulas and letters."""

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import markdown
import pytest
from mkdocs.config import load_config

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))
SPEC = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "site" / "hooks.py")
hooks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(hooks)


@pytest.fixture(scope="module")
def converter():
    """Markdown as mkdocs.yml sets it up."""
    site = load_config(str(ROOT / "mkdocs.yml"))
    return markdown.Markdown(
        extensions=[name for name in site.markdown_extensions if name != "toc"],
        extension_configs=site.mdx_configs,
    )


@pytest.fixture(scope="module")
def render(converter):
    return lambda text: hooks.finish_page(converter.reset().convert(text))


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`|^    .*$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_every_formula_of_a_page_becomes_mathml(page, render):
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"\$\$.+?\$\$", without_code(text), re.DOTALL)
    lines = re.findall(
        r"\$[^$]+\$", re.sub(r"\$\$.+?\$\$", "", without_code(text), flags=re.DOTALL)
    )
    content, dollars = render(text)
    assert dollars == []
    assert content.count("<math") == content.count("</math>") == len(blocks) + len(lines)
    assert "arithmatex" not in content
    assert "&amp;#" not in content


def test_a_formula_is_mathml_with_its_letters_in_their_colours(render):
    content, _ = render(r"A score is $s_{ij} = q_i \cdot k_j / \sqrt{d}$, and $Q = X W_Q$.")
    first, second = (
        ElementTree.fromstring(found) for found in re.findall(r"<math.*?</math>", content)
    )
    tag = "{http://www.w3.org/1998/Math/MathML}"
    assert [found.text for found in first.iter(f"{tag}mi")] == [
        "s",
        "i",
        "j",
        "q",
        "i",
        "k",
        "j",
        "d",
    ]
    assert first.find(f".//{tag}msqrt") is not None
    coloured = {found.get("class"): "".join(found.itertext()) for found in first.iter()}
    assert coloured["letter-q"] == "q"
    assert coloured["letter-k"] == "k"
    assert [
        (found.get("class"), "".join(found.itertext()))
        for found in second.iter()
        if found.get("class")
    ] == [("letter-q", "Q"), ("letter-x", "X"), ("letter-q", "WQ")]


def test_an_index_has_no_colour_of_its_own(render):
    content, _ = render(r"$\sum_k a_{ik} v_k$")
    (formula,) = (
        ElementTree.fromstring(found) for found in re.findall(r"<math.*?</math>", content)
    )
    assert [
        (found.get("class"), "".join(found.itertext()))
        for found in formula.iter()
        if found.get("class")
    ] == [("letter-v", "v")]


def test_letters_in_prose_have_their_colours_and_code_keeps_its_text(render):
    content, dollars = render("W_Q & `W_Q` cost <b>5</b>; W_QK.\n\n    echo $W_Q\n")
    assert content.count('<b class="letter-q">W<sub>Q</sub></b> &amp;') == 1
    assert "<code>W_Q</code>" in content
    assert "W_QK" in content
    assert dollars == []


def test_a_formula_that_is_not_closed_is_reported(render):
    assert render("The score $q is not closed.")[1] == ["The score $q is not closed."]
