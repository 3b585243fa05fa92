"""`vit predict` says what `predict` computes, in a table, JSON and CSV alike."""

import csv
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from vit.checkpoints import load_model
from vit.look.predict import predict

CLASSES = ("cat", "dog", "<b>cow")  # of the models


@pytest.fixture(autouse=True)
def _within(models, monkeypatch):
    monkeypatch.chdir(models)


def test_table_json_and_csv_say_what_predict_does(called, tmp_path):
    line = "predict encoder one.png data"
    code, said, error = called(line, "--json --top 9 --csv", tmp_path / "new" / "out.csv")
    assert (code, error) == (0, "")
    found = json.loads(said)
    files = ["one.png", *sorted(map(str, Path("data").rglob("*.png")))]
    assert [row["file"] for row in found] == files
    shown, table = [], called(line, "--top 1")[1].splitlines()
    for image, values, told in zip(
        found, predict(load_model("encoder"), files), table, strict=True
    ):
        likeliest, order = values.sort(descending=True)
        assert [one["class"] for one in image["classes"]] == [CLASSES[i] for i in order]
        probabilities = [one["probability"] for one in image["classes"]]
        torch.testing.assert_close(torch.tensor(probabilities), likeliest)
        # the class that an image's folder names, where the model knows it
        assert image["true_class"] == Path(image["file"]).parent.name in {"cat", "dog", ""}
        best = image["classes"][0]
        assert told.split() == [image["file"], best["class"], f"{best['probability']:.1%}"]
        for rank, one in enumerate(image["classes"], 1):
            cells = (image["file"], image["true_class"], rank, *one.values())
            shown.append([str(cell) for cell in cells])
    with (tmp_path / "new" / "out.csv").open(newline="") as file:
        assert list(csv.reader(file))[1:] == shown


def test_a_photo_named_twice_is_predicted_once(called):
    """A file that also lies in a folder, by whatever path; a copy or a link of it is another file."""
    _, said, _ = called("predict encoder data/cat/3.png ./data data/cat --json")
    files = [row["file"] for row in json.loads(said)]
    assert (files[0], len(files)) == ("data/cat/3.png", 24)
    assert len({os.path.abspath(file) for file in files}) == 24


def test_a_name_of_any_bytes_is_no_obstacle(called, tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    shutil.copy("one.png", odd)
    assert called("predict encoder", odd, "--csv", tmp_path / "out.csv")[0] == 0
    assert "caf\\udce9.png" in (tmp_path / "out.csv").read_text()
