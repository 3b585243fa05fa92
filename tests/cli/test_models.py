"""`vit models` lists what comes with the package, in a table and as JSON, without heavy imports."""

import json

import pytest
import torch
from small import change
from tiny import NORMALIZE, autoencoder, encoder

import vit.pretrained
from vit.checkpoints import save_model
from vit.cli import main

PROBED = {"linear": {"accuracy": 0.612}, "knn": {"accuracy": 0.5}, "tested_on": "test images"}


@pytest.fixture
def package(tmp_path, monkeypatch):
    mae = autoencoder(image_size=(8, 16))
    figures = {
        "test_loss": 0.50219,
        "neighbours": {"encoder_accuracy": 0.4},
        "tested_on": "test images",
    }
    figures["measured"] = [
        PROBED | {"data": "other images", "linear": {"accuracy": 0.99}},
        PROBED | {"data": "noise"},
    ]
    save_model(tmp_path / "a", mae, NORMALIZE, (), "noise", dtype=torch.float16)
    change(tmp_path / "a", figures=figures)
    head = [{"protocol": "", "images": 9999, "accuracy": 0.9312, "baselines": {}}]
    figures = {"scores": {"head": head}, "tested_on": "held-out training images"}
    classifier = encoder(image_size=(8, 8), num_classes=3)
    save_model(tmp_path / "b", classifier, NORMALIZE, (), "noise")
    change(tmp_path / "b", figures=figures)
    save_model(tmp_path / "c", encoder(image_size=(8, 16)), NORMALIZE, (), "odd\n\x1b[2Jname")
    monkeypatch.setattr(vit.pretrained, "FOLDER", tmp_path)
    return tmp_path


def test_the_table_says_what_there_is(package, capsys):
    assert main(["models"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "name"
    assert [row.split()[0] for row in rows] == ["a", "b", "c"]
    for row, parts in zip(rows, (
        ("width 16 x 2 blocks, patch 4, image 8 x 16, decoder 16 x 1", "noise",
         "loss 0.502, linear probe 61.2%, neighbours 50.0%"),
        ("image 8, 3 classes", "accuracy 93.1% on held-out training images"),
        ("odd \\x1b[2Jname", "-"),
    ), strict=True):  # fmt: skip
        for part in parts:
            assert part in row, part


def test_json_has_all_of_it(package, capsys):
    assert main(["models", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in known] == ["a", "b", "c"]
    assert known[0]["figures"]["test_loss"] == 0.50219
    assert known[1]["decoder"] is None
    for model in known:
        files = (package / model["name"]).iterdir()
        assert model["bytes"] == sum(path.stat().st_size for path in files)
    assert known[0]["bytes"] < 3 * known[0]["parameters"] + 8000  # two bytes each, and the settings


def test_a_damaged_model_is_one_line(package, refused):
    (package / "b" / "config.json").write_text("{")
    assert refused("models")


def test_it_answers_without_heavy_imports(package, weighed):
    code = (
        f"import vit.pretrained, pathlib; vit.pretrained.FOLDER = pathlib.Path({str(package)!r}); "
    )
    done = weighed(code + "from vit.cli import main; sys.exit(main(['models']))")
    assert done.returncode == 0, done.stderr
    assert "61.2%" in done.stdout
    assert done.stdout.endswith("imported:\n")
