"""Files beside the code say what the code says: versions, names, paths and commands."""

import re
import tomllib

import pytest
import yaml
from forks import ROOT

import vit

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = [
    path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
]


def test_citation_says_what_the_package_says():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == vit.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["abstract"] == PROJECT["description"]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page):
    text = (ROOT / page).read_text()
    files = [
        ROOT / name
        for name in re.findall(r"`((?:vit|tests|docs|configs|notebooks|examples)/[\w/.]*)`", text)
    ]
    assert [path for path in files if not path.exists()] == []
    extras = {name for some in re.findall(r"'\.\[([\w,]+)\]'", text) for name in some.split(",")}
    assert extras <= set(PROJECT["optional-dependencies"])
    for name, place in re.findall(r"`([A-Z]\w+)` of `(vit/[\w/.]+)`", text):
        assert re.search(rf"^{name}\b.* = ", (ROOT / place).read_text(), re.MULTILINE), name
