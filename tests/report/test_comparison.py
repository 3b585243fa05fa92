"""Runs side by side: who shares a row, what is shown of each, and what is refused."""

import json
from pathlib import Path

import pytest
import yaml

from vit.cli import main
from vit.config import Config, RunConfig, TrainConfig
from vit.report.comparison import ComparisonError, as_table, compare_runs, read_finished
from vit.runs import RunError


def finished(
    folder: Path,
    accuracy: float,
    linear: float | None = None,
    content_hash: str = "a",
    run: RunConfig | None = None,
    **train: object,
) -> Path:
    """A run folder as train.py leaves it, without what is not compared."""
    folder.mkdir(parents=True)
    config = Config(train=TrainConfig(**train), run=run or RunConfig())
    (folder / "config.yaml").write_text("# a comment\n" + yaml.safe_dump(config.to_dict()))
    summary = {
        "data": {
            "name": "Noise",
            "content_hash": content_hash,
            "train_images": 1000,
            "test_images": 100,
            "tested_on": "test images",
        },
        "test_accuracy": accuracy,
        "content_hash": "own",
        "seconds": 60.0,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    if linear is not None:
        (folder / "probe").mkdir()
        results = {"linear": {"accuracy": linear}, "data": {"content_hash": content_hash}, "content_hash": "own",
                   "settings": {"labels": 1.0, "every_layer": False}}  # fmt: skip
        (folder / "probe" / "results.json").write_text(json.dumps(results))
    return folder


def test_seeds_share_a_row_and_nothing_else_does(tmp_path):
    folders = [
        finished(tmp_path / "one", 0.5, seed=0),
        finished(tmp_path / "two", 0.6, seed=1),
        finished(
            tmp_path / "three", 0.7, seed=2, run=RunConfig(log_every=3, threads=1)
        ),  # how it was watched and computed
        finished(tmp_path / "longer", 0.8, epochs=200),
        finished(tmp_path / "other data", 0.9, content_hash="b"),
    ]
    rows = compare_runs([read_finished(folder) for folder in folders])
    assert [[Path(name).name for name in row["run"].split(", ")] for row in rows] == [
        ["one", "two", "three"], ["longer"], ["other data"],
    ]  # fmt: skip
    assert [row["accuracy"] for row in rows] == ["60.00% ± 10.00%", "80.00%", "90.00%"]
    assert rows[0]["seeds"] == "0, 1, 2"
    assert [row["train.epochs"] for row in rows] == ["100", "200", "100"]
    assert not any(key.startswith(("data.", "model.", "optim.")) for key in rows[0])  # alike everywhere


def test_columns_that_nobody_fills_are_left_out_and_a_probe_is_found(tmp_path):
    runs = [finished(tmp_path / "probed", 0.5, linear=0.61), finished(tmp_path / "not", 0.4, epochs=3)]
    rows = compare_runs([read_finished(folder) for folder in runs])
    assert [row["linear probe"] for row in rows] == ["61.00%", ""]
    assert "neighbours" not in rows[0]
    assert "loss" not in rows[0]


def test_tables_are_aligned_and_markdown_cells_stay_cells():
    rows = [{"run": "a|b", "x": "1"}, {"run": "longer name", "x": "22"}]
    text = as_table(rows)
    assert {line.index(value) for line, value in zip(text, ("x", "1", "22"), strict=True)} == {13}
    assert as_table(rows, markdown=True)[2] == "| a\\|b | 1 |"


@pytest.mark.parametrize("spoil", ["summary.json", "config.yaml"])
@pytest.mark.parametrize("content", [None, "{", "[1]", ""])
def test_what_is_no_finished_run_is_one_line(tmp_path, spoil, content, capsys):
    folder = finished(tmp_path / "run", 0.5)
    (folder / spoil).unlink()
    if content is not None:
        (folder / spoil).write_text(content)
    with pytest.raises((ComparisonError, RunError), match="run"):
        read_finished(folder)
    assert main(["compare", str(folder)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1


def test_command_prints_a_row_a_run(tmp_path, capsys):
    folders = [finished(tmp_path / "one", 0.5), finished(tmp_path / "two", 0.25, batch_size=3)]
    assert main(["compare", *map(str, folders), "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| run | train.batch_size | images | measured on | seeds | accuracy | seconds |"
    assert lines[2].endswith("/one | 256 | 1,000 | 100 test images | 0 | 50.00% | 60 |")
    assert lines[3].endswith("/two | 3 | 1,000 | 100 test images | 0 | 25.00% | 60 |")


def test_a_run_twice_is_refused_and_a_seed_twice_is_no_spread(tmp_path):
    one, again = (finished(tmp_path / name, value) for name, value in (("one", 0.5), ("again", 0.6)))
    rows = compare_runs([read_finished(one), read_finished(again)])
    assert [row["accuracy"] for row in rows] == ["50.00%", "60.00%"]
    with pytest.raises(ComparisonError, match="twice"):
        compare_runs([read_finished(one), read_finished(tmp_path / "again" / ".." / "one")])


def changed(folder: Path, file: str, **values: object) -> Path:
    """With other values in its summary.json or results.json."""
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def test_a_probe_of_other_weights_is_not_shown_and_one_of_every_layer_stands_apart(tmp_path):
    one, other = (finished(tmp_path / name, 0.5, linear=0.6, epochs=n) for n, name in enumerate(("a", "b"), 1))
    changed(one, "probe/results.json", content_hash="another")
    changed(other, "probe/results.json", settings={"labels": 1.0, "every_layer": True})
    rows = compare_runs([read_finished(one), read_finished(other)])
    assert "linear probe" not in rows[0]
    assert [row["linear probe, best layer"] for row in rows] == ["", "60.00%"]


def test_rows_are_shared_by_what_a_run_began_with_not_by_where_it_lay(tmp_path):
    def run(name: str, begun_with: str, seed: int) -> Path:
        folder = changed(finished(tmp_path / name, 0.5, seed=seed), "summary.json", init_content_hash=begun_with)
        settings = yaml.safe_load((folder / "config.yaml").read_text())
        settings["model"]["init"] = f"runs/{name}"
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        return folder

    rows = compare_runs([read_finished(run(*about)) for about in (("a", "x", 0), ("b", "x", 1), ("c", "y", 2))])
    assert [row["seeds"] for row in rows] == ["0, 1", "2"]
    both = [run("same/1", "x", 0), run("same/2", "y", 0)]
    for folder in both:  # one name, other weights
        settings = yaml.safe_load((folder / "config.yaml").read_text())
        settings["model"]["init"] = "runs/same"
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    assert [row["model.init"] for row in compare_runs([read_finished(one) for one in both])] == [
        "runs/same (x)",
        "runs/same (y)",
    ]


def test_runs_of_an_earlier_version_are_compared_as_they_were(tmp_path):
    """Without objective, a hash of the weights, and one of all images."""
    folders = []
    for seed in (0, 1):
        folder = finished(tmp_path / str(seed), 0.5, linear=0.6, content_hash=f"{seed}-test")
        settings = yaml.safe_load((folder / "config.yaml").read_text())
        settings["data"] |= {"labels": 0.5, "subset_seed": seed}
        del settings["train"]["objective"]
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        summary = json.loads((folder / "summary.json").read_text())
        del summary["content_hash"]
        (folder / "summary.json").write_text(json.dumps(summary))
        folders.append(folder)
    (row,) = compare_runs([read_finished(folder) for folder in folders])
    assert row["linear probe"] == "60.00% ± 0.00%"


def test_neighbours_of_another_bank_stand_apart(tmp_path):
    runs = [
        changed(finished(tmp_path / str(bank), 0.5, seed=bank), "summary.json",
                neighbours={"encoder_accuracy": 0.5, "bank": bank})
        for bank in (10, 50)
    ]  # fmt: skip
    assert len(compare_runs([read_finished(run) for run in runs])) == 2


@pytest.mark.parametrize(("part", "rows"), [({"val_size": 20}, 1), ({"labels": 0.5}, 1), ({}, 2)], ids=str)
def test_subset_seeds_share_a_row_where_subsets_are_drawn(part, rows, tmp_path):
    runs = []
    for seed in (0, 1):
        folder = finished(tmp_path / str(seed), 0.5 + 0.1 * seed, content_hash=f"drawn by {seed}")
        settings = yaml.safe_load((folder / "config.yaml").read_text())
        settings["data"] |= {**part, "subset_seed": seed}
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        data = json.loads((folder / "summary.json").read_text())["data"]
        runs.append(read_finished(changed(folder, "summary.json", data=data | {"whole_content_hash": "the same"})))
    found = compare_runs(runs)
    assert len(found) == rows
    assert found[0]["seeds"] == ("0, 0 (subset 1)" if rows == 1 else "0")


def drawn_by(monkeypatch, tmp_path, *options: object) -> list:
    """The axes that `vit compare --plot` draws of these runs."""
    figures = []
    monkeypatch.setattr("vit.report.comparison.save_figure", lambda figure, path: figures.append(figure))
    assert main(["compare", *map(str, options), "--plot", str(tmp_path / "runs.png")]) == 0
    return figures[0].axes


def classified(folder: Path, values: list[float], accuracy: float, held_out: bool = False, **train: object) -> Path:
    """A finished classifier with a line of metrics an epoch."""
    finished(folder, accuracy, objective="classify", **train)
    summary = json.loads((folder / "summary.json").read_text()) | {"test_loss": 1 - accuracy, "epochs": 4}
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [{"step": n, "epoch": n / 1, "loss": 1 - v, "train_accuracy": v} for n, v in enumerate(values, 1)]
    if held_out:
        lines += [{"step": 2, "epoch": 2.0, "val_loss": 0.9, "val_accuracy": 0.1}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_picture_has_a_line_a_run_a_colour_a_row_and_the_end_of_each(tmp_path, monkeypatch):
    values = [0.1, 0.2, 0.4]
    runs = [
        classified(tmp_path / "one", values, 0.5, seed=0),
        classified(tmp_path / "two", values, 0.7, seed=1),
        classified(tmp_path / "other", values, 0.25, batch_size=3),
        classified(tmp_path / "watched", values, 0.3, held_out=True, batch_size=4),
    ]
    loss, accuracy = drawn_by(monkeypatch, tmp_path, *runs)
    courses = [line for line in accuracy.lines if len(line.get_xdata()) == 3]
    assert [line.get_xdata().tolist() for line in courses] == [[1, 2, 3]] * 3
    assert courses[0].get_color() == courses[1].get_color() != courses[2].get_color()
    held_out = next(line for line in accuracy.lines if list(line.get_ydata()) == [0.1])
    assert list(held_out.get_xdata()) == [2]  # not what it measured on its own images
    ends = [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for line in accuracy.lines
        if line.get_markersize() == 8
    ]
    assert ends == [(4, 0.5), (4, 0.7), (4, 0.25), (4, 0.3)]
    assert [line.get_label() for line in loss.lines if not line.get_label().startswith("_")] == [
        "0.4000 ± 0.1414  one, two", "0.7500  other", "0.7000  watched",
    ]  # fmt: skip


def test_what_cannot_be_drawn_is_one_line_and_nothing_is_written(tmp_path, capsys):
    runs = [str(classified(tmp_path / str(n), [0.1, 0.2], 0.5, batch_size=n)) for n in range(1, 7)]
    for arguments, says in (
        ([*runs, "--plot", str(tmp_path / "a.png")], "6 kinds of runs"),
        ([runs[0], "--plot", str(tmp_path / "a.jpg")], "--plot"),
        ([runs[0], "--plot", str(tmp_path / "1" / "config.yaml" / "a.png")], "is not a folder"),
    ):
        assert main(["compare", *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert says in said.err
        assert len(said.err.strip().splitlines()) == 1
    summary = (tmp_path / "3" / "summary.json").read_text()
    (tmp_path / "3" / "summary.json").write_text(summary.replace("test_loss", "another"))
    assert main(["compare", runs[2], "--plot", str(tmp_path / "a.png")]) == 2
    assert "cannot be drawn" in capsys.readouterr().err
    (tmp_path / "3" / "summary.json").write_text(summary)
    (tmp_path / "2" / "metrics.jsonl").write_text("{\n{}\n")
    assert main(["compare", runs[1], "--plot", str(tmp_path / "a.png")]) == 2
    assert "metrics.jsonl" in capsys.readouterr().err
    assert not list(tmp_path.glob("a.*"))
    assert main(["compare", runs[0], runs[2], "--plot", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_probe_of_other_images_is_not_shown(tmp_path):
    folder = finished(tmp_path / "run", 0.5, linear=0.6)
    summary = json.loads((folder / "summary.json").read_text())
    summary["data"]["content_hash"] = "another"
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "linear probe" not in compare_runs([read_finished(folder)])[0]
