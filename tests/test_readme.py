"""What README and the pages of docs claim, and a file of the repository holds: commands, figures, names, lines."""

import re
import shlex
import tomllib
from importlib import import_module

import pytest
import yaml
from forks import ROOT

from bench.__main__ import bench_parser
from studies import STUDIES
from studies.__main__ import study_parser, study_settings
from studies.world import Model
from vit.cli import parse
from vit.commandline import given_settings
from vit.config import Config, read_settings
from vit.runs import __version__

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("studies/results/*.md"))
}
README = PAGES["README.md"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
QUESTIONS = PAGES["docs/questions/README.md"]
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")


ANSWERS = {name: f"docs/questions/{name}/answer.md" for name in STUDIES}
ANSWERS["world"] = "docs/questions/world.md"  # before the nine
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
    assert len(README.splitlines()) <= 90
    assert len(set(re.findall(r"questions/[\w-]+/answer.md", README))) >= 3


def test_each_figure_of_the_results_is_on_the_page_that_is_named_beside_it():
    said = re.findall(r"^\| \[.*?\]\((docs/[^)#]+).*?\) (\|.*)$", README, re.MULTILINE)
    worth = re.search(
        r"^\*\*Is pretraining worth it\?\*\*(.*?)\]\((docs/[^)#]+)", README, re.M | re.S
    )
    said.append((worth[2], worth[1]))
    assert len(said) >= 4
    for page, text in said:
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


@pytest.mark.parametrize("page", PAGES)
def test_every_file_extra_and_constant_that_is_named_is_there(page):
    files = re.findall(r"`((?:vit|tests|docs|configs|notebooks|examples)/[\w/.]*)`", PAGES[page])
    assert [name for name in files if not (ROOT / name).exists()] == []
    named = re.findall(r"'\.\[([\w,]+)\]'", PAGES[page])
    extras = {extra for some in named for extra in some.split(",")}
    assert extras <= set(PROJECT["optional-dependencies"])
    for name, place in re.findall(r"`([A-Z]\w+)` of `(vit/[\w/.]+)`", PAGES[page]):
        assert re.search(rf"^{name}\b.* = ", (ROOT / place).read_text(), re.MULTILINE), name


def test_citation_says_what_the_package_says():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["license"] == PROJECT["license"]
    assert citation["abstract"] == PROJECT["description"]


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


def test_commands_are_found():
    assert len(COMMANDS) > 100


# --- the answers in docs/questions: their numbers are held to the tables in studies/results, their length to a page

LOSS, PROBE = "loss over masked patches", "linear probe"


def combined(name: str, cell: Cells) -> dict[str, float]:
    """The numbers that the sentences of an answer combine from its tables, by how they stand there."""
    if name == "attention-or-cause":
        return {"60": 60, "26": round(0.4 * 64)}  # masked in percent, visible patches
    if name == "fixed-or-learned":
        # with its empty cells
        guess = cell["no model: mean of the visible patches, raw pixels  ", LOSS]
        usual, gain = cell["all learn", LOSS], guess - cell["all learn", LOSS]
        probe = cell["all learn", PROBE]
        return {
            "0.147": gain,
            "13": 100 * (cell["all three frozen", LOSS] - usual) / gain,
            "67": 100 * (cell["uniform attention", LOSS] - usual) / gain,
            "78": 100 * (cell["no positions at all", LOSS] - usual) / gain,
            "10.4": probe - cell["uniform attention", PROBE],
            "5.1": probe - cell["no positions in the encoder", PROBE],
        }
    if name == "world":
        return {"20848": sum(parameter.numel() for parameter in Model().parameters())}
    if name == "who-trains-them":
        end = {row: cell[row, "gradient at the end"] for row in ("W_Q", "W_K", "W_V", "W_O")}
        more = cell["MLP frozen", "more than where all learn"]
        return {
            "0.25": (end["W_Q"] + end["W_K"]) / (end["W_V"] + end["W_O"]),
            "19": 100 * more / (0.827 - cell["all learn ", LOSS]),
        }
    return {}


def prose_of(page: str) -> str:
    """No title, figure, nor when it was measured."""
    return re.sub(r"^(?:# |!\[|Measured on ).*$", "", page, flags=re.MULTILINE)


def running_text(page: str) -> str:
    """Sentences, with captions: no title, picture, table, code, formula, nor the links at the end."""
    body = page.rstrip().rpartition("\n\n")[0]
    return re.sub(r"^(?:[#|]|!\[|    ).*$|\$+[^$]+\$+", "", body, flags=re.MULTILINE)


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
def test_each_number_of_an_answer_is_in_the_tables_of_its_results_or_follows_from_them(name):
    page = PAGES[ANSWERS[name]]
    results = PAGES[f"studies/results/{name}.md"]
    root = "../" * ANSWERS[name].count("/")
    assert f"[studies/results/{name}.md]({root}studies/results/{name}.md)" in page
    # with titles
    tables = "\n".join(line for line in results.splitlines() if line.startswith(("|", "**")))
    missing = figures_that_are_missing(prose_of(page), tables)
    derived = combined(name, cells_of(results))
    for said, value in derived.items():  # of rounded cells
        assert agrees(said, value, 1.5), said
    assert missing == derived.keys()


@pytest.mark.parametrize("name", STUDIES)
def test_an_answer_is_short_and_begins_with_the_sentence_that_readme_and_the_course_have(name):
    page = PAGES[ANSWERS[name]]
    question, sentence = re.match(r"# (.*)\n\n\*\*(.*)\*\*\n\n!\[", page).groups()
    assert question == STUDIES[name]
    link = ANSWERS[name].removeprefix("docs/questions/")
    assert f"[{question}]({link})\n   {sentence}\n" in QUESTIONS
    # README names some of the questions
    if f"[{question}]" in README:
        assert f"[{question}](docs/questions/{link})\n  {sentence}\n" in README
    assert page.count("\n\n|") == 1
    assert len(running_text(page).split()) <= 300
    assert "<details" not in page
