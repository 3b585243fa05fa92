"""Every error of the user is one printable line and an exit code; a bug keeps its traceback."""

from __future__ import annotations

import pytest
import torch

from vit.errors import (
    AttentionError,
    CheckpointError,
    ConfigError,
    DataError,
    RunError,
    TrainingError,
    UserError,
    exit_code_of,
    one_line,
)


def fail(error: BaseException) -> int:
    raise error


def test_work_that_ends_well_gives_its_own_exit_code(capsys):
    assert [exit_code_of("program", lambda code=code: code) for code in (0, 143)] == [0, 143]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (UserError, 2),
        (ConfigError, 2),
        (DataError, 2),
        (CheckpointError, 2),
        (RunError, 2),
        (AttentionError, 2),
        (TrainingError, 1),
    ],
)
def test_user_error_is_one_line_on_stderr_and_an_exit_code(kind, code, capsys):
    assert str(kind("first\n  second\x1b[31m")) == "first second\\x1b[31m"
    assert exit_code_of("program", lambda: fail(kind("first\n  second\x1b[31m"))) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "program: error: first second\\x1b[31m\n"


def test_too_little_memory_is_one_line(capsys):
    assert exit_code_of("program", lambda: len(torch.empty(2**60, dtype=torch.uint8))) == 1
    assert exit_code_of("program", lambda: fail(MemoryError())) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(
        line.startswith("program: error: out of memory: ") and "train.batch_size" in line
        for line in lines
    )


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), RuntimeError("shapes"), KeyboardInterrupt(), SystemExit(3)]
)
def test_what_is_no_mistake_of_the_user_passes_through(error):
    with pytest.raises(type(error)):
        exit_code_of("program", lambda: fail(error))


@pytest.mark.parametrize(
    ("text", "line"),
    {
        "as it is: 3 × 4, 林檎": "as it is: 3 × 4, 林檎",
        " a \n\n b\t c\r\n": "a b c",
        "escape \x1b[2J, right-to-left \u202e, surrogate \udcff": r"escape \x1b[2J, right-to-left \u202e, surrogate \udcff",
        "lines \u2028 and \x85 that str.splitlines knows": "lines and that str.splitlines knows",
    }.items(),
)
def test_one_line_is_one_printable_line(text, line):
    assert one_line(text) == line
    assert line.isprintable()
    assert one_line(line) == line
