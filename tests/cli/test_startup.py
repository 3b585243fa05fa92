"""Each program starts alike: its output is flushed by the line, its warnings are one line."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

from vit.cli.startup import start


def test_a_warning_is_one_line_by_the_program(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # put back afterwards
    assert start("program", lambda: 3) == 3
    assert (
        warnings.formatwarning("two\nlines", UserWarning, "file.py", 1)
        == "program: warning: two lines\n"
    )


def test_a_character_that_the_encoding_lacks_is_escaped_and_a_reader_that_has_gone_ends_it_quietly():
    code = "from vit.cli.startup import start; print(start('program', lambda: print({!r}) or 0), file=sys.stderr)"
    for word, reader, found in (
        ("\u732b", "cat", (b"\\u732b\n", b"0\n")),
        ("x", "exec <&-", (b"", b"141\n")),
    ):
        waiting = f"import sys; sys.stdin.readline(); {code.format(word)}"
        line = f'{{ sleep 0.2; echo; }} | "$0" -c "$1" | {reader}'
        env = os.environ | {
            "PYTHONIOENCODING": "cp1252:strict",
            "PYTHONUNBUFFERED": "",
        }  # as on most machines
        done = subprocess.run(
            ["bash", "-c", line, sys.executable, waiting], capture_output=True, env=env, check=False
        )
        assert (done.stdout, done.stderr) == found
