"""The law of progress in a pipe: every item arrives, and few lines tell the time left."""

import io
import os
import sys

import pytest

from vit import progress
from vit.progress import OptionalStream, say, track


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


def test_what_a_reader_who_has_gone_would_not_take_is_dropped():
    reads, writes = os.pipe()
    with os.fdopen(writes, "w", encoding="latin-1") as file:
        stream = OptionalStream(file)
        assert (stream.encoding, stream.fileno(), stream.isatty()) == ("latin-1", writes, False)
        print("text", file=stream, flush=True)
        assert os.read(reads, 100) == b"text\n"
        os.close(reads)
        for _ in range(3):
            print("text", file=stream, flush=True)
    # nor does it raise when it is closed


def test_what_is_said_is_escaped_where_stdout_cannot_encode_it(monkeypatch):
    file = io.BytesIO()
    stdout = io.TextIOWrapper(file, encoding="cp1252", newline="\n")
    monkeypatch.setattr(sys, "stdout", stdout)
    say("note: été 猫 \udcff")
    assert file.getvalue().decode("cp1252") == "note: été \\u732b \\udcff\n"
