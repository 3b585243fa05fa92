"""`vit train` as a shell calls it, and the page of `vit report`."""

import json
from pathlib import Path

import pytest
import yaml

from vit.checkpoints import load_model
from vit.config import Config


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


def test_a_page_stands_in_the_run_or_where_it_is_asked_for(tmp_path, called):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(Config().to_dict()))  # and nothing else
    for line, out in (("", tmp_path / "report.html"), ("--out", tmp_path / "new" / "page.html")):
        _, said, _ = called("report", tmp_path, line, out if line else "")
        assert said == f"report: {out}, {out.stat().st_size:,} bytes\n"
        assert "<h1" in out.read_text(encoding="utf-8")
