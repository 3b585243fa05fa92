"""What README and the pages of docs claim, and a file of the repository holds: commands, figures, names, lines."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from vit.cli.options import read_options
from vit.cli.study import study_settings
from vit.settings import parse_train_command, take_options
from vit.studies import STUDIES

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


def figures_that_are_missing(text: str, page: str) -> list[str]:
    """The numbers of `text` that `page` does not have, rounded as they are."""
    measured = numbers(page)
    return [
        figure
        for figure in numbers(text)
        if not any(
            abs(float(one) - float(figure)) <= 0.5001 * 10 ** -decimals(figure)
            for one in measured
            if decimals(one) >= decimals(figure)
        )
    ]


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_its_answer_and_each_figure_of_it_is_on_its_page(name):
    (row,) = [part for part in QUESTIONS.split("\n## ") if f"\n    vit study {name}\n" in part]
    folder = ROOT / "docs" / "questions" / name
    assert (folder / re.search(rf"!\[.*\]\({name}/([^)]+)\)", row)[1]).is_file()
    assert f"]({name}/answer.md)" in row
    page = (folder / "answer.md").read_text(encoding="utf-8")
    assert figures_that_are_missing(row, page) == []
    question, sentence = re.search(
        rf"^- \[(.*)\]\(docs/questions/{name}/answer.md\)\n  (.*)$", README, re.MULTILINE
    ).groups()
    assert question == STUDIES[name]
    assert row.startswith(f"[{question}]")
    assert page.startswith(f"# {question}\n")
    assert len(numbers(sentence)) <= 1
    assert figures_that_are_missing(sentence, page) == []


def test_readme_is_a_front_door():
    assert len(README.splitlines()) <= 150
    assert len(re.findall(r"^- .*/answer.md\)$", README, re.MULTILINE)) == len(STUDIES)


def test_each_figure_of_the_results_is_on_the_page_that_its_row_names():
    rows = re.findall(r"^\|(.*)\| \[\w+.*?\]\((docs/[^)#]+).*\) \|$", README, re.MULTILINE)
    assert 3 <= len(rows) <= 5
    for row, page in rows:
        assert len(numbers(row)) >= 2
        assert figures_that_are_missing(row, PAGES[page]) == []


def anchors(text: str) -> set[str]:
    """What a code host and the site make of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_picture_and_page_that_is_named_is_there(page):
    named = re.findall(r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)", PAGES[page])
    places = [((ROOT / page).parent / path if path else ROOT / page, anchor) for path, anchor in named]
    assert [path for path, _ in places if not path.exists()] == []
    assert [anchor for path, anchor in places if anchor and anchor not in anchors(path.read_text("utf-8"))] == []


def test_every_page_is_named_by_the_site_and_by_the_list_of_pages():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    nav = [page for part in site for pages in part.values() for page in ([pages] if isinstance(pages, str) else pages)]
    assert sorted(f"docs/{page}" for page in nav) == sorted(page for page in PAGES if page.startswith("docs/"))
    listed = {f"docs/{link}" for link in re.findall(r"\]\(([^)]+)\)", PAGES["docs/README.md"])}
    assert listed >= {page for page in PAGES if page.startswith("docs/") and "answer.md" not in page} - {
        "docs/README.md"
    }


def test_every_name_of_the_api_page_is_there():
    names = re.findall(r"^::: (\S+)\.(\w+)$", PAGES["docs/api.md"], re.MULTILINE)
    assert len(names) > 15
    assert [name for module, name in names if not getattr(import_module(module), name).__doc__] == []


def commands(text: str, begin: str) -> list[list[str]]:
    """The lines of `text` that begin so and call train.py or vit, in words; continued lines joined, remarks left out."""
    lines = re.sub(r"\\\n[# ]*", "", text).splitlines()
    called = [line.removeprefix(begin).partition("  #")[0] for line in lines if line.startswith(begin)]
    called = [
        re.sub(r"^torchrun .* train.py ", "python train.py ", re.sub(r"^(?:[A-Z]: |   )", "", line)) for line in called
    ]
    return [
        shlex.split(re.sub(r"(\w)\|[\w|-]+", r"\1", re.sub(r" (PLAIN|SETTINGS?)\b", "", line)))
        for line in called
        if re.match("(python train.py|vit) ?", line)
    ]


COMMANDS = [
    *(words for page in PAGES.values() for words in commands(page, "    ")),
    *(words for file in sorted(ROOT.glob("configs/**/*.yaml")) for words in commands(file.read_text(), "#   ")),
]


@pytest.mark.parametrize("words", [words for words in COMMANDS if "a.yaml" not in words], ids=" ".join)
def test_every_command_that_is_told_is_one_that_its_program_takes(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = [word for word in words if word not in ("--help", "--resume")]
    if words[:2] in (["python", "train.py"], ["vit", "train"]):
        assert parse_train_command(words[2:]).out.parts[0] == "runs"
        return
    _, name, *argv = words
    module = import_module(f"vit.cli.{name}")
    if name == "study":
        _, rest = take_options(argv[1:], "--out")
        for study in STUDIES if argv[0] in ("all", "NAME") else argv[:1]:
            study_settings(study, "--quick" in rest, [word for word in rest if word != "--quick"])
    elif name == "data":
        monkeypatch.setattr(
            "vit.settings.named_data", lambda data: {"source": data} if data == "scenes" else {"root": data}
        )
        module.parse(argv)
    else:
        groups, argv = (module.COMMANDS[argv[0]].OPTIONS, argv[1:]) if name == "checkpoint" else (module.OPTIONS, argv)
        read_options(f"vit {name}", argv, *groups)


def test_commands_are_found():
    assert len(COMMANDS) > 100
    assert {words[1] for words in COMMANDS} >= {
        "train.py",
        "attention",
        "evaluate",
        "compare",
        "study",
        "bench",
        "checkpoint",
    }


def test_what_can_be_read_in_an_evening_is_as_long_as_it_says():
    part = README.partition("## Read the code")[2].partition("\n## ")[0]
    said, rest = (int(found.replace(",", "")) for found in re.findall(r"([\d,]+) (?:lines|more)", part))
    named = {name: int(count) for name, count in re.findall(r"^\| `(\S+\.py)` \| (\d+) \|", part, re.MULTILINE)}
    training = {ROOT / name for name in (*named, "train.py", "vit/cli/train.py")}
    training |= {*ROOT.glob("vit/data/*.py"), *ROOT.glob("vit/training/**/*.py")}
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in training}
    for name, count in named.items():
        assert abs(lines[ROOT / name] - count) <= 5 + 0.05 * count, name
    evening = sum(lines[ROOT / name] for name in named)
    assert 0.95 * said < evening <= said
    assert 0.9 * rest < sum(lines.values()) - evening <= 1.05 * rest
