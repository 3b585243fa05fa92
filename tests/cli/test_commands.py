"""The command `vit` as a shell calls it: light to start, one line for a mistake."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import vit
from vit.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def vit_command(weighed):
    """`vit_command(*argv)`: `vit argv`, weighed."""
    return lambda *argv: weighed(f"from vit.cli import main; sys.exit(main({list(argv)!r}))")


@pytest.mark.parametrize(("argv", "said"), [(["--version"], f"vit {vit.__version__}\n"), (["--help"], "usage: vit")])
def test_vit_answers_without_heavy_imports(argv, said, vit_command):
    done = vit_command(*argv)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(said)
    assert done.stdout.endswith("imported:\n")
    assert not done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_without_heavy_imports(name, vit_command):
    done = vit_command(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
    assert done.stdout.endswith("imported:\n")
    assert re.search(rf"^\s+{name}\s+\w", vit_command("--help").stdout, re.MULTILINE)


def test_package_is_the_command_too(shell):
    done = shell("-m", "vit.cli", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"vit {vit.__version__}\n", "")


def test_version_is_the_package_s():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == vit.__version__


@pytest.mark.parametrize("argv", [["fly"], [], ["--fly"], ["data", "--fly"], ["data"]])
def test_vit_refuses_what_it_does_not_know(argv, vit_command):
    done = vit_command(*argv)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "error:" in done.stderr.splitlines()[-1]
    assert done.stdout == "imported:\n"
