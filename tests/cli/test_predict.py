"""`vit predict` says what `predict` computes, in a table, JSON and CSV alike."""

import csv
import json
import os
import re
import shutil

import pytest
import torch

from vit.checkpoints import load_model, save_model
from vit.look.predict import predict

CLASSES = ("cat", "dog", "<b>cow")  # of the models


@pytest.fixture(autouse=True)
def _within(models, monkeypatch):
    monkeypatch.chdir(models)


def test_table_json_and_csv_say_what_predict_does(called, models, tmp_path):
    files = ["one.png", *sorted(map(str, (models / "data").rglob("*.png")))]
    expected = predict(load_model("encoder"), files)
    line = f"predict encoder one.png {models / 'data'}"
    code, said, error = called(line, "--json --top 9 --csv", tmp_path / "new" / "out.csv")
    assert (code, error) == (0, "")
    found = json.loads(said)
    assert [row["file"] for row in found] == files
    for row, values in zip(found, expected, strict=True):
        likeliest, order = values.sort(descending=True)
        assert [one["class"] for one in row["classes"]] == [CLASSES[i] for i in order]
        told = torch.tensor([one["probability"] for one in row["classes"]])
        torch.testing.assert_close(told, likeliest)
    with (tmp_path / "new" / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["file"], row["class"], float(row["probability"])) for row in rows] == [
        (row["file"], one["class"], one["probability"]) for row in found for one in row["classes"]
    ]
    assert [row["rank"] for row in rows] == ["1", "2", "3"] * 25
    # the class that an image's folder names, where the model knows it
    folders = [os.path.basename(os.path.dirname(row["file"])) for row in rows]
    assert [row["true_class"] for row in rows] == folders
    assert set(folders) == {"cat", "dog", ""}

    lines = called(line, "--top 1")[1].splitlines()
    assert len({len(line) for line in lines}) == 1
    for line, row in zip(lines, found, strict=True):
        best = row["classes"][0]
        words = [row["file"], best["class"], f"{best['probability']:.1%}"]
        assert line.split() == words


def test_a_name_of_any_bytes_is_no_obstacle(called, tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    shutil.copy("one.png", odd)
    assert called("predict encoder", odd, "--csv", tmp_path / "out.csv")[0] == 0
    assert "caf\\udce9.png" in (tmp_path / "out.csv").read_text()


def test_a_photo_named_twice_is_predicted_once(called):
    """A file that also lies in a folder, by whatever path; a copy or a link of it is another file."""
    _, said, _ = called("predict encoder data/cat/3.png ./data data/cat --json")
    files = [row["file"] for row in json.loads(said)]
    assert (files[0], len(files)) == ("data/cat/3.png", 24)
    assert len({os.path.abspath(file) for file in files}) == 24


def test_classes_without_names_have_numbers(called, tmp_path):
    model = load_model("mean")
    save_model(tmp_path / "nameless", model, model.origin.normalize)
    _, said, _ = called("predict", tmp_path / "nameless", "one.png")
    assert set(re.findall(r"class \d", said)) == {"class 0", "class 1", "class 2"}


def test_an_image_that_cannot_be_read_is_left_out_on_request(called, caplog):
    line = "predict encoder one.png --json"
    assert called(line) == called(line, "mae/config.json --on-bad-image skip")
    assert "mae/config.json: not a readable image" in caplog.text
