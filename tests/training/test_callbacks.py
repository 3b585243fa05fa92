"""Callbacks: metrics.jsonl has whole lines, each step once, whatever happened; progress."""

from __future__ import annotations

import io
import itertools
import math
import re
from types import SimpleNamespace

import pytest
import torch

from vit.config import Config, DataConfig, RunConfig, TrainConfig
from vit.errors import TrainingError
from vit.runs import read_metrics
from vit.training.callbacks import MetricsFile, Progress, Validation, snapshot_steps
from vit.training.step import Step


def line(step: int, loss: float = 0.5) -> dict:
    return {"step": step, "epoch": step / 3, "loss": loss}


def done_at(step: int, epoch: float, loss: float = 1.0) -> Step:
    first_bad = torch.tensor(0.0 if math.isfinite(loss) else step)
    return Step(
        step,
        epoch,
        1e-3,
        8,
        {"first_bad": first_bad} | dict.fromkeys(("loss", "grad_norm"), torch.tensor(loss)),
    )


def run_at(step: int, total: int = 12, epochs: int = 4, **settings: object) -> SimpleNamespace:
    """What a callback reads of a run."""
    config = Config(
        train=TrainConfig(epochs=epochs), data=DataConfig(val_size=1), run=RunConfig(**settings)
    )
    return SimpleNamespace(
        step=step, seconds=0.0, total_steps=total, config=config, callback_states=None
    )


def write(path, steps: range, run: SimpleNamespace, loss: float = 0.5) -> list[dict]:
    """Write a line for each of `steps`; return the states of the file after each, the first before all."""
    file = MetricsFile(path, run)
    states = [file.state_dict()]
    for step in steps:
        file.on_log(line(step, loss))
        file.on_save()
        states.append(file.state_dict())
    file.close()
    return states


def resumed_at(step: int, state: dict) -> SimpleNamespace:
    run = run_at(step)
    run.callback_states = {"metrics": state}
    return run


@pytest.mark.parametrize("saved_at", [0, 3, 5])
def test_resumed_run_drops_the_lines_that_it_makes_again(tmp_path, saved_at):
    path = tmp_path / "metrics.jsonl"
    states = write(path, range(1, 6), run_at(0))
    with path.open("a") as file:
        file.write('{"step": 6, "los')  # as when the kill comes while a line is written
    write(path, range(saved_at + 1, 8), resumed_at(saved_at, states[saved_at]), loss=0.25)
    assert read_metrics(path) == [
        *(line(step) for step in range(1, saved_at + 1)),
        *(line(step, 0.25) for step in range(saved_at + 1, 8)),
    ]


def test_a_step_that_is_not_finite_is_named_before_its_line_is_written(tmp_path):
    """A CPU checks each step anyway; a GPU only those with a line."""
    run = run_at(0)
    file = MetricsFile(tmp_path / "metrics.jsonl", run)
    run.seconds = 1.0
    with pytest.raises(TrainingError, match=r"^step 1: "):
        file.on_step(run, done_at(1, 0.1, math.nan))


@pytest.mark.parametrize(
    ("every", "start", "logged"),
    [(1, 0, [1, 2, 3, 4, 5, 6, 7]), (3, 0, [1, 3, 6, 7]), (3, 4, [6, 7]), (10, 0, [1, 7])],
)
def test_a_line_comes_every_so_many_steps_and_has_the_speed_since_the_last(
    tmp_path, monkeypatch, every, start, logged
):
    monkeypatch.setattr(RunConfig, "steps_between_lines", lambda config, total: every)
    run = run_at(start, total=7)
    file = MetricsFile(tmp_path / "metrics.jsonl", run)
    lines = []
    for step in range(start + 1, 8):
        run.step = step
        run.seconds += 2
        values = file.on_step(run, done_at(step, step / 3))
        if values is not None:
            lines.append(values)
    assert [line["step"] for line in lines] == logged
    assert {line["images_per_second"] for line in lines} == {4.0}
    assert set(lines[0]) == {"step", "epoch", "loss", "lr", "grad_norm", "images_per_second"}


@pytest.mark.parametrize(("total", "count"), [(0, 3), (1000, 9), (5, 20)])
def test_snapshots_begin_at_the_start_and_end_at_the_end_and_are_closer_at_first(total, count):
    steps = snapshot_steps(total, count)
    assert (steps[0], steps[-1]) == (0, total)
    assert len(steps) == len(set(steps)) <= count
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    # but for rounding
    assert all(later >= earlier - 1 for earlier, later in itertools.pairwise(gaps))
    assert (snapshot_steps(total, 0), snapshot_steps(total, 1)) == ([], [total])


@pytest.mark.parametrize(("every", "steps"), [(2, [6, 12]), (0, [])])
def test_validation_comes_at_the_end_of_every_so_many_epochs(every, steps):
    run = run_at(0, val_every=every)
    scores = {"reconstruction": [{"loss": 0.5}]}
    validation = Validation(lambda run: scores)
    lines = [validation.on_step(run, done_at(step, step / 3)) for step in range(1, 13)]
    expected = [{"step": step, "epoch": step / 3, "val_loss": 0.5} for step in steps]
    assert [line for line in lines if line is not None] == expected


# --- progress: a bar on a terminal, plain lines elsewhere -----------------------------------------

LINE = re.compile(
    r"epoch (\d+)/(\d+)  loss (\d+\.\d{4})  [\d,]+ images/s  step (\d+)/(\d+)  [\d:]+ left"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(stream: io.StringIO, start: int) -> str:
    run = run_at(start, total=10, epochs=2)
    progress = Progress(run, stream)
    for step in range(start + 1, 11):
        progress.on_step(run, done_at(step, step / 5, 1 / step))
    progress.close()
    return stream.getvalue()


@pytest.mark.parametrize(
    ("start", "seconds", "shown"),
    [(0, 60, [2, 10]), (7, 60, [9, 10]), (5, 1e-9, [7, 8, 9, 10]), (9, 60, [10])],
)
def test_without_a_terminal_there_are_plain_lines_at_both_ends_and_when_their_time_has_come(
    start, seconds, shown, monkeypatch
):
    monkeypatch.setattr("vit.training.callbacks.SECONDS_BETWEEN_LINES", seconds)
    text = show(io.StringIO(), start)
    assert text.replace("\n", "").isprintable()  # no colours, no carriage returns
    assert text.endswith("\n")
    lines = [LINE.fullmatch(line) for line in text.splitlines()]
    assert all(lines)
    assert [int(line[4]) for line in lines] == shown
    assert {(line[2], line[5]) for line in lines} == {("2", "10")}
    assert (lines[-1][1], float(lines[-1][3])) == ("2", 0.1)  # never a third of two epochs
    assert show(io.StringIO(), start=10) == ""


@pytest.mark.parametrize("start", [0, 7])
def test_on_a_terminal_there_is_a_bar_that_stays_on_its_line(start):
    text = show(Terminal(), start)
    assert "\r" in text
    assert text.count("\n") == 1  # only when it is closed
    assert text.endswith("\n")
    first, last = (re.findall(r"(\d+)/10 steps", text)[i] for i in (0, -1))
    assert (int(first), int(last)) == (start, 10)
    assert "epoch 2/2  loss 0.1000" in text.rpartition("\r")[2]
