"""train.py as a shell calls it: its help has every setting, a mistake is one line, no file."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import signal
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from forks import calls

from vit.cli.parsers import train_parser
from vit.cli.train import run
from vit.config import spelled
from vit.settings import SECTIONS
from vit.training.process import Stopped, StopRequests

TRAIN = Path(__file__).resolve().parents[2] / "train.py"


def sentences(section: type) -> dict[str, str]:
    """The text below each field of a section, as it stands in the source."""
    texts = {}
    for item, text in pairwise(ast.parse(inspect.getsource(section)).body[0].body):
        if isinstance(item, ast.AnnAssign):
            texts[item.target.id] = text.value.value
    return texts


def test_help_explains_every_setting_without_heavy_imports(weighed):
    program = f"import runpy; runpy.run_path({str(TRAIN)!r}, run_name='__main__')"
    done = weighed(f"sys.argv = ['train.py', '--help']; {program}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("imported:\n")

    # What stands below each option; the help is wrapped, also at hyphens
    entries = {}
    for entry in re.split(r"\n(?=  -)", done.stdout):
        option = re.match(r"\s*--([\w.]+)", entry)
        if option:
            entries[option[1]] = "".join(entry.split())
    for name, section in SECTIONS.items():
        texts = sentences(section)
        for item in dataclasses.fields(section):
            entry = entries[f"{name}.{item.name}"]
            default = spelled(getattr(section(), item.name))
            assert len(texts[item.name].split()) >= 3
            assert "".join(f"{texts[item.name]} (default: {default})".split()) in entry
    for option in ("config", "print_config", "out", "resume", "data"):
        assert len(entries[option]) > 40


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--train.epochs", "-1"], "train.epochs: -1 cannot be used; 1 or more"),
        (["--train.epoch", "1"], "train.epoch: no such setting"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--train.objective", "classify"], "has the settings of quickstart.yaml"),
        (["--resume"], "--resume"),
        (["--out", "x" * 300], "xxx"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_bad_setting_is_one_line_and_leaves_no_trace(argv, message, forks, tmp_path):
    done = forks(tmp_path, calls(TRAIN, argv))
    assert done.returncode == 2
    assert not done.stdout
    assert re.fullmatch(r"train\.py: error: [^\n\x1b]*\n", done.stderr)
    assert message in done.stderr
    assert not [*tmp_path.iterdir()]


def test_a_second_signal_while_the_end_is_told_tells_it_no_second_time(monkeypatch, tmp_path):
    told = []

    def tell(text: str) -> None:
        signal.raise_signal(signal.SIGINT)
        told.append(text)

    def stopped(*_: object, **__: object) -> None:
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr("vit.train.train", stopped)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=tell, flush=lambda: None))
    before = signal.getsignal(signal.SIGINT)
    with StopRequests():
        words = ["--config", "quickstart", "--out", str(tmp_path / "run")]
        assert run(train_parser().read(words)) == 130
    assert "".join(told) == "stopped by SIGINT; nothing had started\n"
    assert signal.getsignal(signal.SIGINT) == before
