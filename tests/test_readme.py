"""What README and the pages of docs claim, and a file of the repository holds: commands, figures, names, lines."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from bench.__main__ import bench_parser
from studies import STUDIES
from studies.__main__ import study_parser, study_settings
from vit.cli import parse
from vit.commandline import given_settings
from vit.config import Config, read_settings

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
}
README = PAGES["README.md"]
QUESTIONS = PAGES["docs/questions/README.md"]
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")


def numbers(text: str) -> list[str]:
    return [found.replace(",", "") for found in NUMBER.findall(text)]


def decimals(number: str) -> int:
    return len(number.partition(".")[2])


def figures_that_are_missing(text: str, page: str) -> set[str]:
    """The numbers of `text` that `page` does not have, rounded as they are."""
    measured = numbers(page)

    def stands(said: str) -> bool:
        half = 0.5001 * 10 ** -decimals(said)
        values = [float(one) for one in measured if decimals(one) >= decimals(said)]
        return any(abs(value - float(said)) <= half for value in values)

    return {said for said in numbers(text) if not stands(said)}


def test_readme_is_a_front_door():
    assert len(README.splitlines()) <= 100
    assert len(re.findall(r"^- .*/answer.md\)$", README, re.MULTILINE)) == len(STUDIES)


def test_each_figure_of_the_results_is_on_the_page_that_is_named_beside_it():
    said = re.findall(r"^\|(.*)\| \[\w+.*?\]\((docs/[^)#]+).*\) \|$", README, re.MULTILINE)
    said += re.findall(r"^(Where every.*?)\]\((docs/[^)#]+)", README, re.M | re.S)
    assert len(said) >= 4
    for text, page in said:
        assert len(numbers(text)) >= 2
        assert not figures_that_are_missing(text, PAGES[page])


def anchors(text: str) -> set[str]:
    """What a code host and the site make of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_picture_and_page_that_is_named_is_there(page):
    named = re.findall(r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)", PAGES[page])
    places = [
        ((ROOT / page).parent / path if path else ROOT / page, anchor) for path, anchor in named
    ]
    assert [path for path, _ in places if not path.exists()] == []
    assert [
        anchor
        for path, anchor in places
        if anchor and anchor not in anchors(path.read_text("utf-8"))
    ] == []


def test_every_page_is_named_by_the_site_and_by_the_list_of_pages():
    pages = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}
    named = re.findall(r"^ .* ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(pages)
    listed = set(re.findall(r"\]\(([^)]+)\)", PAGES["docs/README.md"]))
    assert {page for page in pages - listed if "answer.md" not in page} == {"README.md"}


def test_every_name_of_the_api_page_is_there():
    page = PAGES["docs/api.md"]
    names = re.findall(r"^::: (\S+)\.(\w+)$", page, re.MULTILINE)
    assert len(names) > 15
    for module, name in names:
        assert getattr(import_module(module), name).__doc__
    rows = re.findall(r"^\| (`.*`) \| `\S+` \|", page, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(name for _, name in names)


def commands(text: str, begin: str) -> list[list[str]]:
    """The lines of `text` that begin so and call a program of ours, in words; continued lines joined, remarks left out."""
    lines = re.sub(r"\\\n[# ]*", "", text).splitlines()
    called = [
        line.removeprefix(begin).partition("  #")[0] for line in lines if line.startswith(begin)
    ]
    called = [
        re.sub(r"^torchrun .* train.py ", "python train.py ", re.sub(r"^(?:[A-Z]: |   )", "", line))
        for line in called
    ]
    return [
        shlex.split(re.sub(r"(\w)\|[\w|-]+", r"\1", re.sub(r" (PLAIN|SETTINGS?)\b", "", line)))
        for line in called
        if re.match("(python train.py|python -m (studies|bench)|vit) ?", line)
    ]


COMMANDS = [
    *(words for page in PAGES.values() for words in commands(page, "    ")),
    *(
        words
        for file in sorted([*ROOT.glob("configs/*.yaml"), *ROOT.glob("studies/configs/*.yaml")])
        for words in commands(file.read_text(), "#   ")
    ),
]


assert len(COMMANDS) > 100


@pytest.mark.parametrize(
    "words", [words for words in COMMANDS if "a.yaml" not in words], ids=" ".join
)
def test_every_command_that_is_told_is_one_that_its_program_takes(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(  # the folders that are named need not be there
        "vit.commandline.named_data",
        lambda data: {"source": data} if data == "scenes" else {"root": data},
    )
    words = [word for word in words if word not in ("--help", "--resume")]
    if words[:3] == ["python", "-m", "bench"]:
        bench_parser().parse_args(words[3:])
    elif words[:3] == ["python", "-m", "studies"]:
        options, settings = study_parser().parse_known_args(words[4:])
        for study in STUDIES if words[3] in ("all", "NAME") else [words[3]]:
            study_settings(study, options, settings)
    elif words[1] == "-m":
        assert callable(import_module(words[2]).run)
    else:
        name, options = parse(["train" if words[1] == "train.py" else words[1], *words[2:]])
        if name in ("train", "data"):
            Config.from_settings(read_settings(*options.config), given_settings(options))


# --- the answers in docs/questions: their numbers are held to the tables folded below, their length to a page

DERIVED = {
    "attention-or-cause": "60 25 26",
    "fixed-or-learned": "0.147 13 67 78 10.4 5.1 0.6",
    "identity-case": "1.5 0.020",
    "one-hot": "48",
    "static-and-contextual": "3.5",
    "who-trains-them": "0.25 19",
}
"""The numbers that the sentences of an answer combine from its tables."""


CITED = re.compile(r"\[[^\]]*\]\(https://arxiv\.org/[^)]*\)")
"""A paper: its year is no measurement of ours."""


def prose_of(page: str) -> str:
    """What is read first: no title, picture, command, nor what is folded or says when it was measured."""
    shown = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
    return re.sub(r"^(?:# |!\[|    |Measured on ).*$", "", shown, flags=re.MULTILINE)


@pytest.mark.parametrize("name", STUDIES)
def test_each_number_in_the_sentences_of_an_answer_is_in_its_tables_or_follows_from_them(name):
    page = PAGES[f"docs/questions/{name}/answer.md"]
    folded = "\n".join(re.findall(r"<details.*?</details>", page, re.DOTALL))
    # with titles
    tables = "\n".join(line for line in folded.splitlines() if line.startswith(("|", "**")))
    missing = figures_that_are_missing(CITED.sub("", prose_of(page)), tables)
    assert missing == set(DERIVED.get(name, "").split())


@pytest.mark.parametrize("name", STUDIES)
def test_an_answer_is_short_and_begins_with_the_sentence_to_remember_as_readme_and_the_course_do(
    name,
):
    page = PAGES[f"docs/questions/{name}/answer.md"]
    question, sentence = re.match(r"# (.*)\n\n\*\*(.*)\*\*\n\n!\[", page).groups()
    assert question == STUDIES[name]
    assert f"- [{question}](docs/questions/{name}/answer.md)\n  {sentence}\n" in README
    assert f"## [{question}]({name}/answer.md)\n\n{sentence}\n" in QUESTIONS
    (row,) = [part for part in QUESTIONS.split("\n## ") if part.startswith(f"[{question}]")]
    assert not figures_that_are_missing(row, page)
    assert len(re.sub(r"\$+[^$]+\$+", "", prose_of(page)).split()) <= 320
