"""What each command refuses on its own is one line, exit code 2, and nothing is written.

Missing files are refused in test_commands, unknown options and ranges in test_parsers, files to
write in test_laws.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from tiny import NORMALIZE, encoder, noise, save_images

from vit.checkpoints import save_model
from vit.config import Config

REFUSED = {
    "attention": [
        ("encoder", "name image files, or a folder or data set, and not both"),
        ("encoder one.png --query 3,0", "there is no patch in row 3, column 0: the grid is 3 x 4"),
        ("single one.png --method relevance", "its head is for one output, no choice between classes"),
        (
            "encoder one.png --method relevance --mask 0.5",
            "explains a reconstruction, and this model has no decoder",
        ),
    ],
    "checkpoint": [
        ("convert mae --to timm --out mae", "exists and is not replaced"),
    ],
    "evaluate": [
        ("mae images --method head", "--method head: it has no classification head"),
        ("strange images --method head", "the classes of this model (cyan, lime, pink, ...) are not"),
        ("labels images --method head", "is for multi_label_classification, no choice between"),
        ("classifier images --num-classes 4", "parts of this model are untrained (head.weight, 2 in all)"),
        ("classifier images --method reconstruction", "this model has no decoder"),
        ("mae images --method linear --labels 0.01", "of 1 training images are held out"),
        ("mae images --seeds 1,2,1", "'1,2,1' cannot be used; each seed once"),
        ("mae images --out begun", "is a run with its own figures; name e.g. begun/evaluation"),
        ("mae images/train/red --method knn", "has no labels"),
        ("mae album --method knn", "has one class"),
    ],
    "explore": [
        ("encoder one.png --layers 7 --out p.html", "there is no attention layer 7"),
        ("encoder one.png --snapshots --out p.html", "has no snapshots"),
    ],
    "predict": [
        ("mae one.png", "mae: it has no classification head; use a classifier, or fine-tune it"),
        ("encoder one.png --device mps", "error: --device: 'mps' cannot be used; torch finds cpu"),
        ("encoder run/snapshots", "run/snapshots: no images"),
        ("encoder mae/config.json", "mae/config.json: its content is not an image"),
        ("encoder mae/config.json --on-bad-image skip", "none of the images can be read"),
    ],
    "report": [
        ("begun --out mine.html", "mine.html is not a vit report"),
    ],
}  # fmt: skip
CASES = [(command, *case) for command, cases in REFUSED.items() for case in cases]


@pytest.fixture(scope="module")
def place(models, tmp_path_factory) -> Path:
    """A copy of `models`, images of three classes, heads for these, other, several and one of them, and a begun run."""
    place = shutil.copytree(models, tmp_path_factory.mktemp("refusals") / "place")
    sizes = dict(image_size=(12, 16))
    for split, count in (("train", 24), ("test", 10)):
        for name in ("blue", "green", "red"):
            folder = place / "images" / split / name
            pixels = noise(count, len(name) + count, (12, 16)).permute(0, 2, 3, 1)
            save_images(folder, pixels.numpy())
    three = encoder(**sizes, num_classes=3)
    save_model(place / "classifier", three, NORMALIZE)
    save_model(place / "strange", three, NORMALIZE, ("cyan", "lime", "pink"))
    save_model(place / "labels", three, NORMALIZE)
    config = json.loads((place / "labels" / "config.json").read_text())
    config["problem_type"] = "multi_label_classification"
    (place / "labels" / "config.json").write_text(json.dumps(config))
    save_model(place / "single", encoder(**sizes, num_classes=1), NORMALIZE)
    shutil.copytree(place / "images" / "test" / "red", place / "album" / "2023")
    (place / "begun").mkdir()
    (place / "begun" / "config.yaml").write_text(yaml.safe_dump(Config().to_dict()))
    (place / "mine.html").write_text("mine")
    return place


@pytest.mark.parametrize(("command", "line", "said"), CASES, ids=lambda text: text[:60])
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    command, line, said, place, refused, monkeypatch
):
    monkeypatch.chdir(place)
    before = {path: path.is_file() and path.read_bytes() for path in place.rglob("*")}
    out = ["--out", "look"] if command == "attention" and "--out" not in line else []
    assert said in refused(command, *shlex.split(line), *out)
    assert {path: path.is_file() and path.read_bytes() for path in place.rglob("*")} == before
