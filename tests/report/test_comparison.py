"""Runs side by side: who shares a row, what is shown of each, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vit.cli import main
from vit.config import Config, RunConfig, TrainConfig
from vit.errors import RunError
from vit.report.comparison import compare_runs, name_data, read_finished


def changed(folder: Path, file: str, **values: Any) -> Path:
    """`folder` with other values in a file of it; those of a section by "section.key"."""
    read, write = (
        (yaml.safe_load, yaml.safe_dump) if file.endswith(".yaml") else (json.loads, json.dumps)
    )
    content = read((folder / file).read_text())
    for key, value in values.items():
        section, _, name = key.partition(".")
        if name:
            content[section][name] = value
        else:
            content[section] = value
    (folder / file).write_text(write(content))
    return folder


def finished(
    folder: Path, accuracy: float, linear: float | None = None, content_hash: str = "a", run: RunConfig | None = None,
    **train: object,
) -> Path:  # fmt: skip
    """A run folder as train.py leaves it, without what is not compared."""
    folder.mkdir(parents=True)
    config = Config(train=TrainConfig(**train), run=run or RunConfig())
    (folder / "config.yaml").write_text("# a comment\n" + yaml.safe_dump(config.to_dict()))
    data = {"name": "Noise", "train_images": 1000, "test_images": 2000, "tested_on": "test images"}
    summary = {
        "data": data | {"content_hash": content_hash},
        "scores": {
            "head": [{"protocol": "", "images": 2000, "accuracy": accuracy, "baselines": {}}]
        },
        "content_hash": "own",
        "seconds": 60.0,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    if linear is not None:
        (folder / "probe").mkdir()
        results = {"scores": {"linear": [{"accuracy": linear}]}, "data": {"content_hash": content_hash}, "content_hash": "own",
                   "settings": {"labels": 1.0, "every_layer": False}}  # fmt: skip
        (folder / "probe" / "results.json").write_text(json.dumps(results))
    return folder


def compared(*folders: Path) -> list[dict[str, str]]:
    return compare_runs([read_finished(folder) for folder in folders])


def test_seeds_share_a_row_and_nothing_else_does(tmp_path):
    rows = compared(
        finished(tmp_path / "one", 0.5, seed=0),
        finished(tmp_path / "two", 0.6, seed=1),
        # how it was watched and computed
        finished(tmp_path / "three", 0.7, seed=2, run=RunConfig(save_every=3, threads=1)),
        finished(tmp_path / "longer", 0.8, epochs=200),
        finished(tmp_path / "other data", 0.9, content_hash="b"),
    )
    assert [[Path(name).name for name in row["run"].split(", ")] for row in rows] == [
        ["one", "two", "three"], ["longer"], ["other data"],
    ]  # fmt: skip
    assert [row["accuracy"] for row in rows] == ["60.00% ± 10.00%", "80.00%", "90.00%"]
    assert rows[0]["seeds"] == "0, 1, 2"
    assert [row["data"] for row in rows] == ["Noise (a)", "Noise (a)", "Noise (b)"]
    assert [row["train.epochs"] for row in rows] == ["100", "200", "100"]
    # alike everywhere
    assert not any(key.startswith(("data.", "model.", "optim.")) for key in rows[0])


def test_what_would_have_been_done_without_the_images_is_not_compared(tmp_path):
    folders = [finished(tmp_path / name, 0.5) for name in ("one", "two")]
    settings = yaml.safe_load((folders[1] / "config.yaml").read_text())
    settings["data"]["fallback"] = "scenes"
    (folders[1] / "config.yaml").write_text(yaml.safe_dump(settings))
    assert not any(key.startswith("data.") for key in compared(*folders)[0])


def test_columns_that_nobody_fills_are_left_out_and_a_probe_is_found(tmp_path):
    probed = finished(tmp_path / "probed", 0.5, linear=0.61)
    rows = compared(probed, finished(tmp_path / "not", 0.4, epochs=3))
    assert [row["linear probe"] for row in rows] == ["61.00%", ""]
    assert {"neighbours", "loss"}.isdisjoint(rows[0])
    (row,) = compared(changed(probed, "probe/results.json", **{"settings.every_layer": True}))
    assert "linear probe" not in row
    assert row["linear probe, best layer"] == "61.00%"


def test_the_best_of_each_score_is_marked_where_the_images_are_the_same(tmp_path):
    """More accuracy, less loss; equal ones as printed alike."""
    folders = [
        finished(tmp_path / f"c{n}", value, epochs=n + 1) for n, value in enumerate((0.71, 0.09))
    ]
    assert [row["accuracy"] for row in compared(*folders)] == ["71.00% *", "9.00%"]
    assert [row["accuracy"] for row in compared(folders[0])] == ["71.00%"]
    other = finished(tmp_path / "other", 0.5, content_hash="b")
    assert [row["accuracy"] for row in compared(folders[0], other)] == ["71.00%", "50.00%"]
    folders = [
        pretrained(tmp_path / f"p{n}", value, seed=n) for n, value in enumerate((0.5, 0.50001, 0.6))
    ]
    assert [row["loss"] for row in compared(*folders)] == ["0.5000 *", "0.5000 *", "0.6000"]


def test_data_of_one_name_are_told_apart_by_the_images_that_differ(tmp_path):
    train, others = "a" * 16, ("b" * 16, "c" * 16)
    runs = [
        read_finished(finished(tmp_path / test, 0.5, content_hash=f"{train}-{test}"))
        for test in others
    ]
    assert len(set(name_data(runs).values())) == 2


def test_command_prints_a_row_a_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished(tmp_path / "one", 0.5)
    finished(tmp_path / "two", 0.25, batch_size=3)
    assert main(["compare", "one", "two"]) == 0
    cells = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
    assert cells == [
        ["run", "train.batch_size", "images", "measured on", "seeds", "accuracy", "seconds"],
        ["one", "256", "1,000", "2,000 test images", "0", "50.00% *", "60"],
        ["two", "3", "1,000", "2,000 test images", "0", "25.00%", "60"],
    ]


def test_a_run_twice_is_refused_and_a_seed_twice_is_no_spread(tmp_path):
    one, again = (
        finished(tmp_path / name, value) for name, value in (("one", 0.5), ("again", 0.6))
    )
    assert [row["accuracy"] for row in compared(one, again)] == ["50.00%", "60.00% *"]
    with pytest.raises(RunError, match="twice"):
        compared(one, tmp_path / "again" / ".." / "one")


@pytest.mark.parametrize(
    ("file", "values"),
    [("probe/results.json", {"content_hash": "another"}), ("summary.json", {"data.content_hash": "another"}),
     ("probe/results.json", {"settings.labels": 0.5})],
    ids=["weights", "images", "labels"],
)  # fmt: skip
def test_a_probe_of_others_is_not_shown(file, values, tmp_path):
    assert (
        "linear probe"
        not in compared(changed(finished(tmp_path / "a", 0.5, linear=0.6), file, **values))[0]
    )


@pytest.mark.parametrize(
    ("settings", "summary", "rows"),
    [
        ({"train.seed": (0, 1)}, {"scores": ({"knn": [{"bank": 10}]}, {"knn": [{"bank": 50}]})}, 2),
        ({"train.seed": (0, 1), "model.init": ("runs/a", "runs/b")}, {"init_content_hash": ("x", "x")}, 1),
        ({"train.seed": (0, 1), "model.init": ("runs/a", "runs/b")}, {"init_content_hash": ("x", "y")}, 2),
        ({"model.init": ("runs/a", "runs/a")}, {"init_content_hash": ("x", "y")}, 2),
    ],
)  # fmt: skip
def test_runs_that_differ_in_the_seed_alone_share_a_row(settings, summary, rows, tmp_path):
    folders = []
    for number in (0, 1):
        folder = finished(tmp_path / str(number), 0.5)
        changed(folder, "config.yaml", **{key: pair[number] for key, pair in settings.items()})
        values = {"data.whole_content_hash": "same"} | {
            key: pair[number] for key, pair in summary.items()
        }
        folders.append(changed(folder, "summary.json", **values))
    found = compared(*folders)
    assert len(found) == rows
    if "train.seed" in settings and rows == 1:
        assert found[0]["seeds"] == "0, 1"
    if "model.init" in settings and rows == 2:
        assert [row["model.init"] for row in found] == [
            f"{settings['model.init'][n]} ({'xy'[n]})" for n in (0, 1)
        ]


def pretrained(folder: Path, loss: float, seed: int = 0, **settings: Any) -> Path:
    """A finished pretraining, with settings by "section.key"."""
    finished(folder, 0.0, epochs=seed + 1)
    changed(folder, "config.yaml", **settings)
    row = {"protocol": "", "images": 2000, "loss": loss, "baselines": {}}
    return changed(folder, "summary.json", scores={"reconstruction": [row]})


@pytest.mark.parametrize("file", ["summary.json", "config.yaml"])
def test_what_is_no_finished_run_is_one_line(tmp_path, file, refused):
    folder = finished(tmp_path / "run", 0.5)
    for content in ("{", "[1]", ""):
        (folder / file).write_text(content)
        assert file in refused("compare", folder)
    (folder / file).unlink()
    error = refused("compare", folder)
    assert file in error
    assert ("finish it with --resume" in error) == (file == "summary.json")


def test_losses_of_different_targets_stand_apart(tmp_path):
    targets = {
        "normalised pixels, random mask 75%, patch 4 of 32": {},
        "plain pixels, random mask 75%, patch 4 of 32": {"reconstruct.norm_pix_loss": False},
        "normalised pixels, random mask 50%, patch 4 of 32": {"mask.ratio": 0.5},
        "normalised pixels, random mask 75%, patch [8, 4] of 32": {"model.patch_size": [8, 4]},
    }
    folders = []
    for number, settings in enumerate(targets.values()):
        folders.append(pretrained(tmp_path / str(number), loss=number / 10, **settings))
    for number, row in enumerate(compared(*folders)):
        shown = {name: cell for name, cell in row.items() if name.startswith("loss")}
        assert list(shown) == [f"loss, {target}" for target in targets]
        assert [cell for cell in shown.values() if cell] == [f"{number / 10:.4f}"]
        assert list(shown.values())[number]
    assert [row["loss"] for row in compared(folders[0])] == ["0.0000"]


def test_runs_of_the_version_before_are_read(tmp_path):
    run = finished(tmp_path / "run", 0.5)
    summary = json.loads((run / "summary.json").read_text())
    del summary["scores"]
    guesses = {"mean_of_visible_patches": 0.9, "nearest_visible_patch": 0.8}
    summary |= {
        "test_loss": 0.5, "test_loss_of_baselines": guesses, "test_mask": {"kind": "random", "ratio": 0.75},
        "neighbours": {"k": 20, "bank": 9, "encoder_accuracy": 0.25, "raw_pixel_accuracy": 0.125},
    }  # fmt: skip
    (run / "summary.json").write_text(json.dumps(summary))
    (row,) = compared(run)
    assert (row["loss"], row["neighbours"]) == ("0.5000", "25.00%")
    scores = read_finished(run).record.scores
    assert scores["reconstruction"][0]["baselines"] == guesses
    assert scores["knn"][0]["baselines"] == {"raw_pixels": 0.125}
