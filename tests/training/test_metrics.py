"""metrics.jsonl: whole lines, each step once, whatever happened in between."""

from __future__ import annotations

import json
import math
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vit.config import ConfigError
from vit.training.metrics import MetricsLog, read_metrics


def line(step: int, loss: float = 0.5) -> dict:
    return {"step": step, "epoch": step / 3, "loss": loss}


def write(path, steps: range, resumed_from: int = 0, **options: object) -> None:
    log = MetricsLog(path, resumed_from, **options)
    for step in steps:
        log.write(line(step, loss=step + resumed_from / 10))
    log.close()


def test_lines_come_back(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    lines = [line(1, 1 / 3), line(2, 1e-300), {"step": 3, "name": "Äpfel\n"}]
    log = MetricsLog(path)
    for one in lines:
        log.write(one)
    log.close()
    assert read_metrics(path) == lines
    assert [json.loads(one) for one in path.read_text().splitlines()] == lines


def test_missing_file_holds_no_lines(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_line_can_be_read_as_soon_as_it_is_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    assert read_metrics(path) == []
    for step in range(1, 4):
        log.write(line(step))
        assert read_metrics(path) == [line(number) for number in range(1, step + 1)]
    log.close()


@pytest.mark.parametrize("saved_at", [0, 1, 3, 5, 9])
def test_resumed_run_drops_the_lines_that_it_makes_again(tmp_path, saved_at):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 6))
    write(path, range(saved_at + 1, 8), resumed_from=saved_at)
    lines = read_metrics(path)
    kept = min(saved_at, 5)
    assert [one["step"] for one in lines] == [*range(1, kept + 1), *range(saved_at + 1, 8)]
    assert [one["loss"] for one in lines[kept:]] == [step + saved_at / 10 for step in range(saved_at + 1, 8)]


def test_line_that_a_kill_cut_short_is_left_out_at_every_place(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 4))
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        lines = read_metrics(path)
        assert [one["step"] for one in lines] == list(range(1, whole[:length].count(b"\n") + 1))
    for length in (len(whole) - 1, len(whole) - 20):
        path.write_bytes(whole[:length])
        write(path, range(4, 6), resumed_from=3)
        assert [one["step"] for one in read_metrics(path)] == [1, 2, 4, 5]


def test_what_is_no_json_is_refused_and_not_written_in_part(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write(line(1))
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            log.write(line(2, bad))
    log.write(line(3))
    log.close()
    assert [one["step"] for one in read_metrics(path)] == [1, 3]


def test_tensorboard_gets_the_same_figures_each_step_once(tmp_path):
    path, board = tmp_path / "metrics.jsonl", tmp_path / "tensorboard"
    write(path, range(1, 6), tensorboard=board)
    assert any(file.name.startswith("events.out.tfevents") for file in board.iterdir())
    write(path, range(3, 7), resumed_from=2, tensorboard=board)
    events = EventAccumulator(str(board))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"epoch", "loss"}
    for key in ("epoch", "loss"):
        shown = [(event.step, event.value) for event in events.Scalars(key)]
        assert shown == [(one["step"], pytest.approx(one[key], rel=1e-6)) for one in read_metrics(path)]


def test_tensorboard_is_off_unless_asked_for(tmp_path):
    write(tmp_path / "metrics.jsonl", range(1, 3))
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_tensorboard_that_is_not_installed_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"^train\.tensorboard: [^\n]*pip install"):
        MetricsLog(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "tensorboard")
