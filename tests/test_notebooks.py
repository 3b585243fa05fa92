"""The notebooks as they are stored: with outputs, and with the pages' figures where they quote them."""

import json
import re
from pathlib import Path

import pytest
from forks import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = "\n".join(
    path.read_text()
    for folder in (ROOT / "docs" / "questions", ROOT / "studies" / "results")
    for path in folder.rglob("*.md")
)


def cells(path: Path, kind: str) -> list[dict]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def source(cell: dict) -> str:
    return "".join(cell["source"])


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request) -> Path:
    return request.param


def test_it_was_run_from_top_to_bottom(notebook):
    code = cells(notebook, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert [output for output in outputs if output["output_type"] == "error"] == []
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == []
    text = "".join(
        json.dumps({**output, "data": {**output.get("data", {}), "image/png": ""}})
        for output in outputs
    )
    assert re.findall(r"/(?:home|root|tmp|work|usr)/\S*", text) == []


def test_the_one_that_trains_runs_as_it_stands_on_fewer_images():
    pytest.importorskip("IPython")
    (path,) = ROOT.glob("notebooks/03_*.ipynb")
    lines = "\n".join(map(source, cells(path, "code")))
    # lines with % are IPython's
    code = re.sub("^%.*", "", lines, flags=re.MULTILINE)
    exec(code.replace("limit=4000", "limit=64").replace("epochs=6", "epochs=1"), {})


def test_what_it_quotes_of_a_page_stands_there(notebook):
    for row in re.findall(
        r"^\| .*\d.* \|$", "\n".join(map(source, cells(notebook, "markdown"))), re.MULTILINE
    ):
        assert re.search(rf"^{re.escape(row[:-2])} \|", PAGES, re.MULTILINE), row


def test_the_page_lists_all_of_them():
    assert re.findall(r"^- `(\w+\.ipynb)`:", PAGES, re.MULTILINE) == [
        path.name for path in NOTEBOOKS
    ]
