"""Files beside the code say what the code says: versions, names, paths and commands."""

import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import vit

ROOT = Path(__file__).resolve().parents[1]
PROJECT_FILE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PROJECT_FILE["project"]
PAGES = [
    path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
]


def test_citation_says_what_the_package_says():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == vit.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["abstract"] == PROJECT["description"]


def test_the_workflow_runs_what_a_change_must_pass_and_nothing_else():
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())[
        "jobs"
    ].values()
    assert job["steps"][1] == {"run": ".ci/run"}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    versions = job["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == PROJECT["requires-python"]


def test_the_wheel_has_every_package_and_file():
    options = PROJECT_FILE["tool"]["setuptools"]
    places = {name: name.replace(".", "/") for name in options["packages"]} | options["package-dir"]
    modules = {path.parent for path in (ROOT / "vit").rglob("*.py")}
    assert modules == {ROOT / place for place in places.values()} - {ROOT / "configs"}
    packed = set()
    for name, patterns in options["package-data"].items():
        for pattern in patterns:
            found = {*(ROOT / places[name]).glob(pattern)}
            assert found, pattern
            packed |= found
    files = {path for folder in ("vit", "configs") for path in (ROOT / folder).rglob("*.*")}
    left = {path.suffix for path in files - packed if path.is_file()}
    assert left <= {".py", ".pyc"}


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
