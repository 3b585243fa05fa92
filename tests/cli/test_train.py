"""`vit train` as a shell calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vit.checkpoints import load_model


@pytest.mark.usefixtures("unpainted")
def test_finetune_teaches_any_model_the_classes_of_a_folder(models, tmp_path, called):
    """Its size is the model's; the classes are the folder's, and `vit predict` names them."""
    line = f"train --config finetune --data {models / 'data'} --model.init {models / 'plain'}"
    few = f"--train.epochs 1 --run.device cpu --train.precision fp32 --data.cache {tmp_path / 'cache'}"
    code, said, error = called(line, few, "--out", tmp_path / "run")
    assert code == 0, error
    assert Path(said.splitlines()[-1].removeprefix("The report: ")).is_file()
    taught = load_model(tmp_path / "run")
    assert taught.origin.class_names == ("cat", "dog")
    assert taught.origin.image_size == (12, 16)
    code, said, _ = called("predict", tmp_path / "run", models / "one.png", "--json")
    (row,) = json.loads(said)
    assert {one["class"] for one in row["classes"]} == {"cat", "dog"}
