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
