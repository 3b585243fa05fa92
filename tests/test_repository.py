"""Files beside the code say what the code says: versions, names, paths and commands."""

import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

import vit
from vit.cli import COMMANDS
from vit.cli.parsers import parse_train_command
from vit.settings import config_file

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PAGES = [
    path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
]


def test_citation_says_what_the_package_says():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"]
    assert citation["title"] == PROJECT["name"]
    assert citation["version"] == vit.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["abstract"] == PROJECT["description"]
    assert citation["keywords"] == PROJECT["keywords"]
    assert [list(author) for author in citation["authors"]] == [["name"]]


def test_the_workflow_runs_what_a_change_must_pass_and_nothing_else():
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())[
        "jobs"
    ].values()
    checkout, step = job["steps"]
    assert checkout["uses"].startswith("actions/checkout@")
    assert step == {"run": ".ci/run"}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert job["container"] == "python:${{ matrix.python }}-bookworm"
    versions = job["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == PROJECT["requires-python"]


def test_ruff_is_one_version():
    (hooks,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert f"ruff=={hooks['rev'].removeprefix('v')}" in PROJECT["optional-dependencies"]["dev"]


def test_the_image_has_the_command_and_what_it_is_built_from():
    copied = [
        word
        for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE)
        for word in line.split()
    ]
    assert {
        "vit",
        "configs",
        "pyproject.toml",
        "setup.py",
        PROJECT["readme"],
        *PROJECT["license-files"],
    } <= {*copied}
    assert [name for name in copied if not (ROOT / name).exists()] == []
    (entry,) = yaml.safe_load(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)[1])
    assert entry in PROJECT["scripts"]
    (base,) = re.findall(r"^FROM python:3\.(\d+)-slim$", DOCKERFILE, re.MULTILINE)
    assert int(base) >= int(PROJECT["requires-python"].removeprefix(">=3."))
    assert re.search(r"apt-get install .*\bg\+\+", DOCKERFILE)  # for torch.compile


@pytest.mark.parametrize("file", ["Dockerfile", "docs/install.md"])
def test_docker_is_called_with_what_there_is(file, tmp_path, monkeypatch):
    lines = re.findall(
        r"^(?:# |    )docker (\w+) (.*?)(?:  .*)?$", (ROOT / file).read_text(), re.MULTILINE
    )
    assert [name for name, _ in lines] == ["build", "build", "run", "run"]
    for found in re.findall(r"--build-arg (\w+)=", str(lines)):
        assert f"ARG {found}=" in DOCKERFILE
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_images").mkdir()
    for name, line in lines:
        if name == "run":
            command, *argv = shlex.split(line.partition(" vit ")[2])
            assert command in COMMANDS
            parse_train_command(argv)
    assert config_file("gpu_cifar10_tiny_p2")


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


def test_the_page_about_installing_names_every_extra():
    named = re.search(
        r"^Extras(?:.+\n)+", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE
    )[0]
    assert set(PROJECT["optional-dependencies"]) <= {*re.findall(r"`(\w+)`", named)}
