"""The law of progress in a pipe: every item arrives, and few lines tell the time left."""

from __future__ import annotations

import io
import re
import sys

import pytest

from vit import progress
from vit.progress import OptionalStream, say, track, work_bar


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """One number: the seconds that tqdm's clock shows."""
    seconds = [0.0]
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 20.0)
    monkeypatch.setattr("tqdm.std.time", lambda: seconds[0])
    return seconds


def test_lines_come_now_and_then_with_the_time_left(clock, capsys):
    for number, item in enumerate(track([5, 6, 7, 8], "layers", unit=" fits")):
        assert item == 5 + number
        clock[0] += 15
    assert capsys.readouterr().err.splitlines() == [
        "layers  2/4 fits  00:30 elapsed  00:30 left",
        "layers  4/4 fits  01:00 elapsed  00:00 left",
    ]


def test_a_stream_of_unknown_length_says_how_far_it_is(clock, capsys):
    for _ in track(iter("a"), "download", unit=" MB"):
        clock[0] = 90
    assert capsys.readouterr().err == "download  1 MB  01:30 elapsed\n"


def test_short_work_says_nothing(capsys):
    assert sum(track(range(100), "sum")) == 4950
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar_that_goes(monkeypatch, capsys):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    assert list(track([1, 2], "layers")) == [1, 2]
    assert re.search(r"layers: .*0/2 \[", capsys.readouterr().err)


def test_within_a_long_item_lines_go_on(clock, capsys):
    fits = work_bar("linear probe", 2, " fits")
    for clock[0] in (10, 21, 30):
        fits.update(0)
    clock[0] = 45
    fits.update()
    assert capsys.readouterr().err.splitlines() == [
        "linear probe  0/2 fits  00:21 elapsed  ? left",
        "linear probe  1/2 fits  00:45 elapsed  00:45 left",
    ]


class Broken(io.StringIO):
    """A stream that can be written only so many times."""

    def __init__(self, error: Exception, times: int, terminal: bool):
        super().__init__()
        self.error = error
        self.times = times
        self.isatty = lambda: terminal

    def write(self, text: str) -> int:
        self.times -= 1
        if self.times < 0:
            raise self.error
        return super().write(text)


ERRORS = [BrokenPipeError(), OSError(28, "No space left on device"), ValueError("closed file")]


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_bar_that_cannot_be_written_is_given_up_and_the_work_goes_on(
    clock, monkeypatch, error, times, terminal
):
    stream = Broken(error, times, terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    for item in track(range(9), "work"):
        clock[0] += 30
        assert item == clock[0] / 30 - 1
    assert stream.times < 0


def test_work_goes_on_without_a_stream_and_a_stream_is_what_it_was(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stderr", None)
    assert list(track([1, 2], "layers")) == [1, 2]
    assert not OptionalStream(None).isatty()
    with (tmp_path / "file").open("w", encoding="latin-1") as file:
        stream = OptionalStream(file)
        assert stream.encoding == "latin-1"
        assert stream.fileno() == file.fileno()
        print("text", file=stream, flush=True)
    assert (tmp_path / "file").read_text() == "text\n"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_is_said_on_stdout_need_not_arrive(monkeypatch, error):
    monkeypatch.setattr(sys, "stdout", Broken(error, 0, terminal=False))
    say("a line")
    monkeypatch.setattr(sys, "stdout", None)
    say("a line")


def test_what_is_said_is_escaped_where_stdout_cannot_encode_it(monkeypatch):
    file = io.BytesIO()
    stdout = io.TextIOWrapper(file, encoding="cp1252", newline="\n")
    monkeypatch.setattr(sys, "stdout", stdout)
    say("note: été 猫 \udcff")
    assert file.getvalue().decode("cp1252") == "note: été \\u732b \\udcff\n"
