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


@pytest.fixture
def vit_predict(models, monkeypatch, called):
    """`vit_predict(*argv)` within `models`: its exit code, output and error."""
    monkeypatch.chdir(models)
    return lambda *argv: called("predict", *argv)


def test_table_json_and_csv_say_what_predict_does(vit_predict, models, tmp_path):
    model, files = (
        load_model(models / "encoder"),
        ["one.png", *sorted(str(path) for path in (models / "data").rglob("*.png"))],
    )
    expected = predict(model, [models / file for file in files])
    asked = ["encoder", "one.png", models / "data"]
    code, said, error = vit_predict(
        *asked, "--json", "--top", 9, "--csv", tmp_path / "new" / "out.csv"
    )
    assert (code, error) == (0, "")
    found = json.loads(said)
    assert [row["file"] for row in found] == files
    for row, values in zip(found, expected, strict=True):
        assert [one["class"] for one in row["classes"]] == [
            CLASSES[i] for i in values.argsort(descending=True)
        ]
        torch.testing.assert_close(
            torch.tensor([one["probability"] for one in row["classes"]]),
            values.sort(descending=True)[0],
        )
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

    code, table, _ = vit_predict(*asked, "--top", 1)
    lines = table.splitlines()
    assert len({len(line) for line in lines}) == 1
    for line, row in zip(lines, found, strict=True):
        best = row["classes"][0]
        assert re.fullmatch(
            rf"{re.escape(row['file'])} +{best['class']} +{best['probability']:.1%}", line
        )


def test_a_name_of_any_bytes_is_no_obstacle(vit_predict, models, tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    shutil.copy(models / "one.png", odd)
    assert vit_predict("encoder", odd, "--csv", tmp_path / "out.csv")[0] == 0
    assert "caf\\udce9.png" in (tmp_path / "out.csv").read_text()


def test_a_photo_named_twice_is_predicted_once(vit_predict, models):
    """A file that also lies in a folder, by whatever path; a copy or a link of it is another file."""
    code, said, _ = vit_predict("encoder", "data/cat/3.png", "./data", "data/cat", "--json")
    files = [row["file"] for row in json.loads(said)]
    assert (code, files[0], len(files)) == (0, "data/cat/3.png", 24)
    assert len({os.path.abspath(file) for file in files}) == 24


def test_classes_without_names_have_numbers(vit_predict, tmp_path):
    code, said, _ = vit_predict("encoder", "one.png", "--num-classes", 3, "--json")
    assert code == 0
    assert {one["class"] for one in json.loads(said)[0]["classes"]} == set(CLASSES)
    model = load_model("mean")
    save_model(tmp_path / "nameless", model, model.origin.normalize)
    code, said, _ = vit_predict(tmp_path / "nameless", "one.png")
    assert code == 0
    assert set(re.findall(r"class \d", said)) == {"class 0", "class 1", "class 2"}


def test_an_image_that_cannot_be_read_is_left_out_on_request(vit_predict, refused, caplog):
    line = ["encoder", "one.png", "mae/config.json", "--json"]
    assert json.loads(vit_predict(*line[:2], "--json")[1]) == json.loads(
        vit_predict(*line, "--on-bad-image", "skip")[1]
    )
    assert (
        "mae/config.json: not a readable image (its content is not an image), left out"
        in caplog.text
    )
    assert "; --on-bad-image skip leaves out all such files" in refused("predict", *line)
    assert "none of the images can be read" in refused(
        "predict", "encoder", "mae/config.json", "--on-bad-image", "skip"
    )
