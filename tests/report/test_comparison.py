"""Runs side by side: who shares a row, what is shown of each, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vit.cli import main
from vit.config import Config, changed
from vit.errors import RunError
from vit.report.comparison import compare_runs, read_finished

DATA = {"name": "Noise", "train_images": 1000, "test_images": 2000, "tested_on": "test images"}


def finished(
    folder: Path,
    accuracy: float = 0.5,
    loss: float | None = None,
    linear: float | None = None,
    data: str = "a",
    summary: dict[str, Any] | None = None,
    **settings: object,
) -> Path:
    """A run folder as train.py leaves it, without what is not compared; settings as train__seed=1."""
    folder.mkdir(parents=True)
    given = {key.replace("__", ".", 1): value for key, value in settings.items()}
    (folder / "config.yaml").write_text(yaml.safe_dump(changed(Config(), given).to_dict()))
    scores = {"head": [{"accuracy": accuracy}]}
    if loss is not None:
        scores = {"reconstruction": [{"loss": loss}]}
    content = {
        "data": DATA | {"content_hash": data},
        "scores": scores,
        "content_hash": "own",
        "seconds": 60.0,
    }
    (folder / "summary.json").write_text(json.dumps(content | (summary or {})))
    if linear is not None:
        results = content | {"scores": {"linear": [{"accuracy": linear, "layers": "layer 5"}]}}
        results["settings"] = {"labels": 1.0, "every_layer": False}
        (folder / "probe").mkdir()
        (folder / "probe" / "results.json").write_text(json.dumps(results))
    return folder


def compared(*folders: Path) -> list[dict[str, str]]:
    return compare_runs([read_finished(folder) for folder in folders])


def test_seeds_share_a_row_and_nothing_else_does(tmp_path):
    rows = compared(
        finished(tmp_path / "one", 0.5),
        finished(tmp_path / "two", 0.6, train__seed=1),
        # how it was computed, and what would have been done without its images
        finished(tmp_path / "three", 0.7, train__seed=2, run__threads=1, data__fallback="scenes"),
        finished(tmp_path / "longer", 0.8, train__epochs=200),
        finished(tmp_path / "other data", 0.9, data="b"),
    )
    shared = [[Path(name).name for name in row["run"].split(", ")] for row in rows]
    assert shared == [["one", "two", "three"], ["longer"], ["other data"]]
    assert [row["accuracy"] for row in rows] == ["60.00% ± 10.00%", "80.00%", "90.00%"]
    assert rows[0]["seeds"] == "0, 1, 2"
    # of one name, by the images that differ
    assert [row["data"] for row in rows] == ["Noise (a)", "Noise (a)", "Noise (b)"]
    assert [row["train.epochs"] for row in rows] == ["100", "200", "100"]
    # alike everywhere
    assert not any(key.startswith(("data.", "model.", "optim.")) for key in rows[0])
    # a seed twice is no spread
    again = finished(tmp_path / "again", 0.6)
    rows = compared(tmp_path / "one", again, again)
    assert [row["accuracy"] for row in rows] == ["50.00%", "60.00% *", "60.00% *"]


@pytest.mark.parametrize(
    ("runs", "rows"),
    {
        (("", "", 10), ("", "", 50)): [None, None],
        (("runs/a", "x", 9), ("runs/b", "x", 9)): [None],
        (("runs/a", "x", 9), ("runs/a", "y", 9)): ["runs/a (x)", "runs/a (y)"],
    }.items(),
    ids=["neighbours of more", "the same weights", "a name of others"],
)
def test_a_row_has_one_bank_and_the_same_initial_weights(tmp_path, runs, rows):
    folders = []
    for seed, (init, weights, bank) in enumerate(runs):
        summary = {"init_content_hash": weights, "scores": {"knn": [{"bank": bank}]}}
        settings = {"train__seed": seed, "model__init": init}
        folders.append(finished(tmp_path / str(seed), summary=summary, **settings))
    assert [row.get("model.init") for row in compared(*folders)] == rows


def test_a_probe_is_shown_if_it_saw_the_runs_weights_images_and_labels(tmp_path):
    probed = finished(tmp_path / "probed", linear=0.61)
    rows = compared(probed, finished(tmp_path / "not", train__epochs=3))
    assert [row["linear probe, last layers"] for row in rows] == ["61.00%", ""]
    assert {"k-NN, standardised", "loss"}.isdisjoint(rows[0])
    path = probed / "probe" / "results.json"
    results = json.loads(path.read_text())
    for change in (
        {"content_hash": "another"},
        {"data": DATA | {"content_hash": "another"}},
        {"settings": {"labels": 0.5, "every_layer": False}},
    ):
        path.write_text(json.dumps(results | change))
        assert "linear probe, last layers" not in compared(probed)[0]
    path.write_text(json.dumps(results | {"settings": {"labels": 1.0, "every_layer": True}}))
    assert compared(probed)[0]["linear probe, any layers"] == "61.00%"


def test_the_best_of_each_score_is_marked_where_the_images_are_the_same(tmp_path):
    """More accuracy, less loss; equal ones as printed alike."""
    folders = [
        finished(tmp_path / f"c{n}", value, train__epochs=n + 1)
        for n, value in enumerate((0.71, 0.09))
    ]
    assert [row["accuracy"] for row in compared(*folders)] == ["71.00% *", "9.00%"]
    assert [row["accuracy"] for row in compared(folders[0])] == ["71.00%"]
    other = finished(tmp_path / "other", data="b")
    assert [row["accuracy"] for row in compared(folders[0], other)] == ["71.00%", "50.00%"]
    folders = [
        finished(tmp_path / f"p{n}", loss=value, train__epochs=n + 1)
        for n, value in enumerate((0.5, 0.50001, 0.6))
    ]
    assert [row["loss"] for row in compared(*folders)] == ["0.5000 *", "0.5000 *", "0.6000"]


def test_losses_of_different_targets_stand_apart(tmp_path):
    folders = [
        finished(tmp_path / "usual", loss=0.5),
        finished(tmp_path / "half", loss=0.25, mask__ratio=0.5),
    ]
    rows = compared(*folders)
    assert [row["loss, mask.ratio 0.75"] for row in rows] == ["0.5000", ""]
    assert [row["loss, mask.ratio 0.5"] for row in rows] == ["", "0.2500"]
    classifier = finished(tmp_path / "classifier", mask__ratio=0.6)
    assert compared(folders[0], classifier)[0]["loss"] == "0.5000"


def test_command_prints_a_row_a_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished(tmp_path / "one")
    finished(tmp_path / "two", 0.25, train__batch_size=3)
    assert main(["compare", "one", "two"]) == 0
    cells = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
    assert cells == [
        ["run", "train.batch_size", "images", "measured on", "seeds", "accuracy", "seconds"],
        ["one", "256", "1,000", "2,000 test images", "0", "50.00% *", "60"],
        ["two", "3", "1,000", "2,000 test images", "0", "25.00%", "60"],
    ]
    (tmp_path / "one" / "summary.json").unlink()
    with pytest.raises(RunError, match="is not a finished run"):
        read_finished(tmp_path / "one")
