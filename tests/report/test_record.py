"""A run folder is read by one reader, which leaves out what is not the run's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vit.errors import RunError
from vit.report.record import read_run


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "config.yaml").write_text("# a comment\naugment: {flip: 0.25}\n")
    (tmp_path / "summary.json").write_text(json.dumps({"content_hash": "own"}))
    for name, mark in (("b/deep", "own"), ("a", "own"), ("other", "another")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "results.json").write_text(json.dumps({"content_hash": mark}))
    return tmp_path


def test_a_record_has_all_settings_and_what_was_measured_on_the_runs_own_weights(folder):
    record = read_run(folder)
    assert (record.settings["augment.flip"], record.settings["train.seed"]) == (0.25, 0)
    assert list(record.results) == ["a", "b/deep"]
    # there are no weights yet to compare with
    (folder / "summary.json").unlink()
    assert list(read_run(folder).results) == ["a", "b/deep", "other"]


@pytest.mark.parametrize(("file", "content"), [("config.yaml", "- 1"), ("summary.json", "[1]")])
def test_a_damaged_file_is_named(folder, file, content):
    (folder / file).write_text(content)
    with pytest.raises(RunError, match=str(folder / file)):
        read_run(folder)
    (folder / "config.yaml").unlink()
    with pytest.raises(RunError, match="is not a run"):
        read_run(folder)
