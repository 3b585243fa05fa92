"""Each program starts alike: its output is flushed by the line, its warnings are one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings

import pytest

from vit.__main__ import run_program
from vit.commandline import start


def test_a_warning_is_one_line_by_the_program(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # put back afterwards
    assert start("program", len, ["a", "--debug", "b"]) == 2
    line = warnings.formatwarning("two\nlines", UserWarning, "file.py", 1)
    assert line == "program: warning: two lines\n"


def test_a_character_that_the_encoding_lacks_is_escaped_and_a_reader_that_has_gone_ends_it_quietly():
    code = "from vit.commandline import start; print(start('program', lambda _: print({!r}) or 0, []), file=sys.stderr)"
    # as on most machines
    env = os.environ | {"PYTHONIOENCODING": "cp1252:strict", "PYTHONUNBUFFERED": ""}
    for word, is_read, expected in (
        ("\u732b", True, (b"\\u732b\n", b"0\n")),
        ("x", False, (b"", b"141\n")),
    ):
        reads, writes = os.pipe()
        if not is_read:
            os.close(reads)
        command = [sys.executable, "-c", f"import sys; {code.format(word)}"]
        done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, env=env, check=False)
        os.close(writes)
        printed = b""
        if is_read:
            printed = os.read(reads, 100)
            os.close(reads)
        assert (printed, done.stderr) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_full_stream_is_one_line_by_the_program_and_a_lost_error_none():
    for stdout, stderr, code in ((True, False, 1), (False, True, 0)):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "vit", "models"],
                stdout=full if stdout else subprocess.PIPE,
                stderr=full if stderr else subprocess.PIPE,
                check=False,
            )
        assert done.returncode == code
        if stdout:
            assert done.stderr == b"vit: error: No space left on device\n"


PROGRAMS = {
    "vit": ["-m", "vit", "models"],
    "train.py": ["train.py", "--print_config"],
    "python -m studies": ["-m", "studies", "kinds"],
    "python -m studies.lesson": ["-m", "studies.lesson", "run"],
    "python -m studies.one_score": ["-m", "studies.one_score"],
    "python -m bench": ["-m", "bench"],
}
BROKEN = """
import argparse, runpy, sys
def fail(*_): raise LookupError("an odd\\nerror")
argparse.ArgumentParser.parse_known_args = fail
module = sys.argv[1] == "-m"
sys.argv = sys.argv[1 + module:]
(runpy.run_module if module else runpy.run_path)(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(("program", "debug"), [*((name, "") for name in PROGRAMS), ("vit", "1")])
def test_every_program_turns_a_bug_into_a_line(program, debug, shell, monkeypatch):
    monkeypatch.setenv("VIT_DEBUG", debug)
    for words in ([], ["--debug"]):
        done = shell("-c", BROKEN, *PROGRAMS[program], *words)
        *before, line = done.stderr.splitlines()
        assert done.returncode == 1
        assert line == f"{program}: error: LookupError: an odd; --debug (VIT_DEBUG=1) shows where"
        assert ("Traceback" in done.stderr) == bool(before) == bool(words or debug)


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
