"""`vit train` as a shell calls it: a mistake is one line and no file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vit.checkpoints import load_model


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--train.epochs", "-1"], "train.epochs: '-1' cannot be used; input should be greater"),
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
