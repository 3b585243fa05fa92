"""The files of a run are read by one reader each, and what is damaged is refused in one line."""

import pytest

from vit.errors import RunError
from vit.runs import read_mapping, read_metrics


def test_what_is_not_there_is_empty_and_a_line_that_was_cut_short_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_mapping(path.with_suffix(".json")) == {}
    assert read_metrics(path) == []
    path.write_bytes(b'{"step": 1}\n{"step": 2')
    assert read_metrics(path) == [{"step": 1}]
    path.write_bytes(b'{"step": \xff}\n')
    with pytest.raises(RunError, match=r"metrics.jsonl is damaged"):
        read_metrics(path)
