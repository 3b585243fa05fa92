"""train.py as a shell calls it: its help has every setting, a mistake is one line, no file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from vit.checkpoints import load_model
from vit.config import Config, spelled

TRAIN = Path(__file__).resolve().parents[2] / "train.py"


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
    for name, section in Config():
        for key, field in type(section).model_fields.items():
            text = f"{field.description} (default: {spelled(getattr(section, key))})"
            assert "".join(text.split()) in entries[f"{name}.{key}"]
    for option in ("config", "print_config", "out", "resume", "data"):
        assert len(entries[option]) > 40


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--train.epochs", "-1"], "train.epochs: '-1' cannot be used; input should be greater"),
        (["--train.epoch", "1"], "--train.epoch; did you mean --train.epochs?"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--resume"], "--resume"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_bad_setting_is_one_line_and_leaves_no_trace(
    argv, message, refused, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert message in refused("train", *argv)
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("unpainted")
def test_finetune_teaches_any_model_the_classes_of_a_folder(models, tmp_path, called):
    """Its size is the model's; the classes are the folder's, and `vit predict` names them."""
    line = ["--config", "finetune", "--data", models / "data", "--model.init", models / "plain"]
    few = ["--train.epochs", 1, "--run.device", "cpu", "--train.precision", "fp32"]
    few += ["--data.cache", tmp_path / "cache"]
    code, said, error = called("train", *line, *few, "--out", tmp_path / "run")
    assert code == 0, error
    assert Path(said.splitlines()[-1].removeprefix("The report: ")).is_file()
    taught = load_model(tmp_path / "run")
    assert taught.origin.class_names == ("cat", "dog")
    assert taught.origin.image_size == (12, 16)
    code, said, _ = called("predict", tmp_path / "run", models / "one.png", "--json")
    (row,) = json.loads(said)
    assert {one["class"] for one in row["classes"]} == {"cat", "dog"}
