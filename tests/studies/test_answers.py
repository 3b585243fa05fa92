"""The answers in docs/questions are texts: their numbers are held to the tables folded below, their length to a page."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from vit.studies import STUDIES

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = ROOT / "docs" / "questions"
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")
Cells = dict[tuple[str, str], float]  # by what a row begins with, and by column

# Numbers that follow from the tables, which the sentences combine.
LOSS, PROBE = "loss over hidden patches", "linear probe"
FOREIGN, LAST = ("meadow", "sea", "air"), "last block"
CONTEXT = ("its image, at all positions alike", "its image, at its position", "patch with image")


def above(row: str, column: str, usual: str = "all learn") -> Callable[[Cells], float]:
    return lambda cell: cell[row, column] - cell[usual, column]


def mean(*places: tuple[str, str]) -> Callable[[Cells], float]:
    return lambda cell: sum(cell[place] for place in places) / len(places)


def ratio(moment: str) -> Callable[[Cells], float]:
    asking, giving = (mean(*((name, moment) for name in names)) for names in (("W_Q", "W_K"), ("W_V", "W_O")))
    return lambda cell: asking(cell) / giving(cell)


DERIVED: dict[str, dict[str, Callable[[Cells], float]]] = {
    "fixed-or-learned": {
        "0.114": above("no positions at all", LOSS),
        "-10.4": above("uniform attention", PROBE),
        "-1.0": above("W_Q and W_K frozen", PROBE),
        "-0.6": above("W_E frozen", PROBE),
    },
    "identity-case": {"1.5": lambda cell: 100 / 65},  # of 64 patches and the class token
    "one-hot": {"0.050": above("1024", LOSS, "W_E, no table"), "48": lambda cell: 4 * 4 * 3},
    "static-and-contextual": {
        "19.5": lambda cell: sum(cell["trained 6", name] for name in CONTEXT),
        "70.4": lambda cell: sum(cell["random weights 6", name] for name in CONTEXT),
        "0.53": mean(*((f"trained wheel {scene}", LAST) for scene in FOREIGN)),
        "0.68": mean(*((f"random weights wheel {scene}", LAST) for scene in FOREIGN)),
        "0.57": mean(*((f"trained ball {scene}", LAST) for scene in FOREIGN)),
    },
    "who-trains-them": {
        "0.17": ratio("gradient at the start"),
        "0.25": ratio("gradient at the end"),
        "14.7": lambda cell: 100 * mean(("W_Q", "moved"), ("W_K", "moved"))(cell),
        "8.5": lambda cell: 100 * mean(("W_V", "moved"), ("W_O", "moved"))(cell),
    },
}
# What only each seed's own values could give: spreads of differences.
NOT_IN_TABLES = {
    "fixed-or-learned": {"0.001", "1.3"},
    "one-hot": {"0.001"},
}


def numbers(text: str) -> list[str]:
    return [found.replace(",", "") for found in NUMBER.findall(text)]


def decimals(number: str) -> int:
    return len(number.partition(".")[2])


def agrees(said: str, value: float, units: float = 0.5001) -> bool:
    """Whether a number is another one, up to so many units of its last digit."""
    return abs(value - float(said)) <= units * 10 ** -decimals(said)


def prose_of(page: str) -> str:
    """What is read first: no title, picture, command, nor what is folded or says when it was measured."""
    shown = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
    return re.sub(r"^(?:# |!\[|    |Measured on ).*$", "", shown, flags=re.MULTILINE)


def cells_of(page: str) -> Cells:
    """The means in the tables of a page."""
    cells: Cells = {}
    columns: list[str] = []
    for line in page.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = row
        else:
            labels = [cell for cell in row if not NUMBER.match(cell) or cell.isdecimal()]
            for column, cell in zip(columns, row, strict=True):
                if found := NUMBER.match(cell):
                    cells[" ".join(labels) or row[0], column] = float(found[0].replace(",", ""))
    return cells


@pytest.mark.parametrize("name", STUDIES)
def test_each_number_in_the_sentences_is_in_the_tables_or_follows_from_them(name):
    page = (QUESTIONS / name / "answer.md").read_text(encoding="utf-8")
    sentences = prose_of(page)
    folded = "\n".join(re.findall(r"<details.*?</details>", page, re.DOTALL))
    tables = numbers("\n".join(line for line in folded.splitlines() if line.startswith(("|", "**"))))  # with titles

    def stands(said: str) -> bool:
        return any(agrees(said, float(one)) for one in tables if decimals(one) >= decimals(said))

    missing = {said for said in numbers(sentences) if not stands(said)}
    derived = DERIVED.get(name, {})
    for said, value in derived.items():  # of rounded cells
        assert agrees(said, value(cells_of(page)), 1.5), said
    assert missing == derived.keys() | NOT_IN_TABLES.get(name, set())


@pytest.mark.parametrize("name", STUDIES)
def test_an_answer_begins_with_the_sentence_to_remember_as_readme_does_and_is_short(name):
    page = (QUESTIONS / name / "answer.md").read_text(encoding="utf-8")
    question, sentence = re.match(r"# (.*)\n\n\*\*(.*)\*\*\n\n!\[", page).groups()
    front, course = ((folder / "README.md").read_text(encoding="utf-8") for folder in (ROOT, QUESTIONS))
    assert f"- [{question}](docs/questions/{name}/answer.md)\n  {sentence}\n" in front
    assert f"## [{question}]({name}/answer.md)\n\n{sentence}\n" in course
    assert len(prose_of(page).split()) <= 350
    assert "*How to read it:*" in page


def test_the_short_answer_is_short():
    course = (QUESTIONS / "README.md").read_text(encoding="utf-8")
    short = course.partition("## The short answer")[2].partition("\n## ")[0]
    assert len(re.sub(r"\]\(.*?\)", "", short).split()) <= 400
    assert {f"]({name}/answer.md)" for name in STUDIES} <= set(re.findall(r"\]\(.*?\)", short))


@pytest.mark.parametrize("name", STUDIES)
def test_every_picture_of_an_answer_is_there(name):
    pictures = re.findall(r"\]\((\w+\.png)\)", (QUESTIONS / name / "answer.md").read_text(encoding="utf-8"))
    assert pictures
    assert sorted(pictures) == sorted(path.name for path in (QUESTIONS / name).glob("*.png"))
