"""Every error is one printable line and an exit code; its traceback is shown on request."""

import pytest

from vit.errors import TrainingError, UserError, exit_code_of, one_line


def fail(error: BaseException) -> int:
    raise error


UNLIKE = {
    "a user's": (UserError("first\n  second\x1b[31m"), "first second\\x1b[31m"),
    "training's": (TrainingError("diverged"), "diverged"),
    "a bug": (ValueError(f"a bug\nwith {'x' * 5000}"), "ValueError: a bug; "),
    "a missing file": (
        FileNotFoundError(2, "No such file", "gone\n.png"),
        "gone .png: No such file",
    ),
    "a full disk": (OSError(28, "No space left on device"), "No space left on device"),
    "no memory": (MemoryError(), "out of memory: "),
    "no memory for oneDNN": (RuntimeError("could not create a primitive"), "out of memory: "),
    "no current folder": (FileNotFoundError(2, "No such file"), "the current folder: No such file"),
}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(("error", "said"), UNLIKE.values(), ids=UNLIKE)
def test_any_error_is_one_line_and_its_traceback_is_shown_on_request(error, said, debug, capsys):
    code = 2 if type(error) is UserError else 1
    assert exit_code_of("program", lambda: fail(error), debug) == code
    out, err = capsys.readouterr()
    *before, line = err.splitlines()
    assert out == ""
    assert line.startswith(f"program: error: {said}")
    assert line.isprintable()
    assert len(line) < 1000
    assert ("Traceback" in err) == bool(before) == debug
    assert ("--debug" in line) == said.startswith("ValueError")


def test_what_is_no_error_has_its_own_exit_code(capsys):
    assert [exit_code_of("program", lambda code=code: code) for code in (0, 143)] == [0, 143]
    assert exit_code_of("program", lambda: fail(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "program: stopped by SIGINT\n"
    assert exit_code_of("program", lambda: fail(BrokenPipeError())) == 141
    assert capsys.readouterr() == ("", "")
    with pytest.raises(SystemExit):
        exit_code_of("program", lambda: fail(SystemExit(3)))


@pytest.mark.parametrize(
    ("text", "line"),
    {
        " a \n\n b\t c: 3 × 4, 林檎\r\n": "a b c: 3 × 4, 林檎",
        "escape \x1b[2J, right-to-left \u202e, surrogate \udcff": r"escape \x1b[2J, right-to-left \u202e, surrogate \udcff",
        "lines \u2028 and \x85 that str.splitlines knows": "lines and that str.splitlines knows",
    }.items(),
)
def test_one_line_is_one_printable_line(text, line):
    assert one_line(text) == line
    assert line.isprintable()
    assert one_line(line) == line
