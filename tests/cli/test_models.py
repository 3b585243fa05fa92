"""`vit models` lists what comes with the package, in a table and as JSON, without heavy imports."""

import json

import torch
from small import change
from tiny import NORMALIZE, autoencoder, encoder

from vit.checkpoints import save_model

PROBED = {"linear": {"accuracy": 0.612}, "knn": {"accuracy": 0.5}, "tested_on": "test images"}


def test_the_table_and_json_say_what_there_is_without_heavy_imports(
    tmp_path, monkeypatch, called, refused, weighed
):
    mae = autoencoder(image_size=(8, 16))
    save_model(tmp_path / "a", mae, NORMALIZE, (), "noise", dtype=torch.float16)
    elsewhere = PROBED | {"data": "other images", "linear": {"accuracy": 0.99}}
    figures = {"test_loss": 0.50219, "measured": [elsewhere, PROBED | {"data": "noise"}]}
    change(tmp_path / "a", figures=figures | {"tested_on": "test images"})
    classifier = encoder(image_size=(8, 8), num_classes=3)
    save_model(tmp_path / "b", classifier, NORMALIZE, (), "noise")
    head = [{"protocol": "", "images": 9999, "accuracy": 0.9312, "baselines": {}}]
    figures = {"scores": {"head": head}, "tested_on": "held-out training images"}
    change(tmp_path / "b", figures=figures)
    save_model(tmp_path / "c", encoder(image_size=(8, 16)), NORMALIZE, (), "odd\n\x1b[2Jname")

    place = f"import vit.pretrained, pathlib; vit.pretrained.FOLDER = pathlib.Path('{tmp_path}'); "
    done = weighed(f"{place}from vit.cli import main; sys.exit(main(['models']))")
    assert done.returncode == 0, done.stderr
    head, *rows, imported = done.stdout.splitlines()
    assert (head.split()[0], imported) == ("name", "imported:")
    for row, parts in zip(rows, (
        ("a ", "width 16 x 2 blocks, patch 4, image 8 x 16, decoder 16 x 1", "noise",
         "loss 0.502, linear probe 61.2%, neighbours 50.0%"),
        ("b ", "image 8, 3 classes", "accuracy 93.1% on held-out training images"),
        ("c ", "odd \\x1b[2Jname", "-"),
    ), strict=True):  # fmt: skip
        for part in parts:
            assert part in row, part

    monkeypatch.setattr("vit.pretrained.FOLDER", tmp_path)
    known = json.loads(called("models --json")[1])
    assert [model["name"] for model in known] == ["a", "b", "c"]
    assert (known[0]["figures"]["test_loss"], known[1]["decoder"]) == (0.50219, None)
    for model in known:
        files = (tmp_path / model["name"]).iterdir()
        assert model["bytes"] == sum(path.stat().st_size for path in files)
    assert known[0]["bytes"] < 3 * known[0]["parameters"] + 8000  # two bytes each, and the settings

    (tmp_path / "b" / "config.json").write_text("{")
    assert refused("models")
