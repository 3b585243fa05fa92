"""A bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest
import torch

import vit.training.callbacks
from vit.training.callbacks import Progress
from vit.training.loop import Step

LINE = re.compile(r"epoch (\d+)/(\d+)  loss (\d+\.\d{4})  [\d,]+ images/s  step (\d+)/(\d+)  [\d:]+ left")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(stream: io.StringIO, total: int = 10, epochs: int = 2, start: int = 0) -> str:
    progress = Progress(total, epochs, start, stream)
    for step in range(start + 1, total + 1):
        progress.on_step(None, Step(step, step * epochs / total, 1e-3, 8, {"loss": torch.tensor(1 / step)}))
    progress.close()
    return stream.getvalue()


@pytest.mark.parametrize("start", [0, 7])
def test_without_a_terminal_there_are_plain_lines_at_the_beginning_and_the_end(start):
    text = show(io.StringIO(), start=start)
    assert text.replace("\n", "").isprintable()  # no colours, no carriage returns
    assert text.endswith("\n")
    lines = [LINE.fullmatch(line) for line in text.splitlines()]
    assert all(lines)
    assert [int(line[4]) for line in lines] == [start + 1, 10]
    assert [line[5] for line in lines] == ["10", "10"]
    assert float(lines[-1][3]) == 0.1


def test_without_a_terminal_there_is_a_line_whenever_the_time_has_come(monkeypatch):
    monkeypatch.setattr(vit.training.callbacks, "SECONDS_BETWEEN_LINES", -1)
    lines = [LINE.fullmatch(line) for line in show(io.StringIO(), total=6, epochs=3).splitlines()]
    assert [int(line[4]) for line in lines] == [1, 2, 3, 4, 5, 6]
    epochs = [int(line[1]) for line in lines]
    assert epochs == sorted(epochs)
    assert (epochs[0], epochs[-1], {line[2] for line in lines}) == (1, 3, {"3"})  # never a fourth of three


def test_each_line_is_there_at_once():
    class Flushed(io.StringIO):
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1

    stream = Flushed()
    show(stream, total=1, epochs=1)
    assert stream.flushes == stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("start", [0, 7])
def test_on_a_terminal_there_is_a_bar_that_stays_on_its_line(start):
    text = show(Terminal(), start=start)
    assert "\r" in text
    assert text.count("\n") == 1  # only when it is closed
    assert text.endswith("\n")
    first, last = (re.findall(r"(\d+)/10 steps", text)[i] for i in (0, -1))
    assert (int(first), int(last)) == (start, 10)
    assert "epoch 2/2  loss 0.1000" in text.rpartition("\r")[2]


def test_stream_is_stderr_of_the_moment(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    progress = Progress(1, 1)
    progress.on_step(None, Step(1, 1.0, 1e-3, 8, {"loss": torch.tensor(0.5)}))
    progress.close()
    assert LINE.fullmatch(stream.getvalue().strip())


def test_run_with_nothing_left_shows_nothing():
    assert show(io.StringIO(), start=10) == ""
