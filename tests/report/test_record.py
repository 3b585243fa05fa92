"""A run folder is read by one reader, which leaves out what is not the run's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vit.config import flat_settings
from vit.errors import RunError
from vit.report.record import read_folder, read_run


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "config.yaml").write_text("# a comment\naugment: {flip: 0.25}\n")
    (tmp_path / "summary.json").write_text(json.dumps({"test_loss": 0.5, "content_hash": "own"}))
    for name, mark in (("b/deep", "own"), ("a", "own"), ("other", "another")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "results.json").write_text(json.dumps({"content_hash": mark}))
    return tmp_path


def test_a_record_has_all_of_a_folder(folder):
    (folder / "cut").mkdir()
    (folder / "cut" / "results.json").write_text("{")
    (folder / "metrics.jsonl").write_text('{"step": 1, "epoch": 0.5}\n{"step"')
    record = read_run(folder)
    assert record.name == folder.name
    assert (record.settings["augment.flip"], record.settings["train.seed"]) == (0.25, 0)
    assert (list(record.results), record.metrics, record.epochs) == (
        ["a", "b/deep"],
        [{"step": 1, "epoch": 0.5}],
        0.5,
    )
    assert record.samples is None
    assert len(record.notes) == 2
    assert any("other/results.json measured other weights" in note for note in record.notes)
    assert flat_settings(record.sections) == {"augment.flip": 0.25}


def test_results_of_an_unfinished_run_have_a_note(folder):
    (folder / "summary.json").unlink()
    record = read_run(folder)
    assert list(record.results) == ["a", "b/deep", "other"]
    assert sum("was measured while this run was under way" in note for note in record.notes) == 3


@pytest.mark.parametrize(
    ("file", "content"),
    [("config.yaml", "train: 3"), ("config.yaml", "- 1"), ("config.yaml", ""), ("config.yaml", "\0"),
     ("summary.json", "[1]"), ("summary.json", "")],
)  # fmt: skip
def test_damaged_files_are_one_line(folder, file, content):
    (folder / file).write_text(content)
    for read in (read_run, read_folder):
        with pytest.raises(RunError) as refusal:
            read(folder)
        assert str(folder / file) in str(refusal.value)
        assert len(str(refusal.value).splitlines()) == 1


def test_what_is_not_there_is_empty_or_no_run(tmp_path):
    assert read_folder(tmp_path).sections == {}
    with pytest.raises(RunError, match="is not a run"):
        read_run(tmp_path)
