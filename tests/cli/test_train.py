"""Settings as train.py takes them from a shell: light to ask about, honest about every field, one line for a mistake."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from itertools import pairwise
from pathlib import Path

import pytest
from forks import calls

from vit.settings import SECTIONS

TRAIN = Path(__file__).resolve().parents[2] / "train.py"


def field_explanations(kind: type) -> dict[str, str]:
    """The text below each field of a section, or of what it derives from, as it stands in the source."""
    inherited = field_explanations(kind.__base__) if dataclasses.is_dataclass(kind.__base__) else {}
    body = ast.parse(inspect.getsource(kind)).body[0].body
    return inherited | {
        field.target.id: text.value.value
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def test_train_help_explains_every_field_without_heavy_imports(weighed):
    done = weighed(
        f"import runpy; sys.argv = ['train.py', '--help']; runpy.run_path({str(TRAIN)!r}, run_name='__main__')"
    )
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
    for option in ("config", "print_config", "out", "resume"):
        assert len(entries[option]) > 40


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (["--train.epochs", "-1"], "train.epochs"),
        (["--train.epoch", "1"], "train.epoch: no such setting"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--config", "twice.yaml"], "epochs is set twice"),
        (["--model.patch_size", "5"], "model.patch_size"),
        (["--train.objective", "classify"], "has the settings of quickstart.yaml"),
        (["--resume"], "--resume"),
        (["--out", "x" * 300], "xxx"),
    ],
    ids=lambda value: (
        " ".join(value)[:40].encode("unicode_escape").decode() if isinstance(value, list) else ""
    ),
)
def test_bad_setting_is_one_line_and_leaves_no_trace(argv, key, forks, tmp_path):
    (tmp_path / "twice.yaml").write_text("train: {epochs: 1, epochs: 2}")
    done = forks(tmp_path, calls(TRAIN, argv))
    assert done.returncode == 2
    assert not done.stdout
    assert re.fullmatch(r"train\.py: error: [^\n\x1b]*\n", done.stderr)
    assert key in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["twice.yaml"]
