"""Each program starts alike: its output is flushed by the line, its warnings are one line."""

import argparse
import os
import re
import signal
import subprocess
import sys
import warnings

import pytest

import bench.__main__
import studies.__main__
from vit import cli
from vit.__main__ import run_program
from vit.commandline import WAITING, start


def python(code: str, **streams: object) -> subprocess.CompletedProcess:
    """Python called with a program."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run([sys.executable, "-c", code], check=False, **streams)


def test_a_warning_is_one_line_by_the_program(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # put back afterwards
    assert start("program", len, ["a", "--debug", "b"]) == 2
    line = warnings.formatwarning("two\nlines", UserWarning, "file.py", 1)
    assert line == "program: warning: two lines\n"


PRINT = "from vit.commandline import start; start('p', lambda _: print({!r}) or 0, [])"


@pytest.mark.parametrize(
    ("word", "is_read", "expected"), [("\u732b", True, b"\\u732b\n"), ("x", False, b"")]
)
def test_a_character_that_the_encoding_lacks_is_escaped_and_a_lost_reader_ends_it_quietly(
    word, is_read, expected
):
    reads, writes = os.pipe()
    if not is_read:
        os.close(reads)
    # as on most machines
    env = os.environ | {"PYTHONIOENCODING": "cp1252:strict", "PYTHONUNBUFFERED": ""}
    done = python(PRINT.format(word), stdout=writes, env=env)
    os.close(writes)
    assert done.stderr == b""
    if is_read:
        assert os.read(reads, 100) == expected
        os.close(reads)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
@pytest.mark.parametrize(("stream", "code"), [("stdout", 1), ("stderr", 0)])
def test_a_full_stream_is_one_line_by_the_program_and_a_lost_error_none(stream, code):
    with open("/dev/full", "w") as full:
        done = python("from vit.cli import main; exit(main(['models']))", **{stream: full})
    assert done.returncode == code
    assert done.stderr in (None, b"vit: error: No space left on device\n")


PROGRAMS = {
    "vit": (cli.main, "models"),
    "train.py": (cli.train_main, "--print_config"),
    "python -m studies": (studies.__main__.main, "kinds"),
    "python -m bench": (bench.__main__.main, "--gpu-check"),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("debug", ["", "--debug", "VIT_DEBUG"])
def test_every_program_turns_a_bug_into_a_line(program, debug, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise LookupError("an odd\nerror")

    main, word = PROGRAMS[program]
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", fail)
    monkeypatch.setattr(sys, "argv", [program, word, *[debug] * (debug == "--debug")])
    monkeypatch.setenv("VIT_DEBUG", "1" if debug == "VIT_DEBUG" else "")
    assert main() == 1
    error = capsys.readouterr().err
    line = f"{program}: error: LookupError: an odd; --debug (VIT_DEBUG=1) shows where"
    assert error.splitlines()[-1] == line
    assert ("Traceback" in error) == bool(debug)


@pytest.mark.parametrize(
    ("handler", "after"),
    [(signal.default_int_handler, signal.SIG_DFL), (signal.SIG_IGN, signal.SIG_IGN)],
)
def test_ctrl_c_ends_a_program_at_once_unless_somebody_has_taken_it(handler, after, monkeypatch):
    found = []
    monkeypatch.setattr("vit.cli.main", lambda: found.append(signal.getsignal(signal.SIGINT)) or 3)
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(SystemExit, match="3"):
            run_program("main")
        assert found == [after]
    finally:
        signal.signal(signal.SIGINT, before)


LOAD = """
import ctypes
from importlib.util import find_spec
from pathlib import Path
from vit.commandline import limit_spinning

limit_spinning()
# as torch does, in a twentieth of the time
for library in Path(find_spec("torch").origin).parent.glob("lib/libgomp*"):
    ctypes.CDLL(str(library))
"""


@pytest.mark.parametrize(("own", "spins"), [({}, "1000"), ({"GOMP_SPINCOUNT": "77"}, "77")])
def test_waiting_threads_sleep_soon_unless_the_user_has_said_otherwise(own, spins):
    """The oracle is OpenMP itself, which prints the settings that it has read."""
    kept = {name: value for name, value in os.environ.items() if name not in WAITING}
    done = python(LOAD, env=kept | {"OMP_DISPLAY_ENV": "VERBOSE"} | own)
    found = re.findall(r"GOMP_SPINCOUNT = '(.*)'", done.stderr.decode())
    if not found:
        pytest.skip("torch has another OpenMP than GNU's here")
    assert found == [spins]
