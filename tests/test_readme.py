"""README's claims that a file of the repository holds: nothing stands there that is not in the pages it names."""

import re
from pathlib import Path

import pytest

from vit.studies import STUDIES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")


def numbers(text: str) -> list[str]:
    return [found.replace(",", "") for found in NUMBER.findall(text)]


def decimals(number: str) -> int:
    return len(number.partition(".")[2])


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_its_answer_and_each_figure_of_it_is_on_its_page(name):
    (row,) = [line for line in README.splitlines() if line.endswith(f"| `vit study {name}` |")]
    folder = ROOT / "docs" / "questions" / name
    answer, picture = row.split(" | ")[1:3]
    assert (folder / re.search(rf'src="docs/questions/{name}/([^"]+)"', picture)[1]).is_file()
    assert f"](docs/questions/{name}/answer.md)" in row
    measured = numbers((folder / "answer.md").read_text(encoding="utf-8"))
    for figure in numbers(answer):
        near = [float(one) for one in measured if decimals(one) >= decimals(figure)]
        assert any(abs(one - float(figure)) <= 0.5001 * 10 ** -decimals(figure) for one in near), figure


def test_every_picture_and_page_that_is_named_is_there():
    named = re.findall(r"\]\(([^)#:]+)\)", README) + re.findall(r'src="([^":]+)"', README)
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []
