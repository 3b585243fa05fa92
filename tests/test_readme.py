"""What README and the pages of docs claim, and a file of the repository holds: commands, figures, names, lines."""

import re
import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from bench.__main__ import bench_parser
from studies import STUDIES
from studies.__main__ import study_parser, study_settings
from vit.cli import parse
from vit.cli.attention import picture_paths
from vit.cli.data import read_config
from vit.cli.parsers import command_of

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
}
README = PAGES["README.md"]
QUESTIONS = PAGES["docs/questions/README.md"]
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")


Cells = dict[tuple[str, str], float]  # by what a row begins with, and by column


def numbers(text: str) -> list[str]:
    return [found.replace(",", "") for found in NUMBER.findall(text)]


def decimals(number: str) -> int:
    return len(number.partition(".")[2])


def agrees(said: str, value: float, units: float = 0.5001) -> bool:
    """Whether a number is another one, up to so many units of its last digit."""
    return abs(value - float(said)) <= units * 10 ** -decimals(said)


def figures_that_are_missing(text: str, page: str) -> set[str]:
    """The numbers of `text` that `page` does not have, rounded as they are."""
    measured = numbers(page)

    def stands(said: str) -> bool:
        return any(agrees(said, float(one)) for one in measured if decimals(one) >= decimals(said))

    return {said for said in numbers(text) if not stands(said)}


def test_readme_is_a_front_door():
    assert len(README.splitlines()) <= 100
    assert len(re.findall(r"^- .*/answer.md\)$", README, re.MULTILINE)) == len(STUDIES)


def test_each_figure_of_the_results_is_on_the_page_that_its_row_names():
    rows = re.findall(r"^\|(.*)\| \[\w+.*?\]\((docs/[^)#]+).*\) \|$", README, re.MULTILINE)
    assert 3 <= len(rows) <= 4
    for row, page in rows:
        assert len(numbers(row)) >= 2
        assert not figures_that_are_missing(row, PAGES[page])


def test_what_readme_says_below_the_results_is_on_the_page_that_it_names():
    said, page = re.search(r"^(Where every.*?)\]\((docs/[^)#]+)", README, re.M | re.S).groups()
    assert len(numbers(said)) >= 2
    assert not figures_that_are_missing(said, PAGES[page])


def test_the_gallery_has_nine_pictures_with_a_command_each():
    pictures = PAGES["docs/gallery.md"].split("\n## ")[1:]
    assert len(pictures) == 9
    for picture in pictures:
        assert picture.count("\n![") == 1
        assert len(commands(picture, "    ")) == 1


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
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    nav = [
        page
        for part in site
        for pages in part.values()
        for page in ([pages] if isinstance(pages, str) else pages)
    ]
    assert sorted(f"docs/{page}" for page in nav) == sorted(
        page for page in PAGES if page.startswith("docs/")
    )
    listed = {f"docs/{link}" for link in re.findall(r"\]\(([^)]+)\)", PAGES["docs/README.md"])}
    assert listed >= {
        page for page in PAGES if page.startswith("docs/") and "answer.md" not in page
    } - {"docs/README.md"}


def test_every_name_of_the_api_page_is_there():
    names = re.findall(r"^::: (\S+)\.(\w+)$", PAGES["docs/api.md"], re.MULTILINE)
    assert len(names) > 15
    assert [
        name for module, name in names if not getattr(import_module(module), name).__doc__
    ] == []
    rows = re.findall(r"^\| (`.*`) \| `(\S+)` \|", PAGES["docs/api.md"], re.MULTILINE)
    listed = [(module, name) for row, module in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(name for _, name in listed) == sorted(name for _, name in names)
    assert [name for module, name in listed if not hasattr(import_module(module), name)] == []


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


@pytest.mark.parametrize(
    "words", [words for words in COMMANDS if "a.yaml" not in words], ids=" ".join
)
def test_every_command_that_is_told_is_one_that_its_program_takes(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(  # the folders that are named need not be there
        "vit.cli.parsers.named_data",
        lambda data: {"source": data} if data == "scenes" else {"root": data},
    )
    words = [word for word in words if word not in ("--help", "--resume")]
    if words[:2] in (["python", "train.py"], ["vit", "train"]):
        assert command_of(parse(["train", *words[2:]])[1]).out.parts[0] == "runs"
        return
    if words[:3] == ["python", "-m", "bench"]:
        bench_parser().parse_args(words[3:])
        return
    if words[:2] == ["python", "-m"] and words[2].startswith("studies."):
        assert callable(import_module(words[2]).run)
        return
    if words[:3] == ["python", "-m", "studies"]:
        options, settings = study_parser().parse_known_args(words[4:])
        for study in STUDIES if words[3] in ("all", "NAME") else [words[3]]:
            study_settings(study, options, settings)
        return
    name, options = parse(words[1:])
    if name == "data":
        read_config(options)


def test_no_picture_of_a_page_is_refused_because_of_one_drawn_before():
    """Whoever makes the commands of a page one after another gets all its pictures."""
    for page, text in PAGES.items():
        written = []
        for words in commands(text, "    "):
            if words[:2] == ["vit", "attention"]:
                _, options = parse(words[1:])
                if not options.overwrite:
                    written += picture_paths(options, options.mask is not None)
        assert len(written) == len(set(written)), page


def test_commands_are_found():
    assert len(COMMANDS) > 100
    assert {words[1] for words in COMMANDS} >= {
        "train.py",
        "attention",
        "evaluate",
        "compare",
        "checkpoint",
    }
    assert {words[2] for words in COMMANDS if words[1] == "-m"} >= {"studies", "bench"}


# --- the answers in docs/questions: their numbers are held to the tables folded below, their length to a page

# Numbers that follow from the tables, which the sentences combine.
LOSS, PROBE = "loss over masked patches", "linear probe"
GUESS = "no model: mean of the visible patches, raw pixels  "  # with its empty cells


def above(row: str, column: str, usual: str = "all learn") -> Callable[[Cells], float]:
    return lambda cell: cell[row, column] - cell[usual, column]


def mean(*places: tuple[str, str]) -> Callable[[Cells], float]:
    return lambda cell: sum(cell[place] for place in places) / len(places)


def ratio(moment: str) -> Callable[[Cells], float]:
    asking, giving = (
        mean(*((name, moment) for name in names)) for names in (("W_Q", "W_K"), ("W_V", "W_O"))
    )
    return lambda cell: asking(cell) / giving(cell)


def gain(guess: str, column: str) -> Callable[[Cells], float]:
    return lambda cell: cell[guess, column] - cell["all learn", column]


def share_of_gain(row: str, guess: str, column: str) -> Callable[[Cells], float]:
    return lambda cell: 100 * above(row, column)(cell) / gain(guess, column)(cell)


def by_own_patch(row: str, column: str) -> Callable[[Cells], float]:
    return lambda cell: cell[row, column] / cell[row, "its own patch"]


DERIVED: dict[str, dict[str, Callable[[Cells], float]]] = {
    "attention-or-cause": {
        "60": lambda cell: 60,  # configs/cifar10_tiny_p4.yaml
        "25": lambda cell: round(0.4 * 64) - 1,
        "26": lambda cell: round(0.4 * 64),
    },
    "fixed-or-learned": {
        "0.147": gain(GUESS, LOSS),
        "13": share_of_gain("all three frozen", GUESS, LOSS),
        "67": share_of_gain("uniform attention", GUESS, LOSS),
        "78": share_of_gain("no positions at all", GUESS, LOSS),
        "10.4": lambda cell: -above("uniform attention", PROBE)(cell),
        "5.1": lambda cell: -above("no positions in the encoder", PROBE)(cell),
        "0.6": lambda cell: -above("W_E frozen", PROBE)(cell),
    },
    "identity-case": {
        "1.5": lambda cell: 100 / 65,  # of 64 patches and the class token
        "0.020": above("the three matrices, frozen at random", LOSS, "learned matrices"),
    },
    "one-hot": {"48": lambda cell: 4 * 4 * 3},
    "static-and-contextual": {
        "3.5": by_own_patch("nothing: random weights", "mean of the image"),
    },
    "who-trains-them": {
        "0.25": ratio("gradient at the end"),
        "19": lambda cell: (
            100
            * cell["MLP frozen", "more than where all learn"]
            / (0.827 - cell["all learn ", LOSS])
        ),
    },
}
CITED = re.compile(r"\[[^\]]*\]\(https://arxiv\.org/[^)]*\)")
"""A paper: its year is no measurement of ours."""


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
def test_each_number_in_the_sentences_of_an_answer_is_in_its_tables_or_follows_from_them(name):
    page = PAGES[f"docs/questions/{name}/answer.md"]
    folded = "\n".join(re.findall(r"<details.*?</details>", page, re.DOTALL))
    # with titles
    tables = "\n".join(line for line in folded.splitlines() if line.startswith(("|", "**")))
    missing = figures_that_are_missing(CITED.sub("", prose_of(page)), tables)
    derived = DERIVED.get(name, {})
    for said, value in derived.items():  # of rounded cells
        assert agrees(said, value(cells_of(page)), 1.5), said
    assert missing == derived.keys()


@pytest.mark.parametrize("name", STUDIES)
def test_an_answer_is_short_and_begins_with_the_sentence_to_remember_as_readme_and_the_course_do(
    name,
):
    folder, page = ROOT / "docs" / "questions" / name, PAGES[f"docs/questions/{name}/answer.md"]
    question, sentence = re.match(r"# (.*)\n\n\*\*(.*)\*\*\n\n!\[", page).groups()
    assert question == STUDIES[name]
    assert f"- [{question}](docs/questions/{name}/answer.md)\n  {sentence}\n" in README
    assert f"## [{question}]({name}/answer.md)\n\n{sentence}\n" in QUESTIONS
    assert len(numbers(sentence)) <= 1
    (row,) = [part for part in QUESTIONS.split("\n## ") if part.startswith(f"[{question}]")]
    assert (folder / re.search(rf"!\[.*\]\({name}/([^)]+)\)", row)[1]).is_file()
    assert not figures_that_are_missing(row, page)
    assert len(re.sub(r"\$+[^$]+\$+", "", prose_of(page)).split()) <= 320
    assert "*How to read it:*" in page
    code = f"studies/{name.replace('-', '_')}.py"
    assert f"[{code}](../../../{code})" in page
    pictures = re.findall(r"\]\((\w+\.png)\)", page)
    assert pictures
    assert sorted(pictures) == sorted(path.name for path in folder.glob("*.png"))


def test_the_short_answer_is_short():
    short = QUESTIONS.partition("## The short answer")[2].partition("\n## ")[0]
    assert len(re.sub(r"\]\(.*?\)", "", short).split()) <= 400
    assert {f"]({name}/answer.md)" for name in STUDIES} <= set(re.findall(r"\]\(.*?\)", short))
