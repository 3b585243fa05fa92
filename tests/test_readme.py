"""README's claims that a file of the repository holds: nothing stands there that is not in the pages it names."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from vit.cli.options import read_options
from vit.cli.study import study_settings
from vit.settings import parse_train_command, take_options
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


def commands(text: str, begin: str) -> list[list[str]]:
    """The lines of `text` that begin so and call train.py or vit, in words; continued lines joined, remarks left out."""
    lines = re.sub(r"\\\n[# ]*", "", text).splitlines()
    called = [line.removeprefix(begin).partition("  #")[0] for line in lines if line.startswith(begin)]
    return [
        shlex.split(re.sub(r"(\w)\|[\w|-]+", r"\1", line))
        for line in called
        if re.match("(python train.py|vit) ?", line)
    ]


COMMANDS = [
    *commands(re.sub(r"^    [A-D]: ", "    ", README, flags=re.MULTILINE), "    "),
    *(words for file in sorted(ROOT.glob("configs/**/*.yaml")) for words in commands(file.read_text(), "#   ")),
]


@pytest.mark.parametrize("words", [words for words in COMMANDS if "a.yaml" not in words], ids=" ".join)
def test_every_command_that_is_told_is_one_that_its_program_takes(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = [word for word in words if word not in ("--help", "--resume")]
    if words[:2] == ["python", "train.py"]:
        assert parse_train_command(words[2:], ROOT / "configs" / "quickstart.yaml").out.parts[0] == "runs"
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
    assert len(COMMANDS) > 60
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
    part = README.partition("## Read the code")[2].partition("From the top down")[0]
    said, rest = (int(found.replace(",", "")) for found in re.findall(r"([\d,]+) (?:lines|more)", part))
    objectives = ["vit/training/objectives/__init__.py", "vit/training/objectives/reconstruct.py"]
    named = {*re.findall(r"`(vit/\S+\.py)`", part), *objectives}
    training = {ROOT / name for name in (*named, "train.py", "vit/cli/train.py")}
    training |= {*ROOT.glob("vit/data/*.py"), *ROOT.glob("vit/training/**/*.py")}
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in training}
    evening = sum(count for path, count in lines.items() if str(path.relative_to(ROOT)) in named)
    assert 0.95 * said < evening <= said
    assert 0.9 * rest < sum(lines.values()) - evening <= 1.05 * rest
