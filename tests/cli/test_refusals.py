"""What each command refuses on its own is one line, exit code 2, and nothing is written.

Missing files are refused in test_commands, unknown options and ranges in test_parsers, files to
write in test_laws.
"""

import shutil
from pathlib import Path

import pytest
import yaml
from small import change
from tiny import NORMALIZE, encoder, save

from vit.config import Config

REFUSED = {
    "attention": [
        ("mae one.png --method relevance", "it has no classification head"),
        ("encoder", "name image files, or a folder or data set, and not both"),
        (
            "encoder one.png --method relevance --mask 0.5",
            "explains a reconstruction, and this model has no decoder",
        ),
        ("mae one.png --head 9", "there is no head 9 of 2"),
        ("mae one.png --method legrad --mask 0.5", "--method: legrad explains the class of whole images"),
    ],
    "evaluate": [
        ("mae data --method head", "--method head: it has no classification head"),
        ("strange data --method head", "the classes of this model (cyan, lime"),
        ("labels data --method head", "is for multi_label_classification, no choice between"),
        ("encoder data --num-classes 4", "parts of this model are untrained (head.weight, head.bias)"),
        ("encoder data --method reconstruction", "this model has no decoder"),
        ("mae data --out begun", "is a run with its own figures; name e.g. begun/evaluation"),
        ("mae data/cat --method knn", "has no labels"),
    ],
    "explore": [
        ("encoder one.png --layers 7 --out p.html", "there is no attention layer 7"),
        ("encoder one.png --snapshots --out p.html", "has no snapshots"),
    ],
    "predict": [
        ("encoder one.png --device mps", "error: --device: 'mps' cannot be used; torch finds cpu"),
        ("encoder mae", "mae: no images"),
        ("encoder mae/config.json --on-bad-image skip", "none of the images can be read"),
    ],
    "report": [
        ("begun --out mine.html", "mine.html is not a vit report"),
    ],
    "similar": [("encoder one.png two.png", "'two.png' is no folder")],
}  # fmt: skip
CASES = [(command, *case) for command, cases in REFUSED.items() for case in cases]


@pytest.fixture(scope="module")
def place(models, tmp_path_factory) -> Path:
    """A copy of `models`, heads for other classes and for several at once, and a begun run."""
    place = shutil.copytree(models, tmp_path_factory.mktemp("refusals") / "place")
    two = encoder(image_size=(12, 16), num_classes=2)
    save(place / "strange", two, NORMALIZE, ("cyan", "lime"))
    save(place / "labels", two)
    change(place / "labels", problem_type="multi_label_classification")
    (place / "begun").mkdir()
    (place / "begun" / "config.yaml").write_text(yaml.safe_dump(Config().to_dict()))
    (place / "begun" / "metrics.jsonl").touch()
    (place / "mine.html").write_text("mine")
    return place


@pytest.mark.parametrize(("command", "line", "said"), CASES, ids=lambda text: text[:60])
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    command, line, said, place, refused, monkeypatch
):
    monkeypatch.chdir(place)
    before = {path: path.is_file() and path.read_bytes() for path in place.rglob("*")}
    out = "--out look" if command == "attention" and "--out" not in line else ""
    assert said in refused(command, line, out)
    assert {path: path.is_file() and path.read_bytes() for path in place.rglob("*")} == before
