"""The commands as a shell calls them: light to start, honest about every field, one line for a mistake."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

import vit
from vit.cli import SECTIONS

ROOT = Path(__file__).resolve().parents[1]
TRAIN = ROOT / "train.py"
HEAVY = ("torch", "torchvision", "matplotlib", "timm", "PIL")


def shell(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def vit_command(*argv: str) -> subprocess.CompletedProcess:
    """`vit argv`, with the names of the heavy modules that it imported as the last line of stdout."""
    code = (
        "import sys\n"
        "try:\n"
        f"    from vit.cli import main; code = main({list(argv)!r})\n"
        "except SystemExit as end:\n"
        "    code = end.code\n"
        f"print('imported:', *[name for name in {HEAVY!r} if name in sys.modules])\n"
        "sys.exit(code)"
    )
    return shell("-c", code)


@pytest.mark.parametrize(("argv", "said"), [(["--version"], f"vit {vit.__version__}\n"), (["--help"], "usage: vit")])
def test_vit_answers_without_heavy_imports(argv, said):
    done = vit_command(*argv)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(said)
    assert done.stdout.endswith("imported:\n")
    assert not done.stderr


def test_vit_help_names_its_commands():
    assert re.search(r"^\s+data\s+\w", vit_command("--help").stdout, re.MULTILINE)


def test_version_is_the_package_s():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == vit.__version__


@pytest.mark.parametrize("argv", [["fly"], [], ["--fly"], ["data", "--fly"], ["data"]])
def test_vit_refuses_what_it_does_not_know(argv):
    done = vit_command(*argv)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "error:" in done.stderr.splitlines()[-1]
    assert done.stdout == "imported:\n"


def field_explanations(kind: type) -> dict[str, str]:
    """The text below each field of a section, as it stands in the source."""
    body = ast.parse(inspect.getsource(kind)).body[0].body
    return {
        field.target.id: text.value.value
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def test_train_help_explains_every_field_without_heavy_imports():
    code = f"""import runpy, sys
sys.argv = ["train.py", "--help"]
try:
    runpy.run_path({str(TRAIN)!r}, run_name="__main__")
finally:
    print("imported:", *[name for name in {HEAVY!r} if name in sys.modules])"""
    done = shell("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("imported:\n")
    entries = {}
    for entry in re.split(r"\n(?=  -)", done.stdout):
        if option := re.match(r"\s*--([\w.]+)", entry):
            entries[option[1]] = "".join(entry.split())  # the help is wrapped, also at hyphens
    for section, kind in SECTIONS.items():
        explanations = field_explanations(kind)
        for field in dataclasses.fields(kind):
            assert len(explanations[field.name].split()) >= 3
            assert "".join(explanations[field.name].split()) in entries[f"{section}.{field.name}"]
            assert "default:" in entries[f"{section}.{field.name}"]
    for option in ("config", "print_config"):
        assert len(entries[option]) > 40
    for option in ("--out DIR", "--resume"):
        assert re.search(rf"{option}: \w+ \w+", " ".join(done.stdout.split()))


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (["--train.epochs", "-1"], "train.epochs"),
        (["--train.epoch", "1"], "--train.epoch"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--config", "twice.yaml"], "train.epochs"),
        (["--model.patch_size", "5"], "model.patch_size"),
        (["--model.freeze", "[W_Z]"], "model.freeze"),
        (["--data.source", "folder", "--data.root", "no\x1b[31m such\nfolder"], "such"),
        (["--resume"], "--resume"),
        (["--out", "x" * 300], "xxx"),
    ],
    ids=lambda value: " ".join(value)[:40].encode("unicode_escape").decode() if isinstance(value, list) else "",
)
def test_bad_setting_is_one_line_and_leaves_no_trace(argv, key, tmp_path):
    (tmp_path / "twice.yaml").write_text("train: {epochs: 1, epochs: 2}")
    small = ["--data.source", "scenes", "--data.limit", "8"] if "model.freeze" in key else []
    done = shell(TRAIN, *small, *argv, cwd=tmp_path)
    assert done.returncode == 2
    assert not done.stdout
    assert re.fullmatch(r"train\.py: error: [^\n\x1b]*\n", done.stderr)
    assert key in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["twice.yaml"]
